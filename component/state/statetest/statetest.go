// Package statetest is the conformance suite for state stores. A store that passes it fulfils the contract of
// component/state. The package owns the tests, not the stores.
//
// Each run uses new keys, so the suite can run against a shared store. Its goroutines end with the test that started
// them.
package statetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// Clock is the clock of the stores under test. The suite controls it.
type Clock struct {
	// Now returns the time of the stores.
	Now func() time.Time
	// Advance moves the clock forward. When it returns, reads see the new time.
	Advance func(time.Duration)
}

// Options describe the store and how thorough the tests are.
type Options struct {
	// Clock is required unless the store declares no TTL feature.
	Clock *Clock
	// LargeValue is the size of the largest value to try, in bytes; 0 = 1 MiB.
	LargeValue int
	// RequestIDs is whether the store remembers request ids, so that a retry with the same id changes nothing.
	RequestIDs bool
	// Rounds is how many histories are recorded and checked; 0 = 4.
	Rounds int
	// TextKeys is whether the store refuses keys with a NUL character.
	TextKeys bool
	// Unstorable reports whether the store refuses a key for its characters or its length; nil = the store refuses no
	// key.
	Unstorable func(key string) bool
	// MaxOperations is the largest number of items or operations in one call of the store; 0 = at least 1000.
	MaxOperations int
	// NormalisedJSON is true if the store may change white space and the order of members in JSON values.
	NormalisedJSON bool
	// SharedETags is whether items that were written together may have the same ETag.
	SharedETags bool
	// UnknownETags is whether writes return no ETags. The suite then reads them.
	UnknownETags bool
	// Level is the minimum level of strong answers; empty = state.Linearizable.
	Level state.Level
	// BulkLevel is the minimum level of strong bulk reads; empty = Level.
	BulkLevel state.Level
	// ListLevel is the minimum level of strong listings; empty = Level.
	ListLevel state.Level
}

// Run runs the suite. For each test, it calls open, runs the test with the returned store, and then closes the store.
func Run(t *testing.T, open func(t *testing.T) state.Store, o Options) {
	t.Helper()
	if o.LargeValue == 0 {
		o.LargeValue = 1 << 20
	}
	if o.Rounds == 0 {
		o.Rounds = 4
	}
	o.MaxOperations = cmp.Or(o.MaxOperations, 1000)
	o.Level = cmp.Or(o.Level, state.Linearizable)
	o.BulkLevel = cmp.Or(o.BulkLevel, o.Level)
	o.ListLevel = cmp.Or(o.ListLevel, o.Level)
	var count atomic.Int64
	run := time.Now().UnixNano()
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			s := &suite{T: t, store: open(t), options: o, app: fmt.Sprintf("suite-%x-%d", run, count.Add(1))}
			t.Cleanup(func() {
				if err := s.store.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			c.run(s)
		})
	}
}

type testCase struct {
	name string
	run  func(*suite)
}

func cases() []testCase {
	return slices.Concat(readCases(), writeCases(), matrixCases(), raceCases(), transactCases(),
		expiryCases(), bulkCases(), listCases(), lifeCases(), requestCases(), historyCases())
}

// suite is one running test.
type suite struct {
	*testing.T
	store   state.Store
	options Options
	app     string // prefix of the keys of this test

	overwritten atomic.Int64 // number of ETags made up for items that the same write overwrote
}

// key returns a stored key of this test.
func (s *suite) key(name string) string { return s.app + state.Separator + name }

// ctx returns a context for the calls of one test. Because of its timeout, a store that hangs fails this test and does
// not block the whole run.
func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), testutil.Patience)
	s.Cleanup(cancel)
	return ctx
}

// get reads a key at the strongest level.
func (s *suite) get(key string) state.Item {
	s.Helper()
	item, err := s.store.Get(s.ctx(), state.GetRequest{Key: key, ReadOptions: strong()})
	if err != nil {
		s.Fatalf("Get(%q): %v", key, err)
	}
	return item
}

func strong() state.ReadOptions { return state.ReadOptions{Consistency: state.Strong} }

// set writes items at the strongest level and returns their ETags.
func (s *suite) set(items ...state.Write) []string {
	s.Helper()
	w, err := s.trySet(items...)
	if err != nil {
		s.Fatalf("Set: %v", err)
	}
	return s.etags(w, operations(items))
}

func operations(items []state.Write) []state.Operation {
	ops := make([]state.Operation, len(items))
	for i, item := range items {
		ops[i].Write = item
	}
	return ops
}

// etags returns the ETags of a write. If the store does not return ETags, etags reads the items instead. An item that a
// later operation of the same write has overwritten cannot be read, so it gets a made-up ETag.
func (s *suite) etags(w state.Written, ops []state.Operation) []string {
	s.Helper()
	if !s.options.UnknownETags {
		if len(w.ETags) != len(ops) {
			s.Fatalf("a write of %d items gave %d ETags", len(ops), len(w.ETags))
		}
		return w.ETags
	}
	if len(w.ETags) > 0 {
		s.Fatalf("a write gave the ETags %q, which the store cannot know", w.ETags)
	}
	last, out := map[string]int{}, make([]string, len(ops))
	for i, o := range ops {
		last[o.Key] = i
	}
	for i, o := range ops {
		switch {
		case o.Kind == state.Remove:
		case last[o.Key] == i:
			out[i] = s.get(o.Key).ETag
		default:
			out[i] = fmt.Sprintf("overwritten %d", s.overwritten.Add(1))
		}
	}
	return out
}

func (s *suite) trySet(items ...state.Write) (state.Written, error) {
	return s.store.Set(s.ctx(), state.SetRequest{Items: items, Consistency: state.Strong})
}

// put writes one value and returns its ETag.
func (s *suite) put(key, value string) string {
	s.Helper()
	return s.set(state.Write{Key: key, Value: []byte(value)})[0]
}

func (s *suite) delete(r state.DeleteRequest) {
	s.Helper()
	if err := s.tryDelete(r); err != nil {
		s.Fatalf("Delete(%q): %v", r.Key, err)
	}
}

func (s *suite) tryDelete(r state.DeleteRequest) error {
	r.Consistency = state.Strong
	_, err := s.store.Delete(s.ctx(), r)
	return err
}

// wantValue checks that key holds value, and returns the item.
func (s *suite) wantValue(key, value string) state.Item {
	s.Helper()
	item := s.get(key)
	if !item.Found() {
		s.Fatalf("Get(%q) found nothing, want %q", key, value)
	}
	if string(item.Value) != value {
		s.Fatalf("Get(%q) = %q, want %q", key, item.Value, value)
	}
	return item
}

func (s *suite) wantAbsent(key string) {
	s.Helper()
	if item := s.get(key); item.Found() || len(item.Value) > 0 {
		s.Fatalf("Get(%q) = %q with ETag %q, want an absent key", key, item.Value, item.ETag)
	}
}

func (s *suite) wantConflict(err error, key string) {
	s.Helper()
	if !fault.Is(err, fault.Conflict) {
		s.Fatalf("error is %v with code %q, want code %q", err, fault.CodeOf(err), fault.Conflict)
	}
	if got := fault.KeyOf(err); got != key {
		s.Fatalf("the conflict names key %q, want %q", got, key)
	}
}

// can returns the store as A, an optional interface. It skips the test if the store does not implement A.
func can[A any](s *suite) A {
	s.Helper()
	ability, ok := s.store.(A)
	if !ok {
		s.Skipf("the store has no %T", (*A)(nil))
	}
	return ability
}

func (s *suite) hasTTL() bool {
	return slices.Contains(state.FeaturesOf(s.store), state.FeatureTTL)
}

// write returns an unconditional write.
func write(key, value string) state.Write {
	return state.Write{Key: key, Value: []byte(value)}
}
