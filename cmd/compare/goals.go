package main

import (
	"fmt"
	"strconv"
	"time"
)

// goals has the minimum acceptable ratio of request rates: the rate of Quorate divided by the rate of another system.
// The keys are the table and the other system ("table/system"), the operation, and the number of clients. The output
// marks a ratio below its goal. The goals are meant for values of 256 bytes. The goals for the system etcd apply only
// with -client http.
var goals = map[string]map[operation]map[int]float64{
	clusterTable + "/etcd":      {strongSave: {1: 1.5, 64: 3, 512: 4}, strongRead: {64: 3.5}, eventualRead: {64: 5}},
	clusterTable + "/etcd-tool": {strongSave: {64: 3}, strongRead: {64: 3.5}, eventualRead: {64: 5}},
	nodeTable + "/daprd":        {strongSave: {64: 2.5}, eventualRead: {64: 3}},
	nodeTable + "/handler":      {eventualRead: {64: 0.85}},
	callTable + "/nginx":        {call: {64: 0.7}},
	callTable + "/go-proxy":     {call: {64: 1.6}},
	callTable + "/daprd":        {call: {64: 3.5}},
	hopsTable + "/nginx":        {call: {64: 0.5}},
	pubsubTable + "/daprd":      {publishDeliver: {1: 3, 64: 3, 512: 3}},
	pubsub3Table + "/js-always": {publish: {64: 3}},
	pubsub3Table + "/js":        {publish: {64: 0.5}},
	workflowTable + "/daprd":    {runChain: {1: 5, 30: 10, 350: 10}},
	jobsTable + "/daprd":        dueGoals,
	jobs3Table + "/daprd":       dueGoals,
}

// dueGoals has the goals for jobs and reminders. The number of clients does not matter for deliveries, so their key is
// 0.
var dueGoals = map[operation]map[int]float64{createJob: {64: 3}, createReminder: {64: 3}, fireJobs: {0: 1.5},
	fireReminders: {0: 1.5}}

// cpuGoals has the minimum acceptable ratio of CPU times per request: the CPU time of another system divided by that of
// Quorate. The keys are the same as in goals.
var cpuGoals = map[string]map[operation]map[int]float64{
	nodeTable + "/handler": {eventualRead: {64: 0.9}},
}

// latencyGoals has the maximum acceptable median latency of Quorate, by table, operation and number of clients.
var latencyGoals = map[string]map[operation]map[int]time.Duration{
	pubsub3Table: {publishDeliver: {1: 5 * time.Millisecond}},
}

// failoverGoal is the longest acceptable median time from a kill of the leader until writes succeed.
const failoverGoal = 1500 * time.Millisecond

// goalOf returns the goal of a table cell, or 0 if there is none.
func goalOf(s *settings, table, other string, op operation, clients int) float64 {
	if other == "etcd" && !s.bare {
		return 0
	}
	if op.fires() {
		clients = 0
	}
	return goals[table+"/"+other][op][clients]
}

// missed returns the text that marks a ratio as below its goal, or "" if the ratio reaches the goal.
func missed(ratio, goal float64) string {
	if ratio >= goal {
		return ""
	}
	return ", below the goal of " + strconv.FormatFloat(goal, 'g', -1, 64)
}

// missedCost returns the text that marks a ratio of CPU times as below its goal (see cpuGoals). It returns "" if the
// ratio reaches the goal, if there is no goal, or if a CPU time is unknown.
func missedCost(quorate, other *figures, goal float64) string {
	if goal == 0 || quorate.cpu == 0 || other.cpu == 0 || float64(other.cost())/float64(quorate.cost()) >= goal {
		return ""
	}
	return ", CPU below the goal of " + strconv.FormatFloat(goal, 'g', -1, 64)
}

// costGoals has the maximum acceptable CPU time of one request to Quorate, by table, operation and number of clients.
var costGoals = map[string]map[operation]map[int]time.Duration{
	nodeTable: {strongSave: {1: 250 * time.Microsecond, 64: 60 * time.Microsecond}},
}

// The goals for the resident memory of an idle node and for the size of the program: upper limits in megabytes.
const (
	memoryGoal  = 40
	programGoal = 48
)

// exceeded returns the text that marks a value as above its goal, or "" if the value is not above it. A goal of 0
// means that there is no goal.
func exceeded[T time.Duration | megabytes](value, goal T) string {
	if goal == 0 || value <= goal {
		return ""
	}
	return fmt.Sprintf(", above the goal of %v", goal)
}

// megabytes is a size in units of 1,000,000 bytes.
type megabytes float64

func (m megabytes) String() string { return fmt.Sprintf("%.1f MB", float64(m)) }
