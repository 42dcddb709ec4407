package proof

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// bucket is what happened in one second.
type bucket struct {
	Done, Refused, Unknown int
	took                   []time.Duration // of a sample of the requests that were done
}

// most is how many times of one second are kept.
const most = 500

// recorder counts what clients see, second by second. Safe for concurrent use.
type recorder struct {
	begun time.Time

	mu      sync.Mutex
	buckets []bucket // guarded by mu, as all below
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
	Median, Worst          time.Duration // Worst: of 99 in 100
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

// Played is one fault that was played.
type Played struct {
	Number  int           `json:"number"`
	Class   string        `json:"class"`
	Name    string        `json:"name"`
	Begin   time.Duration `json:"begin"`   // since the campaign began, nanoseconds
	Mended  time.Duration `json:"mended"`  // when mending it began
	Healthy time.Duration `json:"healthy"` // when every node served again
	Notes   []string      `json:"notes,omitempty"`
}

// Election is a change of leadership that was seen.
type Election struct {
	At     time.Duration `json:"at"`
	Group  uint64        `json:"group"`
	Term   uint64        `json:"term"`
	Leader string        `json:"leader"`
}

// Violation is a promise that was broken.
type Violation struct {
	Check   string        `json:"check"` // C1 to C14, or "cluster" for what stands in the way of checks
	Step    int           `json:"step"`
	At      time.Duration `json:"at"`
	Text    string        `json:"text"`
	History []string      `json:"history,omitempty"`
}

// Check is what was checked, and how often.
type Check struct {
	ID    string `json:"id"`
	What  string `json:"what"`
	Times int    `json:"times"`
	Notes string `json:"notes,omitempty"`
}

// Result is everything that a campaign found.
type Result struct {
	Seed       uint64           `json:"seed"`
	Version    string           `json:"version"`
	Again      string           `json:"again"` // the command that plays it again
	Begun      time.Time        `json:"begun"`
	Took       time.Duration    `json:"took"`
	Nodes      string           `json:"nodes"`
	Requests   map[string]int   `json:"requests"`
	Faults     map[string]int   `json:"faults"` // by class
	Played     []Played         `json:"played"`
	Elections  int              `json:"elections"`
	Checks     []Check          `json:"checks"`
	Totals     []Total          `json:"totals"`
	NotRun     [][2]string      `json:"notRun"`
	Violations []Violation      `json:"violations"`
	Stalls     []Stall          `json:"stalls"` // of the machine
	Changes    []Election       `json:"changes"`
	Timeline   []second         `json:"-"`
	Classes    []ClassSummary   `json:"-"`
	Logs       string           `json:"logs,omitempty"` // what is left of a campaign that found something
	Resumed    map[string]Times `json:"resumed"`        // by class: from mending to all nodes serving
}

// Total is a number with a name.
type Total struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Stall is a time in which the machine did not run this process although it was to run.
type Stall struct {
	At   time.Duration `json:"at"`
	Long time.Duration `json:"long"`
}

// ClassSummary is a class of faults in the report.
type ClassSummary struct {
	ID, Name, How, Skipped string
	Times                  int
}

// Times sum up how long something took.
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

// String is a violation in a line.
func (v Violation) String() string {
	return fmt.Sprintf("%s after step %d, at %s: %s", v.Check, v.Step, v.At.Round(time.Millisecond), v.Text)
}

// byClass is the number of a class, for sorting.
func byClass(a, b string) int {
	var x, y int
	_, _ = fmt.Sscanf(a, "F%d", &x)
	_, _ = fmt.Sscanf(b, "F%d", &y)
	return cmp.Compare(x, y)
}
