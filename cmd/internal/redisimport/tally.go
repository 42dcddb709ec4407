package redisimport

import (
	"encoding/json"
	"io"
	"slices"
	"sync"
)

// Reason is why a key was not copied. The set is closed.
type Reason string

// The reasons why a key is not copied. With Refused, TooLarge and Encrypted, state of the
// application is missing in the store. The other reasons are normal.
const (
	Exists      Reason = "exists"       // the store already has the key
	Expired     Reason = "expired"      // it expired or was deleted during the import
	OtherPrefix Reason = "other prefix" // of another application, or of Dapr itself
	NoPrefix    Reason = "no prefix"    // not written by Dapr with this keyPrefix
	ActorState  Reason = "actor state"  // of the application's actors
	NoState     Reason = "no state"     // another type, or no field data
	Refused     Reason = "refused"      // the node or Redis refused this key
	TooLarge    Reason = "too large"    // larger than any store accepts
	Encrypted   Reason = "encrypted"    // by Dapr
)

// Lost reports whether the reason means that state of the application is missing.
func (r Reason) Lost() bool { return r == Refused || r == TooLarge || r == Encrypted }

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{Exists, Expired, OtherPrefix, NoPrefix, ActorState, NoState, Refused, TooLarge, Encrypted}
}

const (
	maxExamples = 10  // keys listed per reason
	maxPrefixes = 100 // foreign prefixes that are counted separately
)

// Skipped is a key that was not copied.
type Skipped struct {
	Key    string `json:"key"` // the key in Redis
	Reason Reason `json:"reason"`
	Detail string `json:"detail,omitempty"`
}

// Count is the number of keys that were not copied for one reason.
type Count struct {
	Reason   Reason    `json:"reason"`
	Keys     int64     `json:"keys"`
	Lost     bool      `json:"lost"`     // state is missing
	Examples []Skipped `json:"examples"` // the first few
}

// Report is the result of an import, intermediate or final.
type Report struct {
	Estimate int64            `json:"estimate"` // keys in the database when the import began
	Seen     int64            `json:"seen"`     // keys read; Redis may return one several times
	Copied   int64            `json:"copied"`
	Expiring int64            `json:"expiring"` // of the copied keys
	Binary   int64            `json:"binary"`   // of those copied: bytes, not JSON
	Bytes    int64            `json:"bytes"`    // of the copied values
	Skipped  []Count          `json:"skipped"`  // in the order of Reasons
	Prefixes map[string]int64 `json:"prefixes"` // keys by foreign prefix; "" = all others
	DryRun   bool             `json:"dryRun"`   // nothing was written: Copied is what would be copied
	Complete bool             `json:"complete"` // every key of the database was read
}

// Lost returns the number of keys with state that the store does not have.
func (r Report) Lost() (n int64) {
	for _, c := range r.Skipped {
		if c.Lost {
			n += c.Keys
		}
	}
	return n
}

// tally counts the results. It is safe for concurrent use.
type tally struct {
	mu       sync.Mutex
	report   Report
	counts   map[Reason]*Count
	prefixes map[string]int64
}

func newTally(estimate int64, dry bool) *tally {
	return &tally{report: Report{Estimate: estimate, DryRun: dry}, counts: map[Reason]*Count{},
		prefixes: map[string]int64{}}
}

func (t *tally) seen(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Seen += int64(n)
}

func (t *tally) copied(items []Item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range items {
		t.report.Copied++
		t.report.Bytes += int64(len(i.Value))
		if i.TTL > 0 {
			t.report.Expiring++
		}
		if i.Binary {
			t.report.Binary++
		}
	}
}

func (t *tally) skip(s Skipped) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts[s.Reason]
	if c == nil {
		c = &Count{Reason: s.Reason, Lost: s.Reason.Lost()}
		t.counts[s.Reason] = c
	}
	c.Keys++
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, s)
	}
	if s.Reason == OtherPrefix {
		p := foreignPrefix(s.Key)
		if _, had := t.prefixes[p]; !had && len(t.prefixes) >= maxPrefixes {
			p = ""
		}
		t.prefixes[p]++
	}
}

// now returns a copy of the report so far.
func (t *tally) now() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.report
	r.Skipped, r.Prefixes = []Count{}, map[string]int64{}
	for _, reason := range Reasons() {
		if c := t.counts[reason]; c != nil {
			one := *c
			one.Examples = slices.Clone(c.Examples)
			r.Skipped = append(r.Skipped, one)
		}
	}
	for p, n := range t.prefixes {
		r.Prefixes[p] = n
	}
	return r
}

// ledger writes every key that was not copied, one JSON object per line.
type ledger struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (l *ledger) add(s Skipped) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil || l.err != nil {
		return l.err
	}
	line, err := json.Marshal(s)
	if err == nil {
		_, err = l.w.Write(append(line, '\n')) // the caller's writer is buffered, so the lock is held briefly
	}
	l.err = err
	return err
}
