package statecopy

import (
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Report is the result of a copy, intermediate or final.
type Report struct {
	From       string `json:"from"`
	To         string `json:"to"`
	App        string `json:"app"`
	Seen       int64  `json:"seen"`     // keys in From
	Actors     int64  `json:"actors"`   // of Seen: keys of actor state
	Copied     int64  `json:"copied"`   // keys that were copied, or would be in a dry run
	Expiring   int64  `json:"expiring"` // of Copied: keys that expire
	Binary     int64  `json:"binary"`   // of Copied: bytes, not JSON
	Bytes      int64  `json:"bytes"`    // size of the copied values
	Same       int64  `json:"same"`     // To already had the same value
	Missing    int64  `json:"missing"`  // To does not have the key; only with Verify
	Differ     int64  `json:"differ"`   // To has another value, which was kept
	Refused    int64  `json:"refused"`  // To refused the value
	Unreadable int64  `json:"unreadable"`
	Extra      int64  `json:"extra"`    // only To has the key, and keeps it
	Deleted    int64  `json:"deleted"`  // only To had the key; it was deleted, or would be in a dry run
	Vanished   int64  `json:"vanished"` // deleted or expired during the copy

	Examples []Problem `json:"examples"` // the first keys with problems
	// Others counts the keys in From that do not belong to the application, by the prefix of the key. The key ""
	// counts the keys that have no prefix, and the keys of prefixes that are not counted separately.
	Others    map[string]int64 `json:"others,omitempty"`
	Verified  bool             `json:"verify"`
	DryRun    bool             `json:"dryRun"`
	Completed bool             `json:"complete"` // all keys were processed
}

// Problem describes a key that cannot be read, or that is not the same in both stores. Reason says why.
type Problem struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// Problems returns the number of keys that cannot be read, or that are not the same in both stores.
func (r *Report) Problems() int64 { return r.Missing + r.Differ + r.Refused + r.Unreadable + r.Extra }

const maxExamples = 10

// tally counts the results. It is safe for concurrent use.
type tally struct {
	mu     sync.Mutex
	report Report
	ledger io.Writer // receives every problem as a line of JSON; nil = none
}

// count changes the report.
func (t *tally) count(change func(r *Report)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.report)
}

// problem records a problem of a key. It increments a counter of the report, and writes a line to the ledger, if there
// is one. The function into selects the counter. If the ledger cannot be written, problem returns fault.Unavailable.
func (t *tally) problem(into func(r *Report) *int64, key, reason string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	*into(&t.report)++
	p := Problem{key, reason}
	if len(t.report.Examples) < maxExamples {
		t.report.Examples = append(t.report.Examples, p)
	}
	if t.ledger == nil {
		return nil
	}
	line, err := json.Marshal(p)
	if err == nil {
		_, err = t.ledger.Write(append(line, '\n')) // the caller's writer is buffered, so the lock is held briefly
	}
	if err != nil {
		return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the file of skipped keys cannot be written",
			Err: err}
	}
	return nil
}

func (t *tally) seen(page []Key) {
	t.count(func(r *Report) {
		r.Seen += int64(len(page))
		for _, k := range page {
			if strings.Contains(k.Name, state.Separator) {
				r.Actors++
			}
		}
	})
}

func (t *tally) copied(items []Item) {
	t.count(func(r *Report) {
		for _, i := range items {
			r.Copied++
			r.Bytes += int64(len(i.Value))
			if !i.Expires.IsZero() {
				r.Expiring++
			}
			if i.Binary {
				r.Binary++
			}
		}
	})
}

// now returns a copy of the report so far.
func (t *tally) now() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.report
	r.Examples, r.Others = slices.Clone(r.Examples), maps.Clone(r.Others)
	return r
}
