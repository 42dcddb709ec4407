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

// FamilySize is the number of keys that belong together: reads of several keys and
// transactions stay within a family, so that each family has a history of its own.
const FamilySize = 3

const (
	// familyLife is how many operations a family sees before clients move on to a new one:
	// short histories are checked fast, however many outcomes are unknown.
	familyLife = 150
	// families are in use at a time.
	families = 2
)

func key(f, k int) string { return fmt.Sprintf("f%d-%d", f, k) }

// family is the state of its keys: values by number, empty where a key is absent. Every
// value is written once only, so a condition on an ETag is one on the value that had it.
type family [FamilySize]string

// input is what a client asked: to read keys at one moment, or to make changes.
type input struct {
	family int
	read   []int
	writes []change
}

type change struct {
	key    int
	value  string // empty = delete
	absent bool   // only if there is no value
	expect string // only if this is the value; empty = whatever it is
}

// output is what it was told.
type output struct {
	values   []string
	conflict bool
	unknown  bool
}

// sequential is how one node that never fails would behave. An operation of unknown
// outcome returns at the end of time, so that one that never happened stands there.
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

// History is what clients asked and were told, with times. Safe for concurrent use.
type History struct {
	begun time.Time

	mu        sync.Mutex
	ops       map[int][]porcupine.Operation // by family; guarded by mu, as all below
	busy      map[int]int                   // by family, clients that have an operation of it under way
	next      int                           // families below were taken out to be checked
	size      int                           // operations, ever
	tags      map[string]map[string]string  // value by key and ETag
	conflicts int
	unknown   int
	broken    []string // promises seen broken without a search
}

// NewHistory begins now.
func NewHistory() *History {
	return &History{begun: time.Now(), ops: map[int][]porcupine.Operation{}, busy: map[int]int{}, tags: map[string]map[string]string{}}
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
	h.ops[in.family] = append(h.ops[in.family], porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// tag notes which value an ETag belongs to: it must never name another.
func (h *History) tag(key, etag, value string) {
	if etag == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if had, ok := h.tags[key][etag]; ok && had != value {
		h.broken = append(h.broken, fmt.Sprintf("ETag %s of %s names both %q and %q", etag, key, brief(had), brief(value)))
	}
	if h.tags[key] == nil {
		h.tags[key] = map[string]string{}
	}
	h.tags[key][etag] = value
}

// fault notes a broken promise.
func (h *History) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = append(h.broken, fmt.Sprintf(format, args...))
}

// Size is the number of operations so far.
func (h *History) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// enter is the family that a client is to work on now, one of those in use; leave tells
// that its operation has ended.
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

// done are the families that nobody works on any more, and that were not done before. Their
// operations are still there: one more read of each may be added before they are taken.
func (h *History) done() (from, to int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	to = h.size / familyLife * families
	for f := range h.busy {
		to = min(to, f)
	}
	return h.next, max(h.next, to)
}

// take removes the operations of families that are done, and what is known of their ETags.
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

// Check reports whether the history is linearizable. It takes at most limit; a history
// too hard for that is an error like one that is wrong. Of a wrong one a picture is left
// in dir.
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

// NotLinearizable is what is wrong with the history of one family of keys.
type NotLinearizable struct {
	Result  string // Illegal, or Unknown when the time for the search was over
	Family  int
	History []string // one operation each, in the order in which they began
	Picture string   // where a picture is, or why there is none
}

// Error is the failure in a line.
func (n *NotLinearizable) Error() string {
	return fmt.Sprintf("the history of %d operations of family %d is not linearizable (%s): %s", len(n.History), n.Family, n.Result, n.Picture)
}

// check searches for a linearization of the operations of one family.
func check(family int, ops []porcupine.Operation, limit time.Duration, dir string) error {
	result, info := porcupine.CheckOperationsVerbose(sequential(), ops, max(limit, time.Second))
	if result == porcupine.Ok {
		return nil
	}
	picture := "no picture could be made"
	if f, err := os.CreateTemp(dir, "history-*.html"); err == nil {
		if porcupine.Visualize(sequential(), info, f) == nil {
			picture = "see " + f.Name()
		}
		_ = f.Close()
	}
	return &NotLinearizable{Result: string(result), Family: family, History: tell(ops), Picture: picture}
}

// tell writes operations down, in the order in which they began.
func tell(ops []porcupine.Operation) []string {
	sorted := slices.SortedFunc(slices.Values(ops), func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
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

// brief keeps a long text readable.
func brief(text string) string {
	const most = 240
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:most], len(text))
}

// String sums the history up.
func (h *History) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d operations, %d conflicts, %d of unknown outcome", h.size, h.conflicts, h.unknown)
}
