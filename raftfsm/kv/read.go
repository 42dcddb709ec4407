package kv

import (
	"bytes"
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/quorate/quorate/internal/fault"
)

// Value is what a read found under a key. The zero Value is that of an absent key.
type Value struct {
	Value       []byte // the caller's own copy
	ContentType string // empty = JSON text
	Revision    uint64
	ExpireAt    uint64 // cluster time, Unix milliseconds; 0 = never
	Found       bool
	// Pending: the key is absent only because of the time the caller gave; cluster time
	// has not come that far, so another reader may still see it. Nothing but ExpireAt is set.
	Pending bool
}

// Listed is a key that List found.
type Listed struct {
	Key      string
	Revision uint64
	ExpireAt uint64 // cluster time, Unix milliseconds; 0 = never
	Size     int    // bytes of the value
}

// Get reads one key as of the last applied entry and the time now, in milliseconds of
// cluster time; a now in the past counts as cluster time. It returns fault.Invalid for a
// store with a NUL in its name, fault.Corrupt for damaged data, fault.Unavailable when closed.
func (m *Machine) Get(store, key string, now uint64) (Value, error) {
	if err := m.useStore("kv.Get", store); err != nil {
		return Value{}, err
	}
	defer m.gate.leave()
	buf := m.buffers.Get().(*[]byte)
	defer m.buffers.Put(buf)
	for {
		live := m.live()
		*buf = appendDataKey((*buf)[:0], live, store, key)
		clock := m.Clock()
		v, sure, err := m.getNow(*buf, max(clock, now), clock)
		if err == nil && !sure {
			v, err = m.getExact(store, key, now)
		}
		switch {
		case err != nil:
			return Value{}, m.unreadable("kv.Get", "cannot read a key of store "+store, err)
		case live == m.live():
			return v, nil
		} // a restore has just replaced the tables
	}
}

// getNow reads key without a snapshot. What it finds may be newer than clock, by a batch
// that is not published yet. That matters only for a value that expires within the time
// such a batch may have moved: then sure is false.
func (m *Machine) getNow(key []byte, now, clock uint64) (v Value, sure bool, err error) {
	raw, closer, err := m.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return Value{}, true, nil
	}
	if err != nil {
		return Value{}, false, err
	}
	defer closer.Close() //nolint:errcheck // a reference to memory
	r, err := parseRecord(raw)
	if err != nil {
		return Value{}, false, err
	}
	if r.expireAt > now && r.expireAt <= m.ahead.Load() {
		return Value{}, false, nil
	}
	return r.at(now, clock), true, nil
}

func (m *Machine) getExact(store, key string, now uint64) (out Value, err error) {
	v := m.view()
	defer func() { err = keep(err, v.close()) }()
	err = v.read(appendDataKey(nil, v.live, store, key), now, &out)
	return out, err
}

// GetMany reads several keys of one store in one consistent view, in the order asked
// for, duplicates repeated. Otherwise it is Get.
func (m *Machine) GetMany(store string, keys []string, now uint64) ([]Value, error) {
	if err := m.useStore("kv.GetMany", store); err != nil {
		return nil, err
	}
	defer m.gate.leave()
	values, err := m.getMany(store, keys, now)
	if err != nil {
		return nil, m.unreadable("kv.GetMany", "cannot read keys of store "+store, err)
	}
	return values, nil
}

func (m *Machine) getMany(store string, keys []string, now uint64) (values []Value, err error) {
	v := m.view()
	defer func() { err = keep(err, v.close()) }()
	values = make([]Value, len(keys))
	var buf []byte
	for i, key := range keys {
		buf = appendDataKey(buf[:0], v.live, store, key)
		if err := v.read(buf, now, &values[i]); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// List returns up to limit keys of a store that start with prefix and come after the
// given key, in byte order, and whether there are more. Keys that have expired are left
// out. It returns fault.Invalid for a limit below 1; the other errors are those of Get.
func (m *Machine) List(store, prefix, after string, limit int, now uint64) (items []Listed, more bool, err error) {
	if limit < 1 {
		return nil, false, fault.New(fault.Invalid, "kv.List", "the limit of a list must be at least 1")
	}
	if err := m.useStore("kv.List", store); err != nil {
		return nil, false, err
	}
	defer m.gate.leave()
	items, more, err = m.list(store, prefix, after, limit, now)
	if err != nil {
		return nil, false, m.unreadable("kv.List", "cannot list store "+store, err)
	}
	return items, more, nil
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

// listBounds returns the range of data keys with the prefix that come after a key.
func listBounds(t tables, store, prefix, after string) (from, end []byte) {
	from = appendDataKey(nil, t, store, prefix)
	end = successor(from)
	if after >= prefix {
		from = append(appendDataKey(nil, t, store, after), 0)
	}
	if bytes.Compare(from, end) > 0 {
		from = end // Pebble wants its bounds in order
	}
	return from, end
}

// unreadable is the error of a failed read. A machine with damaged data is broken: it
// must neither lead nor be copied to another node. Pebble reports most damage itself, but
// not a record that is no record of ours.
func (m *Machine) unreadable(op, msg string, err error) error {
	failure := errStorage(op, msg, err)
	if failure.Code == fault.Corrupt {
		m.health.fail(failure)
	}
	return failure
}

// useStore is use for reads of a store. A NUL in its name would reach into another one.
func (m *Machine) useStore(op, store string) error {
	if strings.IndexByte(store, 0) >= 0 {
		return fault.New(fault.Invalid, op, "the name of a store has no NUL")
	}
	return m.use(op)
}

// view is a consistent look at the database. Its time is at least that of the batch it
// shows, which it reads only when it has to.
type view struct {
	m        *Machine
	snapshot *pebble.Snapshot
	live     tables
	clock    uint64
	exact    bool // clock is the view's own
}

func (m *Machine) view() *view {
	for {
		live, clock := m.live(), m.Clock()
		v := &view{m: m, snapshot: m.db.NewSnapshot(), live: live, clock: clock}
		if live == m.live() {
			return v
		}
		_ = v.snapshot.Close() // a restore has just replaced the tables; closing a snapshot does not fail
	}
}

// live is the set of tables to read. It changes before the data of the other one goes: what
// was read is good if live is still the same afterwards.
func (m *Machine) live() tables { return tables(m.tables.Load()) }

func (v *view) close() error { return v.snapshot.Close() }

// get calls f with the value of key, which must be there.
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

// settle makes the clock exact if that can matter to a value that expires then.
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

// current parses the record under an iterator and says whether it exists.
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

// at returns what a reader sees of r at now, when cluster time is clock.
func (r *record) at(now, clock uint64) Value {
	if !r.live(now) {
		return Value{ExpireAt: r.expireAt, Pending: r.live(clock)}.orNothing()
	}
	return Value{
		Value: bytes.Clone(r.value), ContentType: string(r.contentType),
		Revision: r.revision, ExpireAt: r.expireAt, Found: true,
	}
}

// orNothing is the zero Value unless v is pending.
func (v Value) orNothing() Value {
	if v.Pending {
		return v
	}
	return Value{}
}
