package api

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// BulkGetRequest reads several keys; duplicates are allowed.
type BulkGetRequest struct {
	Store       string
	Keys        []string
	Parallelism int   // most concurrent reads; 0 or less = Limits.Parallelism
	MaxBytes    int64 // limit of the total size of the values; 0 = no limit
	ReadOptions
}

// Bulk is the answer of a bulk read: one item per key in the order of the request.
type Bulk struct {
	Items       []state.Item // Err, if set, is an *Error
	state.Proof              // the weakest level and the greatest age of all items
}

// BulkGet reads several keys. The item of a key that cannot be read has its own error.
func (s *State) BulkGet(ctx context.Context, r BulkGetRequest) (Bulk, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return Bulk{}, failure
	}
	if err := s.CheckKeys(len(r.Keys)); err != nil {
		return Bulk{}, err
	}
	v := s.enter(r.Trace, &r.Session)
	keys, failure := s.keyspace(inst, r.Metadata)
	if failure != nil {
		return Bulk{}, failure
	}
	options, failure := readOptions(inst, r.ReadOptions)
	if failure != nil || len(r.Keys) == 0 {
		return Bulk{}, orNil(failure)
	}
	request := state.BulkGetRequest{Keys: make([]string, len(r.Keys)), Parallelism: r.Parallelism,
		MaxBytes: r.MaxBytes, ReadOptions: options}
	for i, key := range r.Keys {
		if err := keys.check(key); err != nil {
			at := place{index: i, count: len(r.Keys)}
			return Bulk{}, illegalKey(inst.Name, "keys["+at.number()+"]", at.prefix(), err)
		}
		request.Keys[i] = keys.stored(key)
	}
	start := s.seen.begin()
	items, err := s.read(ctx, inst.Store, request)
	s.seen.state(inst.Name, observedBulkGet, start, err)
	if err != nil {
		return Bulk{}, opBulkGet.failed(err, inst.Name, "", "")
	}
	out := answer(inst.Name, r.Keys, items)
	v.leave(&out.Proof)
	return out, nil
}

// answer converts the items of a store to the answer of a bulk read. It replaces the stored keys by keys, the keys of
// the application, and converts errors to public errors.
func answer(store string, keys []string, items []state.Item) Bulk {
	var worth proof
	for i := range items {
		items[i].Key = keys[i]
		if items[i].Err != nil {
			items[i].Err = opGet.failed(items[i].Err, store, keys[i], "")
			continue
		}
		worth.add(items[i].Proof)
	}
	return Bulk{Items: items, Proof: worth.Proof}
}

// read reads all keys in one call if the store supports bulk reads. Otherwise it reads them with one call per key.
func (s *State) read(ctx context.Context, store state.Store, r state.BulkGetRequest) ([]state.Item, error) {
	bulk := state.AbilitiesOf(store).BulkGetter
	if bulk == nil {
		return s.readEach(ctx, store, r)
	}
	items, err := bulk.BulkGet(ctx, r)
	if err == nil && len(items) != len(r.Keys) {
		err = fault.New(fault.Internal, "api.BulkGet",
			"the store returned a different number of items than requested")
	}
	return items, err
}

// readEach reads each key with a separate call, several of them concurrently. If the read of one key fails, the error
// is in the item of this key. readEach returns an error if ctx ends, or if the values exceed r.MaxBytes in total.
func (s *State) readEach(ctx context.Context, store state.Store, r state.BulkGetRequest) ([]state.Item, error) {
	workers := min(len(r.Keys), s.limits.Parallelism)
	if r.Parallelism > 0 {
		workers = min(workers, r.Parallelism)
	}
	items := make([]state.Item, len(r.Keys))
	var next, bytes atomic.Int64
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(items)) && ctx.Err() == nil &&
				(r.MaxBytes <= 0 || bytes.Load() <= r.MaxBytes); i = next.Add(1) - 1 {
				item, err := store.Get(ctx, state.GetRequest{Key: r.Keys[i], ReadOptions: r.ReadOptions})
				item.Err = err
				bytes.Add(int64(len(item.Value)))
				items[i] = item
			}
		})
	}
	running.Wait()
	if r.MaxBytes > 0 && bytes.Load() > r.MaxBytes {
		return nil, state.ValuesTooLarge("api.BulkGet", r.MaxBytes)
	}
	return items, ctx.Err()
}

// proof combines the proofs of several reads or writes into one, with the weakest consistency level and the greatest
// age. It keeps only the last session token, because a store with sessions returns the same token for all items of a
// bulk read.
type proof struct {
	some bool
	state.Proof
}

func (p *proof) add(q state.Proof) {
	if !p.some {
		p.some, p.Proof = true, q
		return
	}
	if rank(q.Level) < rank(p.Level) {
		p.Level = q.Level
	}
	p.Age = older(p.Age, q.Age)
	if q.Session != "" {
		p.Session = q.Session
	}
}

func rank(l state.Level) int {
	switch l {
	case state.Linearizable:
		return 3
	case state.SessionLevel:
		return 2
	case state.Bounded:
		return 1
	default:
		return 0
	}
}

// older returns the greater age. A negative age is unknown and counts as the greatest.
func older(a, b time.Duration) time.Duration {
	if a < 0 || b < 0 {
		return -1
	}
	return max(a, b)
}
