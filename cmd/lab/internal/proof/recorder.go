package proof

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// bucket has the results of the requests that ended in one second.
type bucket struct {
	Done, Refused, Unknown int
	took                   []time.Duration // latencies of a sample of the successful requests
}

// most is the maximum number of latencies that a bucket keeps.
const most = 500

// recorder counts the results of clients per second. It is safe for concurrent use.
type recorder struct {
	begun time.Time

	mu      sync.Mutex
	buckets []bucket // guarded by mu, as are the fields below
	Strong  int
	Other   int
	Unknown int
	Refused int
}

func (r *recorder) note(at time.Time, took time.Duration, done, unknown, strong bool) {
	i := int(at.Add(took).Sub(r.begun) / time.Second)
	if i < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.buckets) <= i {
		r.buckets = append(r.buckets, bucket{})
	}
	b := &r.buckets[i]
	switch {
	case unknown:
		b.Unknown++
		r.Unknown++
	case !done:
		b.Refused++
		r.Refused++
	default:
		b.Done++
		if len(b.took) < most {
			b.took = append(b.took, took)
		}
	}
	if strong {
		r.Strong++
	} else {
		r.Other++
	}
}

// second is one second of the timeline.
type second struct {
	Done, Refused, Unknown int
	Median, Worst          time.Duration // Worst is the 99th percentile
}

func (r *recorder) seconds() []second {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]second, len(r.buckets))
	for i, b := range r.buckets {
		slices.Sort(b.took)
		out[i] = second{Done: b.Done, Refused: b.Refused, Unknown: b.Unknown}
		if n := len(b.took); n > 0 {
			out[i].Median, out[i].Worst = b.took[n/2], b.took[n*99/100]
		}
	}
	return out
}

// Played is one fault of the campaign. Its times are relative to the start of the campaign.
type Played struct {
	Number  int           `json:"number"`
	Class   string        `json:"class"`
	Name    string        `json:"name"`
	Begin   time.Duration `json:"begin"`   // when the fault was injected, in nanoseconds
	Healed  time.Duration `json:"healed"`  // when the fault was undone
	Healthy time.Duration `json:"healthy"` // when every node served again
	Notes   []string      `json:"notes,omitempty"`
}

// Election is an observed change of the leader of a group. At is the time since the start of the campaign.
type Election struct {
	At     time.Duration `json:"at"`
	Group  uint64        `json:"group"`
	Term   uint64        `json:"term"`
	Leader string        `json:"leader"`
}

// Violation is a violated guarantee. Step is the number of the last fault before the violation was found, and At is
// the time since the start of the campaign.
type Violation struct {
	Check   string        `json:"check"` // C1 to C20, or "cluster" for a problem that prevents checks
	Step    int           `json:"step"`
	At      time.Duration `json:"at"`
	Text    string        `json:"text"`
	History []string      `json:"history,omitempty"`
}

// Check is a checked guarantee. Times is the number of checks.
type Check struct {
	ID    string `json:"id"`
	What  string `json:"what"`
	Times int    `json:"times"`
	Notes string `json:"notes,omitempty"`
}

// Result is the result of a campaign.
type Result struct {
	Seed       uint64         `json:"seed"`
	Version    string         `json:"version"`
	Again      string         `json:"again"` // the command that repeats it
	Begun      time.Time      `json:"begun"`
	Took       time.Duration  `json:"took"`
	Nodes      string         `json:"nodes"`
	Requests   map[string]int `json:"requests"`
	Faults     map[string]int `json:"faults"` // number by class
	Played     []Played       `json:"played"`
	Elections  int            `json:"elections"`
	Checks     []Check        `json:"checks"`
	Totals     []Total        `json:"totals"`
	NotRun     [][2]string    `json:"notRun"`
	Violations []Violation    `json:"violations"`
	Stalls     []Stall        `json:"stalls"` // of the machine
	Changes    []Election     `json:"changes"`
	Timeline   []second       `json:"-"`
	Classes    []ClassSummary `json:"-"`
	Logs       string         `json:"logs,omitempty"` // directory of the logs of a campaign with violations
	// Histories are the histories of actors, of reminders and jobs, and of locks, by file name.
	Histories map[string]io.WriterTo `json:"-"`
	// by class: time from the end of the fault until all nodes served
	Resumed map[string]Times `json:"resumed"`
}

// Total is a figure of the report, such as a number of requests, with its name.
type Total struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Stall is a period in which the machine did not run this process. At is when the period began, counted from the start
// of the campaign. Long is the length of the period.
type Stall struct {
	At   time.Duration `json:"at"`
	Long time.Duration `json:"long"`
}

// ClassSummary describes a class of faults in the report. Times is the number of faults of the class that were
// injected.
type ClassSummary struct {
	ID, Name, How, Skipped string
	Times                  int
}

// Times summarizes durations. Worst is the longest one.
type Times struct {
	Count  int           `json:"count"`
	Median time.Duration `json:"median"`
	Worst  time.Duration `json:"worst"`
}

func summed(all []time.Duration) Times {
	slices.Sort(all)
	if len(all) == 0 {
		return Times{}
	}
	return Times{len(all), all[len(all)/2], all[len(all)-1]}
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s after step %d, at %s: %s", v.Check, v.Step, v.At.Round(time.Millisecond), v.Text)
}

// byClass compares two ids of classes, such as F2 and F10, by their numbers.
func byClass(a, b string) int {
	var x, y int
	_, _ = fmt.Sscanf(a, "F%d", &x)
	_, _ = fmt.Sscanf(b, "F%d", &y)
	return cmp.Compare(x, y)
}
