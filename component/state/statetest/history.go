package statetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/history"
)

func historyCases() []testCase {
	return []testCase{{"ConcurrentStrongCallsAreLinearizable", linearizable}}
}

// keyCall is one call on one key.
type keyCall struct {
	key   string
	kind  byte // 'g' get, 's' set, 'c' create, 'u' update with an ETag, 'd' delete, 'x' delete with an ETag
	value string
	seen  seenValue // for kinds 'u' and 'x': the value with its ETag
}

// seenValue is a value as a client has read or written it.
type seenValue struct{ value, etag string }

// record returns the call in the form that package history checks.
func (c keyCall) record() history.KeyCall {
	change := history.Change{Value: c.value}
	switch c.kind {
	case 'g':
		return history.KeyCall{Family: c.key, Read: []int{0}}
	case 'c':
		change.Absent = true
	case 'u':
		change.Expect = c.seen.value
	case 'd':
		change.Value = ""
	case 'x':
		change.Value, change.Expect = "", c.seen.value
	}
	return history.KeyCall{Family: c.key, Write: []history.Change{change}}
}

// perform makes a call with strong consistency. It returns the value that the call has read or written, with its ETag
// if the store returns ETags.
func (c keyCall) perform(ctx context.Context, store state.Store) (seenValue, error) {
	w := state.Write{Key: c.key, Value: []byte(strconv.Quote(c.value))}
	switch c.kind {
	case 'g':
		item, err := store.Get(ctx, state.GetRequest{Key: c.key, ReadOptions: strong()})
		if err != nil || !item.Found() {
			return seenValue{}, err
		}
		value, err := strconv.Unquote(string(item.Value))
		return seenValue{value, item.ETag}, err
	case 'd', 'x':
		_, err := store.Delete(ctx, state.DeleteRequest{Key: c.key, ETag: c.etag(), Consistency: state.Strong})
		return seenValue{}, err
	case 'c':
		w.Concurrency = state.FirstWrite
	case 'u':
		w.ETag = c.etag()
	}
	written, err := store.Set(ctx, state.SetRequest{Items: []state.Write{w}, Consistency: state.Strong})
	switch {
	case err != nil || len(written.ETags) == 0:
		return seenValue{value: c.value}, err
	case len(written.ETags) == 1:
		return seenValue{c.value, written.ETags[0]}, nil
	}
	return seenValue{}, errors.New("a write of one item returned several ETags")
}

// etag returns the ETag that the call is conditional on.
func (c keyCall) etag() string {
	if c.kind == 'u' || c.kind == 'x' {
		return c.seen.etag
	}
	return ""
}

// linearizable runs concurrent clients on a few keys and records their calls. It fails the test unless the history is
// linearizable, that is, unless some sequential order of the calls explains all answers.
func linearizable(s *suite) {
	const clients, calls, keys = 6, 40, 3
	for round := range s.options.Rounds {
		h := history.NewKeys(history.WallClock())
		var wg sync.WaitGroup
		for client := range clients {
			source := rand.New(rand.NewPCG(uint64(round), uint64(client)))
			wg.Go(func() { s.record(h, client, calls, keys, round, source) })
		}
		wg.Wait()
		if s.Failed() {
			return
		}
		if err := h.Check(time.Minute, os.TempDir()); err != nil {
			s.Fatalf("round %d: %v", round, err)
		}
	}
}

// record makes random calls and records them.
func (s *suite) record(h *history.Keys, id, calls, keys, round int, source *rand.Rand) {
	seen := make([]seenValue, keys)
	for i := range calls {
		k := source.IntN(keys)
		in := keyCall{key: s.key(fmt.Sprintf("round %d key %d", round, k)), kind: "ggsscuuudx"[source.IntN(10)],
			value: fmt.Sprintf("%d-%d", id, i), seen: seen[k]}
		if in.seen.etag == "" && (in.kind == 'u' || in.kind == 'x') {
			in.kind = 'g'
		}
		begin := h.Now()
		got, err := in.perform(s.ctx(), s.store)
		conflict := fault.Is(err, fault.Conflict)
		if err != nil && !conflict { // no other error may happen in a store without faults
			s.Errorf("a call failed: %v", err)
			return
		}
		h.Add(id, begin, in.record(), history.KeyAnswer{Values: []string{got.value}, Conflict: conflict})
		if conflict || got.value == "" {
			continue
		}
		if got.etag == "" && (in.kind == 'g' || !s.options.UnknownETags) {
			s.Errorf("a call of kind %c returned no ETag", in.kind)
		}
		h.ETag(in.key, 0, got.etag, got.value)
		if got.etag != "" {
			seen[k] = got
		}
	}
}
