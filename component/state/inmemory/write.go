package inmemory

import (
	"context"
	"fmt"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Set implements state.Store. It is atomic.
func (s *Store) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	ops := make([]state.Operation, len(r.Items))
	for i, item := range r.Items {
		ops[i] = state.Operation{Kind: state.Upsert, Write: item}
	}
	return s.apply(ctx, r.RequestID, ops)
}

// Delete implements state.Store.
func (s *Store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	return s.apply(ctx, r.RequestID, []state.Operation{{Kind: state.Remove, Write: state.Write{
		Key: r.Key, ETag: r.ETag, Concurrency: r.Concurrency,
	}}})
}

// Transact implements state.Transactor.
func (s *Store) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	return s.apply(ctx, r.RequestID, r.Operations)
}

// apply executes the operations in order if all their conditions are met. The conditions are checked against the
// state before the request.
func (s *Store) apply(ctx context.Context, requestID string, ops []state.Operation) (state.Written, error) {
	id := identify(requestID, ops)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return state.Written{}, err
	}
	now := s.clock.millis()
	if etags, err := s.replies.recall(id, now); etags != nil || err != nil {
		return state.Written{ETags: clone(etags), Proof: proof()}, err
	}
	for i := range ops {
		if err := s.permit(&ops[i], now); err != nil {
			return state.Written{}, err
		}
	}
	before := s.revision
	etags := make([]string, len(ops))
	for i := range ops {
		etags[i] = s.execute(&ops[i], now)
	}
	s.groupChanges(before)
	s.replies.remember(id, clone(etags), now)
	return state.Written{ETags: etags, Proof: proof()}, nil
}

// permit checks the condition of one operation. The caller holds s.mu.
func (s *Store) permit(op *state.Operation, now int64) error {
	if op.Key == "" || op.Kind != state.Upsert && op.Kind != state.Remove {
		return &fault.Error{Code: fault.Invalid, Op: "inmemory.Store", Key: op.Key,
			Msg: "a write without a key or of an unknown kind"}
	}
	current := s.find(op.Key, now)
	switch {
	case op.ETag != "" && current == nil:
		return conflict(op.Key, "the key does not exist")
	case op.ETag != "" && current.etag() != op.ETag:
		return conflict(op.Key, "the ETag is not the current one")
	case op.ETag == "" && op.Concurrency == state.FirstWrite && op.Kind == state.Upsert && current != nil:
		return conflict(op.Key, "the key exists already")
	}
	return nil
}

func conflict(key, why string) error {
	return &fault.Error{Code: fault.Conflict, Op: "inmemory.Store", Key: key, Msg: fmt.Sprintf("key %q: %s", key, why)}
}

// execute executes one operation whose condition is met. It returns the new ETag, or "" for a deletion. The caller
// must hold s.mu for writing.
func (s *Store) execute(op *state.Operation, now int64) string {
	if op.Kind == state.Remove {
		if e, ok := s.items.Get(&entry{key: op.Key}); ok {
			s.remove(e)
			s.note(e, true, now)
		}
		return ""
	}
	s.revision++
	e := &entry{
		key: op.Key, value: op.Value, contentType: op.ContentType, revision: s.revision,
		expires: expiry(op.TTL, now),
	}
	s.put(e)
	s.note(e, false, now)
	return e.etag()
}
