package schema

import "time"

// NodeView is what a node reports about itself to the web console. Counts are totals since the start of the node. The
// console computes rates from two views.
type NodeView struct {
	At         time.Time       `json:"at"`
	Status     NodeStatus      `json:"status"`
	Apps       []AppInstance   `json:"apps"` // applications of the cluster, as the node knows them
	Components []NodeComponent `json:"components"`
	Figures    Figures         `json:"figures"`
	Warnings   []LogRecord     `json:"warnings"` // last warnings of the log, newest first
	Leaders    []LeaderSeen    `json:"leaders"`  // the last leaders of each group, oldest first
	Runs       []JobRun        `json:"runs"`     // runs of jobs whose Raft group the node led, oldest first
	Alerts     []NodeAlert     `json:"alerts"`
}

// LeaderSeen records when a node first heard of a leader of a group.
type LeaderSeen struct {
	Group  uint64    `json:"group"`
	Term   uint64    `json:"term"`
	Leader string    `json:"leader"` // node id
	At     time.Time `json:"at"`     // when the node first heard of this leader
}

// NodeAlert is an alert that a node has found in its own metrics, with the rules of deploy/prometheus. If Grows is
// false, the alert is firing now. If Grows is true, Count is a counter, and the console shows the alert for some
// minutes after each increase.
type NodeAlert struct {
	Name  string  `json:"name"`
	About string  `json:"about,omitempty"` // such as a group or a store
	Text  string  `json:"text"`
	Fails bool    `json:"fails,omitempty"` // something does not work; otherwise it may stop working
	Grows bool    `json:"grows,omitempty"`
	Count float64 `json:"count,omitempty"`
}

// NodeComponent is one component of a node.
type NodeComponent struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Version string `json:"version"`
	State   string `json:"state"` // ready, failed or ignored
	Reason  string `json:"reason,omitempty"`
	File    string `json:"file,omitempty"` // file and line of the declaration; empty = built in
}

// LogRecord is one record of a node's log.
type LogRecord struct {
	Time  time.Time `json:"time"`
	Level string    `json:"level"`
	Text  string    `json:"text"` // message and attributes
}

// Figures are numbers of one node, most of them taken from its metrics.
type Figures struct {
	Requests     uint64       `json:"requests"`     // requests of the HTTP and gRPC APIs
	Errors       uint64       `json:"errors"`       // requests that failed on the server
	Latency      Histogram    `json:"latency"`      // durations of the requests, in seconds
	Sync         Histogram    `json:"sync"`         // writes of the log to disk, in seconds
	Entries      uint64       `json:"entries"`      // log entries of all groups
	LogBytes     uint64       `json:"logBytes"`     // written to the logs of all groups
	Snapshots    uint64       `json:"snapshots"`    // snapshots taken
	Elections    uint64       `json:"elections"`    // elections that the node started
	Reloads      uint64       `json:"reloads"`      // times that changed component files were read
	ReloadFailed bool         `json:"reloadFailed"` // the components are not those in the files
	ReloadedAt   float64      `json:"reloadedAt"`   // Unix time of the last reload; 0 = never
	CPUSeconds   float64      `json:"cpuSeconds"`
	Memory       float64      `json:"memory"`  // resident bytes
	Heap         float64      `json:"heap"`    // bytes
	Threads      float64      `json:"threads"` // threads of the operating system
	Goroutines   float64      `json:"goroutines"`
	Files        float64      `json:"files"` // open file descriptors
	DiskFree     float64      `json:"diskFree"`
	Connections  []NamedCount `json:"connections"` // open, by kind
	Stores       []NamedCount `json:"stores"`      // calls of state stores: name and operation
	StoreErrors  []NamedCount `json:"storeErrors"` // calls of state stores that failed on the server, by name
	Bindings     []NamedCount `json:"bindings"`    // operations and events of bindings: name and outcome
	Calls        []AppCalls   `json:"calls"`       // calls between applications, counted at the caller
	GroupLogs    []NamedCount `json:"groupLogs"`   // log entries, by group
	Backup       Backups      `json:"backup"`
}

// Backups are figures of the backups of a node. Times are Unix times, and 0 = never.
type Backups struct {
	Last      float64 `json:"last"`      // last backup of this node
	Scheduled float64 `json:"scheduled"` // last scheduled backup of the cluster
	Every     float64 `json:"every"`     // seconds between scheduled backups; 0 = none are configured
	Failing   bool    `json:"failing"`   // the last scheduled backup failed
}

// NamedCount is a number with a name.
type NamedCount struct {
	Name  string  `json:"name"`
	Part  string  `json:"part,omitempty"`
	Value float64 `json:"value"`
}

// AppCalls counts the calls of one application by another.
type AppCalls struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Count  uint64 `json:"count"`
	Errors uint64 `json:"errors"` // calls without an answer, or with a status of 500 or above
}

// Histogram is a distribution of values. Bounds are the upper bounds of the buckets in ascending order. Counts are
// cumulative, as in Prometheus.
type Histogram struct {
	Bounds []float64 `json:"bounds"`
	Counts []uint64  `json:"counts"`
	Total  uint64    `json:"total"`
}

// Add adds the counts of o to h. The first Add sets the bounds of h. If o has a different number of bounds, Add adds
// only o.Total.
func (h *Histogram) Add(o Histogram) {
	if h.Bounds == nil {
		h.Bounds, h.Counts = o.Bounds, make([]uint64, len(o.Counts))
	}
	h.Total += o.Total
	if len(h.Counts) != len(o.Counts) {
		return
	}
	for i, n := range o.Counts {
		h.Counts[i] += n
	}
}
