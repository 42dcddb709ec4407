package kv

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/quorate/quorate/internal/fault"
)

// Value is the result of reading a key. The zero Value is that of an absent key.
type Value struct {
	Value       []byte // the caller's own copy
	Size        int    // size of the value in bytes if GetWithin did not copy it; Value is nil then
	ContentType string // empty = JSON text
	Revision    uint64
	ExpireAt    uint64 // cluster time, Unix milliseconds; 0 = never
	Found       bool
	// Pending is true if the key has expired at the caller's time but not yet at cluster time. Another reader may
	// still see the key. Of the other fields, only ExpireAt is set then.
	Pending bool
}

// Listed is a key that List found.
type Listed struct {
	Key      string
	Revision uint64
	ExpireAt uint64 // cluster time, Unix milliseconds; 0 = never
	Size     int    // bytes of the value
}

// Get reads one key. The result includes every applied entry. now is the caller's cluster time in milliseconds. A key
// counts as absent if it has expired by the caller's cluster time or by that of the machine.
//
// Get returns fault.Invalid for a store name with a NUL byte, and fault.Corrupt for damaged data. It returns
// fault.Unavailable if the machine is closed, and fault.Internal or fault.Unavailable if the storage has failed.
func (m *Machine) Get(store, key string, now uint64) (Value, error) {
	return m.GetWithin(store, key, now, 0)
}

// GetWithin works like Get. For a value larger than maxBytes, it may return only the size. If maxBytes is 0, there is
// no limit.
func (m *Machine) GetWithin(store, key string, now uint64, maxBytes int64) (Value, error) {
	if err := m.useStore("kv.Get", store); err != nil {
		return Value{}, err
	}
	defer m.gate.leave()
	buf := m.buffers.Get().(*[]byte)
	defer m.buffers.Put(buf)
	for {
		era := m.readEra()
		*buf = appendDataKey((*buf)[:0], era.tables(), store, key)
		clock := m.Clock()
		v, sure, err := m.getNow(*buf, max(clock, now), clock, maxBytes)
		if err == nil && !sure {
			v, err = m.getExact(store, key, now)
		}
		switch {
		case err != nil:
			return Value{}, m.unreadable("kv.Get", "cannot read a key of store "+store, err)
		case era == m.readEra():
			return v, nil
			// Otherwise a restore has just replaced the tables, and the loop reads again.
		}
	}
}

// getNow reads one key without a snapshot. clock is the published cluster time. If a batch that is being written may
// make the value expire, sure is false, and the caller must read the key again from a snapshot.
func (m *Machine) getNow(key []byte, now, clock uint64, maxBytes int64) (v Value, sure bool, err error) {
	raw, batches := m.reads.get(key)
	cached := raw != nil
	if !cached {
		var closer io.Closer
		raw, closer, err = m.db.Get(key)
		if errors.Is(err, pebble.ErrNotFound) {
			return Value{}, true, nil
		}
		if err != nil {
			return Value{}, false, err
		}
		defer closer.Close() //nolint:errcheck // a reference to memory
	}
	r, err := parseRecord(raw)
	if err != nil {
		return Value{}, false, err
	}
	if !cached {
		m.reads.put(key, raw, batches)
	}
	if r.expireAt > now && r.expireAt <= m.ahead.Load() {
		return Value{}, false, nil
	}
	if size := len(r.value); maxBytes > 0 && int64(size) > maxBytes {
		r.value = nil
		v := r.at(now, clock)
		if v.Found {
			v.Value, v.Size = nil, size
		}
		return v, true, nil
	}
	return r.at(now, clock), true, nil
}

func (m *Machine) getExact(store, key string, now uint64) (out Value, err error) {
	v := m.view()
	defer func() { err = keep(err, v.close()) }()
	err = v.read(appendDataKey(nil, v.live, store, key), now, &out)
	return out, err
}

// GetMany reads several keys of one store in one consistent view. The results are in the order of the keys, and a key
// that occurs twice has two results. Expired keys and errors are handled as in Get.
func (m *Machine) GetMany(store string, keys []string, now uint64) ([]Value, error) {
	return m.GetManyWithin(store, keys, now, 0)
}

// GetManyWithin works like GetMany. It returns fault.TooLarge if all values together are larger than maxBytes. If
// maxBytes is 0, there is no limit.
func (m *Machine) GetManyWithin(store string, keys []string, now uint64, maxBytes int64) ([]Value, error) {
	if err := m.useStore("kv.GetMany", store); err != nil {
		return nil, err
	}
	defer m.gate.leave()
	values, err := m.getMany(store, keys, now, maxBytes)
	if fault.Is(err, fault.TooLarge) {
		return nil, err
	}
	if err != nil {
		return nil, m.unreadable("kv.GetMany", "cannot read keys of store "+store, err)
	}
	return values, nil
}

func (m *Machine) getMany(store string, keys []string, now uint64, maxBytes int64) (values []Value, err error) {
	v := m.view()
	defer func() { err = keep(err, v.close()) }()
	values = make([]Value, len(keys))
	var buf []byte
	var size int64
	for i, key := range keys {
		buf = appendDataKey(buf[:0], v.live, store, key)
		if err := v.read(buf, now, &values[i]); err != nil {
			return nil, err
		}
		if size += int64(len(values[i].Value)); maxBytes > 0 && size > maxBytes {
			return nil, fault.New(fault.TooLarge, "kv.GetMany", "the values are too large to be read together")
		}
	}
	return values, nil
}

// List returns up to limit keys with the given prefix, in byte order. If after is not empty, the list begins with the
// first key greater than it. Expired keys are left out, by the same rule as in Get. hasMore is true if there are
// further keys.
//
// List returns fault.Invalid if limit is below 1. Its other errors are those of Get.
func (m *Machine) List(store, prefix, after string, limit int, now uint64) (items []Listed, hasMore bool, err error) {
	if limit < 1 {
		return nil, false, fault.New(fault.Invalid, "kv.List", "the limit of a list must be at least 1")
	}
	if err := m.useStore("kv.List", store); err != nil {
		return nil, false, err
	}
	defer m.gate.leave()
	items, hasMore, err = m.list(store, prefix, after, limit, now)
	if err != nil {
		return nil, false, m.unreadable("kv.List", "cannot list store "+store, err)
	}
	return items, hasMore, nil
}

func (m *Machine) list(store, prefix, after string, limit int, now uint64) (items []Listed, more bool, err error) {
	v := m.view()
	defer func() { err = keep(err, v.close()) }()
	from, end := listBounds(v.live, store, prefix, after)
	it, err := v.snapshot.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: end})
	if err != nil {
		return nil, false, err
	}
	defer func() { err = keep(err, it.Close()) }()
	strip := dataKeySize(store, "")
	for ok := it.First(); ok; ok = it.Next() {
		r, live, err := v.current(it, now)
		if err != nil {
			return nil, false, err
		}
		if !live {
			continue
		}
		if len(items) == limit {
			return items, true, nil
		}
		items = append(items, Listed{
			Key: string(it.Key()[strip:]), Revision: r.revision, ExpireAt: r.expireAt, Size: len(r.value),
		})
	}
	return items, false, it.Error()
}

// listBounds returns the range of data keys that List reads for these arguments.
func listBounds(t tables, store, prefix, after string) (from, end []byte) {
	from = appendDataKey(nil, t, store, prefix)
	end = successor(from)
	if after >= prefix {
		from = append(appendDataKey(nil, t, store, after), 0)
	}
	if bytes.Compare(from, end) > 0 {
		from = end // Pebble requires ordered bounds
	}
	return from, end
}

// unreadable returns the error for a failed read. If the data is damaged, it also marks the machine as broken, so
// that this server neither leads nor sends a copy of the data.
func (m *Machine) unreadable(op, msg string, err error) error {
	failure := errStorage(op, msg, err)
	if failure.Code == fault.Corrupt {
		m.health.fail(failure)
	}
	return failure
}

// useStore works like use. It also returns fault.Invalid for a store name with a NUL byte, because such a name could
// select keys of another store.
func (m *Machine) useStore(op, store string) error {
	if strings.IndexByte(store, 0) >= 0 {
		return fault.New(fault.Invalid, op, "the name of a store has no NUL")
	}
	return m.use(op)
}

// view is a consistent snapshot of the database. clock is a lower bound for the cluster time of the snapshot. The exact
// time is read from the database only if the expiry of a value makes it necessary.
type view struct {
	m        *Machine
	snapshot *pebble.Snapshot
	live     tables
	clock    uint64
	exact    bool // clock is the cluster time of the snapshot, not only a lower bound
}

func (m *Machine) view() *view {
	for {
		era, clock := m.readEra(), m.Clock()
		v := &view{m: m, snapshot: m.db.NewSnapshot(), live: era.tables(), clock: clock}
		if era == m.readEra() {
			return v
		}
		_ = v.snapshot.Close() // a restore has just replaced the tables; closing a snapshot does not fail
	}
}

// readEra returns the era of the tables that readers use. A caller that reads data calls readEra before and after the
// read. If both calls return the same era, no restore has replaced the tables during the read.
func (m *Machine) readEra() era { return era(m.era.Load()) }

func (v *view) close() error { return v.snapshot.Close() }

// get calls f with the value of key. It returns pebble.ErrNotFound if the key does not exist.
func (v *view) get(key []byte, f func(raw []byte) error) error {
	raw, closer, err := v.snapshot.Get(key)
	if err != nil {
		return err
	}
	defer closer.Close() //nolint:errcheck // a reference to memory
	return f(raw)
}

func (v *view) meta() (last meta, err error) {
	err = v.get(metaKey(), func(raw []byte) error {
		last, err = parseMeta(raw)
		return err
	})
	return last, err
}

// settle makes the clock exact if that can matter for a value that expires at expireAt.
func (v *view) settle(expireAt uint64) error {
	if v.exact || expireAt <= v.clock || expireAt > v.m.ahead.Load() {
		return nil
	}
	last, err := v.meta()
	v.clock, v.exact = last.clock, true
	return err
}

func (v *view) read(key []byte, now uint64, out *Value) error {
	err := v.get(key, func(raw []byte) error {
		r, err := parseRecord(raw)
		if err != nil {
			return err
		}
		if err := v.settle(r.expireAt); err != nil {
			return err
		}
		*out = r.at(max(now, v.clock), v.clock)
		return nil
	})
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	return err
}

// current parses the record at the position of an iterator, and reports whether the record is live.
func (v *view) current(it *pebble.Iterator, now uint64) (r record, live bool, err error) {
	raw, err := it.ValueAndErr()
	if err != nil {
		return record{}, false, err
	}
	if r, err = parseRecord(raw); err != nil {
		return record{}, false, err
	}
	err = v.settle(r.expireAt)
	return r, r.live(max(now, v.clock)), err
}

func (r *record) live(now uint64) bool { return r.expireAt == 0 || r.expireAt > now }

// at returns the value that a reader sees in r. now is the cluster time of the reader, and clock is that of the
// machine.
func (r *record) at(now, clock uint64) Value {
	if !r.live(now) {
		return Value{ExpireAt: r.expireAt, Pending: r.live(clock)}.orNothing()
	}
	return Value{
		Value: bytes.Clone(r.value), ContentType: string(r.contentType),
		Revision: r.revision, ExpireAt: r.expireAt, Found: true,
	}
}

// orNothing returns v if v.Pending is true, and otherwise the zero Value.
func (v Value) orNothing() Value {
	if v.Pending {
		return v
	}
	return Value{}
}
