package api

import (
	"context"
	"strconv"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Item is one value to write.
type Item struct {
	Key   string
	Value []byte // nil = missing, which is refused. The store may keep the slice
	// JSON reports that Value is JSON text. Other bytes can be sent in JSON as a base64 string, with the metadata
	// contentType=application/octet-stream.
	JSON        bool
	ETag        string // empty = no condition
	Metadata    map[string]string
	Concurrency state.Concurrency
	Consistency state.Consistency
}

// SaveRequest is a request to write items. If the store supports transactions, the items are written atomically.
// Otherwise they are written one by one, and the first failure ends the request.
type SaveRequest struct {
	Store string
	Items []Item
	WriteOptions
}

// Save writes items. A request without items does nothing. If items request different consistency levels, the
// strictest level applies to all of them.
func (s *State) Save(ctx context.Context, r SaveRequest) (state.Written, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return state.Written{}, failure
	}
	if err := s.CheckItems(len(r.Items)); err != nil {
		return state.Written{}, err
	}
	if failure := checkRequestID(r.RequestID, s.limits.RequestIDSize); failure != nil || len(r.Items) == 0 {
		return state.Written{}, orNil(failure)
	}
	keys, failure := s.keyspace(inst, r.Metadata)
	if failure != nil {
		return state.Written{}, failure
	}
	v := s.enter(r.Trace, &r.Session)
	set := state.SetRequest{Items: make([]state.Write, len(r.Items)), Session: r.Session, RequestID: r.RequestID}
	for i := range r.Items {
		item := &r.Items[i]
		if failure := s.writable(ctx, keys, item.Key); failure != nil {
			return state.Written{}, failure
		}
		if failure := s.convert(keys, item, r.Metadata, place{index: i, count: len(r.Items)},
			&set.Items[i]); failure != nil {
			return state.Written{}, failure
		}
		set.Items[i].Key = keys.stored(item.Key)
		set.Consistency = max(set.Consistency, resolve(inst, item.Consistency))
	}
	if set.Locks, failure = s.writeLocks(inst, &r.WriteOptions, r.Items); failure != nil {
		return state.Written{}, failure
	}
	start := s.seen.begin()
	written, err := inst.Store.Set(ctx, set)
	s.seen.state(inst.Name, observedSet, start, err)
	if err != nil {
		return state.Written{}, s.saveFailed(err, inst, set.Items, r.Items)
	}
	v.leave(&written.Proof)
	return written, nil
}

func (s *State) saveFailed(err error, inst *state.Instance, writes []state.Write, items []Item) *Error {
	i := concerned(err, writes)
	if i < 0 {
		return opSave.failed(err, inst.Name, "", "")
	}
	return opSave.failed(err, inst.Name, items[i].Key, itemText(err, inst.Name, &items[i]))
}

// itemText returns the error message for an item that could not be written. For fault.Conflict, it returns the text of
// conflictText. For other errors, the message contains the error text of the store.
func itemText(err error, store string, item *Item) string {
	if fault.Is(err, fault.Conflict) {
		return conflictText(store, item.Key, item.ETag)
	}
	return "key " + strconv.Quote(Shorten(item.Key)) + ": " + StoreText(err)
}

// concerned returns the index of the write that caused err: the write with the key that err names. It returns -1 if err
// names no key or no write has this key. If several writes have the key, concerned prefers the first one with an ETag
// or first-write concurrency.
func concerned(err error, writes []state.Write) int {
	key := fault.KeyOf(err)
	found := -1
	for i := range writes {
		if key == "" || writes[i].Key != key {
			continue
		}
		if conditional(&writes[i]) {
			return i
		}
		if found < 0 {
			found = i
		}
	}
	return found
}

func conditional(w *state.Write) bool { return w.ETag != "" || w.Concurrency == state.FirstWrite }

// place is the position of an item in a request, for messages.
type place struct{ index, count int }

// prefix returns the start of an error message about the item, such as "item 3: ". It is empty if the request has
// only one item.
func (p place) prefix() string {
	if p.count == 1 {
		return ""
	}
	return "item " + p.number() + ": "
}

func (p place) number() string { return strconv.Itoa(p.index) }

func (p place) field(name string) string { return "[" + p.number() + "]." + name }

// convert checks an item and converts it to a write. It sets all fields of *out, except the stored key. over is the
// metadata of the request, which has precedence over that of the item. at is the position of the item, for errors.
func (s *State) convert(keys keyspace, item *Item, over map[string]string, at place, out *state.Write) *Error {
	if err := keys.check(item.Key); err != nil {
		return illegalKey(keys.inst.Name, at.field("key"), at.prefix(), err)
	}
	if item.Value == nil {
		return malformed(at.prefix() + `"value" of key ` + strconv.Quote(Shorten(item.Key)) +
			" is missing (an explicit null is allowed)")
	}
	out.Value, out.ETag, out.Concurrency = item.Value, item.ETag, item.Concurrency
	out.Metadata = merge(item.Metadata, over)
	if len(out.Metadata) == 0 {
		return nil
	}
	if err := interpret(item.JSON, out); err != nil {
		return invalid(at.prefix()+"key "+strconv.Quote(Shorten(item.Key))+": ", err)
	}
	return nil
}

// interpret evaluates the metadata that every store supports: time to live and content type. If isJSON is true and the
// content type is application/octet-stream, the value is a base64 string in JSON, and interpret decodes it.
func interpret(isJSON bool, w *state.Write) (err error) {
	if w.TTL, err = state.ParseTTL(w.Metadata); err != nil {
		return err
	}
	if w.ContentType, err = state.ParseContentType(w.Metadata); err != nil {
		return err
	}
	if isJSON && w.ContentType == state.OctetStream {
		w.Value, err = state.DecodeBinary(w.Value)
	}
	return err
}

// orNil returns e as an error, or nil if e is nil. A direct conversion of a nil *Error would yield a non-nil error.
func orNil(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}
