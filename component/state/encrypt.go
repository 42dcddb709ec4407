package state

import (
	"context"

	"github.com/quorate/quorate/internal/fault"
)

// Names of component metadata about encryption at rest. The loader declares them.
const (
	MetadataPrimaryKey   = "primaryEncryptionKey"
	MetadataSecondaryKey = "secondaryEncryptionKey"
)

// Encrypted wraps a store so that values lie in it encrypted and authenticated. Keys,
// ETags and life times are not encrypted; ETags are those of the store. A value that was
// not written through these keys, or was moved to another key, is a fault.Corrupt: nothing
// of it is given out. The wrapper has exactly the abilities of the store.
func Encrypted(store Store, ring *KeyRing) Store {
	return expose(&encrypted{Store: store, ring: ring}, store)
}

type encrypted struct {
	Store
	ring *KeyRing
}

// Get implements Store.
func (e *encrypted) Get(ctx context.Context, r GetRequest) (Item, error) {
	item, err := e.Store.Get(ctx, r)
	if err != nil {
		return item, err
	}
	if err := e.open(r.Key, &item); err != nil {
		return Item{}, err
	}
	return item, nil
}

// open decrypts what was found under a key.
func (e *encrypted) open(key string, item *Item) error {
	if !item.Found() {
		return nil
	}
	value, contentType, err := e.ring.open(key, item.Value)
	if err != nil {
		return err
	}
	item.Value, item.ContentType = value, contentType
	return nil
}

// seal encrypts a write. The same write of the same request id is always the same bytes:
// a store that knows a retry by its content must know it again.
func (e *encrypted) seal(w *Write, requestID string) error {
	value, err := e.ring.seal(w.Key, requestID, w.Value, w.ContentType)
	if err != nil {
		return err
	}
	w.Value, w.ContentType = value, OctetStream
	return nil
}

// Set implements Store.
func (e *encrypted) Set(ctx context.Context, r SetRequest) (Written, error) {
	items := append([]Write(nil), r.Items...) // the request belongs to the caller
	for i := range items {
		if err := e.seal(&items[i], r.RequestID); err != nil {
			return Written{}, err
		}
	}
	r.Items = items
	return e.Store.Set(ctx, r)
}

// Transact implements Transactor.
func (e *encrypted) Transact(ctx context.Context, r TransactRequest) (Written, error) {
	ops := append([]Operation(nil), r.Operations...) // the request belongs to the caller
	for i := range ops {
		if ops[i].Kind != Upsert {
			continue
		}
		if err := e.seal(&ops[i].Write, r.RequestID); err != nil {
			return Written{}, err
		}
	}
	r.Operations = ops
	return e.Store.(Transactor).Transact(ctx, r)
}

// BulkGet implements BulkGetter. A value that cannot be decrypted fails alone.
func (e *encrypted) BulkGet(ctx context.Context, r BulkGetRequest) ([]Item, error) {
	items, err := e.Store.(BulkGetter).BulkGet(ctx, r)
	if err != nil {
		return items, err
	}
	if len(items) != len(r.Keys) {
		return nil, fault.New(fault.Internal, "state.BulkGet", "the store answered another number of items than it was asked for")
	}
	for i := range items {
		if items[i].Err != nil {
			continue
		}
		if err := e.open(r.Keys[i], &items[i]); err != nil {
			items[i] = Item{Key: items[i].Key, Err: err, Proof: items[i].Proof}
		}
	}
	return items, nil
}

// List implements Lister.
func (e *encrypted) List(ctx context.Context, r ListRequest) (Page, error) {
	page, err := e.Store.(Lister).List(ctx, r)
	for i := range page.Items {
		item := &page.Items[i]
		if err != nil || len(item.Value) == 0 { // a listing need not have values
			item.ContentType = ""
			continue
		}
		if err := e.open(item.Key, item); err != nil {
			return Page{}, err
		}
	}
	return page, err
}

// Features implements Featurer.
func (e *encrypted) Features() []Feature { return e.Store.(Featurer).Features() }
