package faulttest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// FamilySize is the number of keys in a family. A bulk read or transaction uses only keys of one family, so the
// history of each family can be checked separately.
const FamilySize = 3

const (
	// familyLife is the number of operations after which clients use a new family. Short histories can be checked
	// fast, even if the outcome of many operations is unknown.
	familyLife = 150
	// families is the number of families in use at a time.
	families = 2
)

func key(f, k int) string { return fmt.Sprintf("f%d-%d", f, k) }

// family is the state of the keys of one family: the value of each key, or "" if the key does not exist. No value is
// written twice, so each value has one ETag. The model compares values instead of ETags.
type family [FamilySize]string

// input is a request: a read of keys, or changes.
type input struct {
	family int
	read   []int
	writes []change
}

type change struct {
	key    int
	value  string // empty = delete
	absent bool   // only if there is no value
	expect string // only if this is the value; empty = any
}

// output is the response.
type output struct {
	values   []string
	conflict bool
	unknown  bool
}

// sequential returns the model for Porcupine, the linearizability checker. It behaves like a single node that never
// fails. An operation of unknown outcome has no end time, so it may take effect at any later time, or never.
func sequential() porcupine.Model {
	return porcupine.Model{
		Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
			families := map[int][]porcupine.Operation{}
			for _, o := range h {
				f := o.Input.(input).family
				families[f] = append(families[f], o)
			}
			out := make([][]porcupine.Operation, 0, len(families))
			for _, f := range families {
				out = append(out, f)
			}
			return out
		},
		Init: func() any { return family{} },
		Step: func(s, in, out any) (bool, any) { return step(s.(family), in.(input), out.(output)) },
		DescribeOperation: func(in, out any) string {
			return fmt.Sprintf("%+v -> %+v", in, out)
		},
	}
}

func step(have family, in input, out output) (bool, family) {
	for i, k := range in.read {
		if out.values[i] != have[k] {
			return false, have
		}
	}
	next, holds := have, true
	for _, w := range in.writes {
		if (w.absent && have[w.key] != "") || (w.expect != "" && have[w.key] != w.expect) {
			holds = false
		}
	}
	switch {
	case !holds:
		return out.conflict || out.unknown, have
	case out.conflict:
		return false, have
	}
	for _, w := range in.writes {
		next[w.key] = w.value
	}
	return true, next
}

// History records the requests and responses of clients, with their times. It is safe for concurrent use.
type History struct {
	begun time.Time

	mu        sync.Mutex
	ops       map[int][]porcupine.Operation // by family; guarded by mu, as are the fields below
	busy      map[int]int                   // by family, clients with an operation in flight
	next      int                           // families below this were taken out to be checked
	size      int                           // number of operations ever
	tags      map[string]map[string]string  // value by key and ETag
	conflicts int
	unknown   int
	broken    []string // violations found without a search
}

// NewHistory starts a history.
func NewHistory() *History {
	return &History{begun: time.Now(), ops: map[int][]porcupine.Operation{}, busy: map[int]int{},
		tags: map[string]map[string]string{}}
}

func (h *History) now() int64 { return int64(time.Since(h.begun)) }

func (h *History) add(client int, call int64, in input, out output) {
	ret := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.unknown {
		h.unknown++
		client, ret = 1_000_000+h.size, int64(1)<<62
	}
	if out.conflict {
		h.conflicts++
	}
	h.size++
	h.ops[in.family] = append(h.ops[in.family],
		porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// tag records the value of an ETag, which must never belong to another value.
func (h *History) tag(key, etag, value string) {
	if etag == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if had, ok := h.tags[key][etag]; ok && had != value {
		h.broken = append(h.broken, fmt.Sprintf("ETag %s of %s names both %q and %q", etag, key, brief(had),
			brief(value)))
	}
	if h.tags[key] == nil {
		h.tags[key] = map[string]string{}
	}
	h.tags[key][etag] = value
}

// fault records a violation.
func (h *History) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = append(h.broken, fmt.Sprintf(format, args...))
}

// Size returns the number of operations so far.
func (h *History) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// enter begins an operation of a client, and returns the number of the family whose keys it must use. The client calls
// leave when the operation has ended.
func (h *History) enter(random int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.size/familyLife*families + random
	h.busy[f]++
	return f
}

func (h *History) leave(f int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy[f]--; h.busy[f] == 0 {
		delete(h.busy, f)
	}
}

// done returns the finished families that are still in the history: all f with from <= f < to. A family is finished
// when clients begin no new operations on it and none is in progress.
func (h *History) done() (from, to int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	to = h.size / familyLife * families
	for f := range h.busy {
		to = min(to, f)
	}
	return h.next, max(h.next, to)
}

// take removes the families f with from <= f < to from the history, and returns them as a new history. The new history
// also gets all violations recorded so far.
func (h *History) take(from, to int) *History {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := NewHistory()
	for f := from; f < to; f++ {
		out.ops[f] = h.ops[f]
		out.size += len(h.ops[f])
		delete(h.ops, f)
		for k := range FamilySize {
			delete(h.tags, key(f, k))
		}
	}
	out.broken, h.broken = h.broken, nil
	h.next = to
	return out
}

// Check returns an error in these cases:
//
//   - A violation was recorded.
//   - The history of a family of keys is not linearizable.
//   - The search for a linearization takes too long. The searches of all families share the time limit, but each has
//     at least one second.
//
// If a search fails, Check writes a visualization of the history to a file in dir.
func (h *History) Check(limit time.Duration, dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.broken) > 0 {
		return fmt.Errorf("%s, and %d like it", h.broken[0], len(h.broken)-1)
	}
	deadline := time.Now().Add(limit)
	for _, f := range slices.Sorted(maps.Keys(h.ops)) {
		if err := check(f, h.ops[f], time.Until(deadline), dir); err != nil {
			return err
		}
	}
	return nil
}

// NotLinearizable is the violation in the history of one family.
type NotLinearizable struct {
	Result  string // Illegal, or Unknown after the time limit
	Family  int
	History []string // one line per operation, ordered by start
	Picture string   // path of a visualization, or why there is none
}

// Error returns the violation in one line.
func (n *NotLinearizable) Error() string {
	return fmt.Sprintf("the history of %d operations of family %d is not linearizable (%s): %s", len(n.History),
		n.Family, n.Result, n.Picture)
}

// check searches for a linearization of the operations of one family.
func check(family int, ops []porcupine.Operation, limit time.Duration, dir string) error {
	return search(sequential(), family, ops, limit, dir)
}

// search looks for an order of the operations that the model permits and that agrees with their times. It returns a
// NotLinearizable if there is no such order, or if it finds none within the time limit.
func search(model porcupine.Model, family int, ops []porcupine.Operation, limit time.Duration, dir string) error {
	result, info := porcupine.CheckOperationsVerbose(model, ops, max(limit, time.Second))
	if result == porcupine.Ok {
		return nil
	}
	picture := "no picture could be made"
	if f, err := os.CreateTemp(dir, "history-*.html"); err == nil {
		if porcupine.Visualize(model, info, f) == nil {
			picture = "see " + f.Name()
		}
		_ = f.Close()
	}
	return &NotLinearizable{Result: string(result), Family: family, History: tell(ops), Picture: picture}
}

// tell describes operations, ordered by start.
func tell(ops []porcupine.Operation) []string {
	sorted := slices.SortedFunc(slices.Values(ops),
		func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	out := make([]string, len(sorted))
	for i, o := range sorted {
		end := "never answered"
		if o.Return < int64(1)<<62 {
			end = time.Duration(o.Return).Round(time.Microsecond).String()
		}
		out[i] = fmt.Sprintf("%s to %s, client %d: %s", time.Duration(o.Call).Round(time.Microsecond), end, o.ClientId,
			brief(fmt.Sprintf("%+v -> %+v", o.Input, o.Output)))
	}
	return out
}

// brief shortens a long text.
func brief(text string) string {
	const most = 240
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:most], len(text))
}

// String returns a summary.
func (h *History) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d operations, %d conflicts, %d of unknown outcome", h.size, h.conflicts, h.unknown)
}
