package history

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// FamilySize is the maximum number of keys in a family. A family is a group of keys that are checked together.
const FamilySize = 3

// KeyCall is a request that reads or changes keys of one family. The changes are applied all together or not at all.
// Families are checked independently, so one call must not use keys of two families. A family with only one key has the
// name of the key.
type KeyCall struct {
	Family string
	Read   []int // positions of keys in the family, less than FamilySize
	Write  []Change
}

// Change is a change of one key. If it has a condition on the ETag, Expect is the value that has this ETag. This is
// possible because a history writes no value to the same key twice.
type Change struct {
	Key    int    // less than FamilySize
	Value  string // empty = delete
	Absent bool   // only if the key has no value
	Expect string // only if this is the value; empty = any
}

// KeyAnswer is the answer to a KeyCall.
type KeyAnswer struct {
	Values   []string // values of the keys that were read, in their order; empty = no value
	Conflict bool     // the condition of a change was not met
	Unknown  bool     // the changes may have been applied, or may still be applied at any later time
}

// family is the state of the keys of one family; an empty string is a key without a value.
type family [FamilySize]string

// keysModel returns the model of a single store that never fails. A call of unknown outcome has no end time, so the
// search may place it after all other calls, where no call sees its changes.
func keysModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return family{} },
		Step: func(s, in, out any) (bool, any) {
			possible, next := keysStep(s.(family), in.(KeyCall), out.(KeyAnswer))
			return possible, next
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	}
}

// keysStep reports whether a store with the given values could give this answer to this call. It also returns the
// values after the call. The modelled store checks all conditions before it applies the first change.
func keysStep(have family, call KeyCall, answer KeyAnswer) (bool, family) {
	for i, k := range call.Read {
		if answer.Values[i] != have[k] {
			return false, have
		}
	}
	met := true
	for _, c := range call.Write {
		if (c.Absent && have[c.Key] != "") || (c.Expect != "" && have[c.Key] != c.Expect) {
			met = false
		}
	}
	switch {
	case !met:
		return answer.Conflict || answer.Unknown, have
	case answer.Conflict:
		return false, have
	}
	for _, c := range call.Write {
		have[c.Key] = c.Value
	}
	return true, have
}

// Keys records calls on keys. It is safe for concurrent use.
type Keys struct {
	clock func() int64

	mu        sync.Mutex
	calls     map[string][]porcupine.Operation // by family; guarded by mu, as are the fields below
	values    map[taggedKey]string             // value by ETag
	etags     map[taggedKey]string             // ETag by value
	size      int
	conflicts int
	unknown   int
	broken    []string // violations that were found without a search
}

// taggedKey is a key with an ETag or with a value.
type taggedKey struct {
	family string
	key    int
	text   string
}

// NewKeys starts a history. The function clock returns the current time, like the clocks of WallClock and CallClock.
func NewKeys(clock func() int64) *Keys {
	return &Keys{clock: clock, calls: map[string][]porcupine.Operation{}, values: map[taggedKey]string{},
		etags: map[taggedKey]string{}}
}

// Now returns the current time, with which the caller records the begin of a call.
func (h *Keys) Now() int64 { return h.clock() }

// Add records a call that began at the time begin and ends now. A read of unknown outcome is not recorded, because it
// proves nothing.
func (h *Keys) Add(client int, begin int64, in KeyCall, out KeyAnswer) {
	end := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.Unknown {
		if len(in.Write) == 0 {
			return
		}
		h.unknown++
		client, end = 1_000_000+h.size, never // calls of one client must not overlap, so the call gets its own
	}
	if out.Conflict {
		h.conflicts++
	}
	h.size++
	h.calls[in.Family] = append(h.calls[in.Family],
		porcupine.Operation{ClientId: client, Input: in, Call: begin, Output: out, Return: end})
}

// ETag records that a client has seen a value with an ETag. It records a violation if the same value was seen with a
// different ETag before, or the same ETag with a different value. If the ETag or the value is empty, it does nothing.
func (h *Keys) ETag(family string, key int, etag, value string) {
	if etag == "" || value == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	byETag, byValue := taggedKey{family, key, etag}, taggedKey{family, key, value}
	if had, ok := h.values[byETag]; ok && had != value {
		h.broken = append(h.broken, fmt.Sprintf("ETag %s of %s (key %d) names both %q and %q", etag, family, key,
			brief(had), brief(value)))
	}
	if had, ok := h.etags[byValue]; ok && had != etag {
		h.broken = append(h.broken, fmt.Sprintf("the value %q of %s (key %d) has both ETag %s and ETag %s",
			brief(value), family, key, had, etag))
	}
	h.values[byETag], h.etags[byValue] = value, etag
}

// Fault records a violation that a client has seen.
func (h *Keys) Fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = append(h.broken, fmt.Sprintf(format, args...))
}

// Size returns the number of calls that were recorded, including those that Take has removed.
func (h *Keys) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// Conflicts returns the number of calls whose condition was not met.
func (h *Keys) Conflicts() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conflicts
}

// Unknown returns the number of calls of unknown outcome.
func (h *Keys) Unknown() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unknown
}

// Take removes families from the history and returns them as a new history. It also moves all recorded violations to
// the new history.
func (h *Keys) Take(families ...string) *Keys {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := NewKeys(h.clock)
	for _, f := range families {
		out.calls[f] = h.calls[f]
		out.size += len(h.calls[f])
		delete(h.calls, f)
	}
	for _, tags := range []map[taggedKey]string{h.values, h.etags} {
		maps.DeleteFunc(tags, func(k taggedKey, _ string) bool { return slices.Contains(families, k.family) })
	}
	out.broken, h.broken = h.broken, nil
	return out
}

// Check returns an error if a violation was recorded. Otherwise it searches for an order of the calls that explains the
// answers, for one family after the other. If a family has no such order, or if the search takes too long, the error is
// a *NotLinearizable. The limit is for all searches together, but each may take at least one second. If there is no
// order, the error names a file in dir with a visualization.
func (h *Keys) Check(limit time.Duration, dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.broken) > 0 {
		return fmt.Errorf("%s, and %d more", h.broken[0], len(h.broken)-1)
	}
	deadline := time.Now().Add(limit)
	for _, f := range slices.Sorted(maps.Keys(h.calls)) {
		if err := search(keysModel(), f, h.calls[f], time.Until(deadline), dir); err != nil {
			return err
		}
	}
	return nil
}

// String returns a summary.
func (h *Keys) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d operations, %d conflicts, %d of unknown outcome", h.size, h.conflicts, h.unknown)
}
