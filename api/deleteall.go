package api

import (
	"context"
	"slices"

	"github.com/quorate/quorate/component/state"
)

// DeleteAllRequest removes several keys. The values of the items are ignored.
type DeleteAllRequest struct {
	Store string
	Items []Item
	WriteOptions
}

// DeleteAll deletes several keys. A request without keys does nothing.
//
// If the store supports transactions, DeleteAll deletes either all keys or none, with the strictest consistency level
// among the items. Otherwise it deletes the keys one by one, each with its own consistency level, and stops at the
// first failure.
func (s *State) DeleteAll(ctx context.Context, r DeleteAllRequest) (state.Written, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return state.Written{}, failure
	}
	if err := s.CheckDeletes(len(r.Items)); err != nil {
		return state.Written{}, err
	}
	if state.AbilitiesOf(inst.Store).Transactor == nil {
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
		if text, found := item.Metadata[MetadataLock]; found { // otherwise a token in r.Metadata would replace it
			options.Locks = append(slices.Clip(r.Locks), text)
		}
		options.Metadata = merge(item.Metadata, r.Metadata)
		if len(r.Items) > 1 {
			options.RequestID = "" // the id identifies one write only
		}
		written, err := s.Delete(ctx, DeleteRequest{
			Store: r.Store, Key: item.Key, ETag: item.ETag, Concurrency: item.Concurrency,
			Consistency: item.Consistency, WriteOptions: options,
		})
		if err != nil {
			return state.Written{}, err
		}
		worth.add(written.Proof)
	}
	return state.Written{Proof: worth.Proof}, nil
}
