package schema

import (
	"encoding/json"
	"time"
)

// JobStatus is a job as the admin API shows it.
type JobStatus struct {
	App       string          `json:"app"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Schedule  string          `json:"schedule,omitempty"`
	Due       time.Time       `json:"due,omitzero"`      // when the current tick is due by the schedule
	Next      time.Time       `json:"next"`              // time of the next attempt
	Ticks     uint64          `json:"ticks"`             // number of ticks that are done or dropped
	Attempts  uint64          `json:"attempts"`          // number of failed attempts of the current tick
	Error     string          `json:"error,omitempty"`   // error of the last attempt, if it failed
	Waiting   string          `json:"waiting,omitempty"` // what the due tick waits for; empty = nothing
	Job       json.RawMessage `json:"job,omitempty"`     // the job as it was scheduled
}

// JobSelection selects jobs. Empty fields select all.
type JobSelection struct {
	App       string `json:"app,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`  // prefix of the name, unless Exact is set
	Exact     bool   `json:"exact,omitempty"` // Name is the whole name
	Brief     bool   `json:"brief,omitempty"` // leave out the field Job of each job
}

// JobChange names a job to delete, or to run now.
type JobChange struct {
	App       string `json:"app"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Delete    bool   `json:"delete,omitempty"` // otherwise the job is run
}

// JobRun is one attempt to run a tick of a job.
type JobRun struct {
	App       string        `json:"app"`
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Node      string        `json:"node"` // node id of the instance that was called; empty = none could be called
	At        time.Time     `json:"at"`   // when the attempt began
	Took      time.Duration `json:"took"`
	Tick      uint64        `json:"tick"`    // 1 for the first
	Attempt   uint64        `json:"attempt"` // 1 for the first
	Outcome   string        `json:"outcome"` // done, unknown, failed or undelivered
	Error     string        `json:"error,omitempty"`
}
