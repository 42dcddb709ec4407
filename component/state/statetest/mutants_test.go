package statetest_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
)

// mutantVariable is the environment variable that tells a child process which broken store to test.
const mutantVariable = "QUORATE_STATETEST_MUTANT"

// broken is a correct store in which functions can replace methods. A nil function keeps the correct method.
type broken struct {
	*inmemory.Store
	get      func(context.Context, state.GetRequest) (state.Item, error)
	set      func(context.Context, state.SetRequest) (state.Written, error)
	delete   func(context.Context, state.DeleteRequest) (state.Written, error)
	transact func(context.Context, state.TransactRequest) (state.Written, error)
	bulk     func(context.Context, state.BulkGetRequest) ([]state.Item, error)
	list     func(context.Context, state.ListRequest) (state.Page, error)
	close    func() error
}

func (b *broken) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	if b.get != nil {
		return b.get(ctx, r)
	}
	return b.Store.Get(ctx, r)
}

func (b *broken) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	if b.set != nil {
		return b.set(ctx, r)
	}
	return b.Store.Set(ctx, r)
}

func (b *broken) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	if b.delete != nil {
		return b.delete(ctx, r)
	}
	return b.Store.Delete(ctx, r)
}

func (b *broken) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	if b.transact != nil {
		return b.transact(ctx, r)
	}
	return b.Store.Transact(ctx, r)
}

func (b *broken) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	if b.bulk != nil {
		return b.bulk(ctx, r)
	}
	return b.Store.BulkGet(ctx, r)
}

func (b *broken) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	if b.list != nil {
		return b.list(ctx, r)
	}
	return b.Store.List(ctx, r)
}

func (b *broken) Close() error {
	if b.close != nil {
		return b.close()
	}
	return b.Store.Close()
}

// eachItem returns a function that breaks a store: the store changes every item before it sets the item.
func eachItem(change func(*state.Write)) func(*broken) {
	return func(b *broken) {
		b.set = func(ctx context.Context, r state.SetRequest) (state.Written, error) {
			r.Items = slices.Clone(r.Items)
			for i := range r.Items {
				change(&r.Items[i])
			}
			return b.Store.Set(ctx, r)
		}
	}
}

// mutant is a broken store and the test that must detect it.
type mutant struct {
	caughtBy string
	breakIt  func(*broken)
}

func mutants() map[string]mutant {
	return map[string]mutant{
		"ignores ETags": {"ConcurrencyMatrix/Set", eachItem(func(w *state.Write) { w.ETag = "" })},
		"ignores first-write": {"OfManyCreatorsExactlyOneWins", eachItem(func(w *state.Write) {
			w.Concurrency = state.LastWrite
		})},
		"trims values": {"ValuesAreKeptByteForByte",
			eachItem(func(w *state.Write) { w.Value = bytes.TrimSpace(w.Value) })},
		"forgets content types": {"TheContentTypeIsKeptWithTheValue", eachItem(func(w *state.Write) {
			w.ContentType = ""
		})},
		"folds case": {"KeysAreKeptApart", eachItem(func(w *state.Write) { w.Key = strings.ToLower(w.Key) })},
		"ignores TTL": {"AValueExpiresAfterItsTTLAndNotBefore",
			eachItem(func(w *state.Write) { w.TTL = state.TTL{} })},
		"expires early": {"AValueExpiresAfterItsTTLAndNotBefore",
			eachItem(func(w *state.Write) { w.TTL.Seconds /= 2 })},
		"ignores instants": {"AValueExpiresAtAnInstant", eachItem(func(w *state.Write) {
			w.TTL.At = nil
		})},
		"sets item by item":        {"ASetOfSeveralItemsWritesNoneOnAConflict", setItemByItem},
		"checks as it goes":        {"ConditionsOfATransactionAreCheckedBeforeIt", transactStepByStep},
		"applies before it checks": {"ATransactionWithAFailedConditionChangesNothing", transactStepByStep},
		"reuses ETags":             {"AnETagIsNeverUsedTwice", constantETags},
		"reads an old value":       {"ConcurrentStrongCallsAreLinearizable", staleReads},
		"forgets deletes":          {"ConcurrentStrongCallsAreLinearizable", forgetDeletes},
		"deletes on a mismatch":    {"ConcurrencyMatrix/Delete", ignoreDeleteETag},
		"conflicts without a key":  {"ConcurrencyMatrix/Set", conflictWithoutKey},
		"ignores its context":      {"ACancelledCallChangesNothing", ignoreContext},
		"promises nothing":         {"AnswersSayWhatTheyAreWorth", noLevel},
		"outlives Close": {"AClosedStoreIsUnavailable",
			func(b *broken) { b.close = func() error { return nil } }},
		"closes with an error":  {"CloseIsIdempotent", func(b *broken) { b.close = closeOnce(b) }},
		"sorts bulk answers":    {"BulkAnswersComeInRequestOrderWithDuplicates", sortBulk},
		"drops bulk duplicates": {"BulkAnswersComeInRequestOrderWithDuplicates", compactBulk},
		"lists its neighbours":  {"AListingKeepsToItsPrefix", listNeighbours},
		"skips between pages":   {"AListingCanBeReadInPagesOfAnySize", skipBetweenPages},
		"does retries twice":    {"ARetriedRequestIsDoneOnce", forgetRequestIDs},
	}
}

func setItemByItem(b *broken) {
	b.set = func(ctx context.Context, r state.SetRequest) (state.Written, error) {
		var all state.Written
		for _, item := range r.Items {
			w, err := b.Store.Set(ctx, state.SetRequest{Items: []state.Write{item}})
			if err != nil {
				return w, err
			}
			all.ETags, all.Proof = append(all.ETags, w.ETags...), w.Proof
		}
		return all, nil
	}
}

func transactStepByStep(b *broken) {
	b.transact = func(ctx context.Context, r state.TransactRequest) (state.Written, error) {
		var all state.Written
		for _, op := range r.Operations {
			w, err := b.Store.Transact(ctx, state.TransactRequest{Operations: []state.Operation{op}})
			if err != nil {
				return w, err
			}
			all.ETags, all.Proof = append(all.ETags, w.ETags...), w.Proof
		}
		return all, nil
	}
}

func constantETags(b *broken) {
	b.set = func(ctx context.Context, r state.SetRequest) (state.Written, error) {
		w, err := b.Store.Set(ctx, r)
		for i := range w.ETags {
			w.ETags[i] = "1"
		}
		return w, err
	}
}

func staleReads(b *broken) {
	var mu sync.Mutex
	seen := map[string]state.Item{}
	b.get = func(ctx context.Context, r state.GetRequest) (state.Item, error) {
		mu.Lock()
		defer mu.Unlock()
		if old, ok := seen[r.Key]; ok {
			delete(seen, r.Key)
			return old, nil
		}
		item, err := b.Store.Get(ctx, r)
		seen[r.Key] = item
		return item, err
	}
}

func forgetDeletes(b *broken) {
	b.delete = func(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
		return state.Written{Proof: state.Proof{Level: state.Linearizable}}, nil
	}
}

func ignoreDeleteETag(b *broken) {
	b.delete = func(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
		r.ETag = ""
		return b.Store.Delete(ctx, r)
	}
}

func conflictWithoutKey(b *broken) {
	b.set = func(ctx context.Context, r state.SetRequest) (state.Written, error) {
		w, err := b.Store.Set(ctx, r)
		if fault.Is(err, fault.Conflict) {
			err = fault.New(fault.Conflict, "broken.Set", "some key")
		}
		return w, err
	}
}

func ignoreContext(b *broken) {
	b.set = func(_ context.Context, r state.SetRequest) (state.Written, error) {
		return b.Store.Set(context.Background(), r)
	}
}

func noLevel(b *broken) {
	b.get = func(ctx context.Context, r state.GetRequest) (state.Item, error) {
		item, err := b.Store.Get(ctx, r)
		item.Proof = state.Proof{}
		return item, err
	}
}

func closeOnce(b *broken) func() error {
	closed := false
	return func() error {
		if closed {
			return fault.New(fault.Internal, "broken.Close", "closed twice")
		}
		closed = true
		return b.Store.Close()
	}
}

func sortBulk(b *broken) {
	b.bulk = func(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
		r.Keys = slices.Sorted(slices.Values(r.Keys))
		return b.Store.BulkGet(ctx, r)
	}
}

func compactBulk(b *broken) {
	b.bulk = func(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
		r.Keys = slices.Compact(slices.Clone(r.Keys))
		return b.Store.BulkGet(ctx, r)
	}
}

func listNeighbours(b *broken) {
	b.list = func(ctx context.Context, r state.ListRequest) (state.Page, error) {
		r.Prefix = r.Prefix[:len(r.Prefix)-1]
		return b.Store.List(ctx, r)
	}
}

func skipBetweenPages(b *broken) {
	b.list = func(ctx context.Context, r state.ListRequest) (state.Page, error) {
		if r.After != "" {
			r.After += "0"
			r.After = strings.Replace(r.After, "k09", "k10", 1)
		}
		return b.Store.List(ctx, r)
	}
}

func forgetRequestIDs(b *broken) {
	b.delete = func(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
		r.RequestID, r.ETag = "", ""
		return b.Store.Delete(ctx, r)
	}
}

// TestMutant runs the suite on a broken store. It runs and fails only in a child process.
func TestMutant(t *testing.T) {
	m, ok := mutants()[os.Getenv(mutantVariable)]
	if !ok {
		t.Skip("run by TestSuite_DetectsBrokenStores")
	}
	var mu sync.Mutex
	now := time.Unix(1_900_000_000, 0)
	clock := &statetest.Clock{
		Now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		},
		Advance: func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(d)
		},
	}
	statetest.Run(t, func(*testing.T) state.Store {
		b := &broken{Store: inmemory.Open(inmemory.Options{Now: clock.Now})}
		m.breakIt(b)
		return b
	}, statetest.Options{Clock: clock, RequestIDs: true})
}

func TestSuite_DetectsBrokenStores(t *testing.T) {
	if os.Getenv(mutantVariable) != "" {
		t.Skip("this is a child process")
	}
	for name, m := range mutants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pattern := "^TestMutant$/^" + strings.ReplaceAll(m.caughtBy, "/", "$/^") + "$"
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v")
			// A suite that fails leaves pictures of histories in the temporary directory.
			child.Env = append(os.Environ(), mutantVariable+"="+name, "TMPDIR="+t.TempDir())
			out, err := child.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestMutant/"+m.caughtBy) {
				t.Errorf("%s did not notice (%v):\n%s", m.caughtBy, err, out)
			}
		})
	}
}
