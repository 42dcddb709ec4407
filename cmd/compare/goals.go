package main

import "fmt"

// goals are the minimum acceptable ratios of Quorate's request rate to that of another system. The keys are
// table/system, then the operation, then the number of clients. They were set for values of 256 bytes. Those for the
// system etcd count only with -client http. A ratio below its goal is marked in the output.
var goals = map[string]map[operation]map[int]float64{
	clusterTable + "/etcd":      {strongSave: {1: 1.5, 64: 3, 512: 4}, strongRead: {64: 3.5}, eventualRead: {64: 5}},
	clusterTable + "/etcd-tool": {strongSave: {64: 3}, strongRead: {64: 3.5}, eventualRead: {64: 5}},
	nodeTable + "/daprd":        {strongSave: {64: 2.5}, eventualRead: {64: 3}},
	callTable + "/nginx":        {call: {64: 0.7}},
	callTable + "/go-proxy":     {call: {64: 1.6}},
	callTable + "/daprd":        {call: {64: 3.5}},
	hopsTable + "/nginx":        {call: {64: 0.5}},
}

// goalOf returns the goal of a table cell; 0 = none.
func goalOf(s *settings, table, other string, op operation, clients int) float64 {
	if other == "etcd" && !s.bare {
		return 0
	}
	return goals[table+"/"+other][op][clients]
}

// missed returns the mark of a ratio that is below its goal.
func missed(ratio, goal float64) string {
	if ratio >= goal {
		return ""
	}
	return fmt.Sprintf(", below the goal of %.1f", goal)
}
