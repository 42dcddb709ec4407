package state

import (
	"context"

	"github.com/quorate/quorate/internal/fault"
)

// Names of component metadata for encryption at rest. The loader declares them.
const (
	MetadataPrimaryKey   = "primaryEncryptionKey"
	MetadataSecondaryKey = "secondaryEncryptionKey"
)

// Encrypted returns a wrapper that encrypts and authenticates the values in a store. Keys, expiry times and ETags are
// not encrypted. The wrapper has the same Abilities as the store.
//
// A read returns fault.Unimplemented if a newer version of Quorate has encrypted the value in an unknown format. It
// returns fault.Corrupt in these cases:
//
//   - the value is not encrypted, or was damaged
//   - the value was copied from another stored key
//   - no key in ring can decrypt the value
func Encrypted(store Store, ring *KeyRing) Store {
	below := AbilitiesOf(store)
	return wrap(&encrypted{Store: store, below: below, ring: ring}, below)
}

type encrypted struct {
	Store
	below Abilities // abilities of the wrapped store
	ring  *KeyRing
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

// open decrypts the value of a key.
func (e *encrypted) open(key string, item *Item) error {
	if !item.Found() || item.Size > 0 {
		return nil
	}
	value, contentType, err := e.ring.open(key, item.Value)
	if err != nil {
		return err
	}
	item.Value, item.ContentType = value, contentType
	return nil
}

// seal encrypts the value of a write. If a write is retried with the same request id, seal produces the same bytes
// again. A store needs this if it compares the contents to recognise a retry.
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
	return e.below.Transactor.Transact(ctx, r)
}

// BulkGet implements BulkGetter. If a value cannot be decrypted, BulkGet sets Err of its item and still returns the
// other items.
func (e *encrypted) BulkGet(ctx context.Context, r BulkGetRequest) ([]Item, error) {
	items, err := e.below.BulkGetter.BulkGet(ctx, r)
	if err != nil {
		return items, err
	}
	if len(items) != len(r.Keys) {
		return nil, fault.New(fault.Internal, "state.BulkGet",
			"the store returned another number of items than was requested")
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

// List implements Lister. The items have no values, so List also succeeds if a value cannot be decrypted.
func (e *encrypted) List(ctx context.Context, r ListRequest) (Page, error) {
	page, err := e.below.Lister.List(ctx, r)
	for i := range page.Items {
		page.Items[i].Value, page.Items[i].ContentType = nil, ""
	}
	return page, err
}

// Features implements Featurer.
func (e *encrypted) Features() []Feature { return e.below.Featurer.Features() }
