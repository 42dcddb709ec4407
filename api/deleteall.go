package api

import (
	"context"

	"github.com/quorate/quorate/component/state"
)

// DeleteAllRequest removes several keys; of an Item its value is ignored.
type DeleteAllRequest struct {
	Store string
	Items []Item
	WriteOptions
}

// DeleteAll removes several keys: all or none where the store has transactions; otherwise
// they are removed one after the other and a failure leaves those before it removed. No
// items is no work and no error. The strictest consistency of all items counts.
func (s *State) DeleteAll(ctx context.Context, r DeleteAllRequest) (state.Written, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return state.Written{}, failure
	}
	if len(r.Items) > s.limits.BulkKeys {
		return state.Written{}, exceeded("too many keys in one delete", len(r.Items), s.limits.BulkKeys)
	}
	if _, ok := inst.Store.(state.Transactor); !ok {
		return s.deleteEach(ctx, r)
	}
	t := transaction{state: s, inst: inst, op: opDelete, limit: s.limits.BulkKeys, storedKey: func(key string) string {
		return inst.StoredKey(s.app.ID, key)
	}}
	operations := make([]Operation, len(r.Items))
	for i := range r.Items {
		operations[i] = Operation{Name: OperationDelete, Item: r.Items[i]}
	}
	return t.run(ctx, TransactRequest{Operations: operations, WriteOptions: r.WriteOptions})
}

func (s *State) deleteEach(ctx context.Context, r DeleteAllRequest) (state.Written, error) {
	var worth proof
	for i := range r.Items {
		item := &r.Items[i]
		options := r.WriteOptions
		options.Metadata = merge(item.Metadata, r.Metadata)
		if len(r.Items) > 1 {
			options.RequestID = "" // it stands for one write only
		}
		written, err := s.Delete(ctx, DeleteRequest{
			Store: r.Store, Key: item.Key, ETag: item.ETag, Concurrency: item.Concurrency, Consistency: item.Consistency, WriteOptions: options,
		})
		if err != nil {
			return state.Written{}, err
		}
		worth.add(written.Proof)
	}
	return state.Written{Proof: worth.Proof}, nil
}
