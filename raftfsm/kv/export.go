package kv

import (
	"bytes"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/quorate/quorate/raftfsm/command"
)

// An Export reads the data for a backup in one consistent view: the records of all stores except SystemStore and
// LockStore, and the results of requests with a client id. The machine can apply entries while an Export is open. Only
// one goroutine may use an Export. The caller must call Close.
type Export struct {
	Applied, Term uint64
	Revision      uint64
	Clock         uint64

	m    *Machine
	last meta
	view *view  // nil once closed; guarded by m.exports.mu
	next []byte // first key not returned yet; nil = all were returned
}

// Exported is one part of an export. The first parts contain records, in the order of their keys. The last parts
// contain client results, in the order in which they expire. The caller may modify a part.
type Exported struct {
	Records    []command.Op // OpSet without a condition
	Remembered []command.Remembered
}

// exports are the open exports of a machine. They must be closed before the database.
type exports struct {
	mu   sync.Mutex
	open map[*Export]struct{}
}

// Export starts an export of the current state without copying the state. Until Export.Close is called, Pebble cannot
// free the disk space of overwritten records. Export returns the same errors as Get.
func (m *Machine) Export() (*Export, error) {
	if err := m.use("kv.Export"); err != nil {
		return nil, err
	}
	defer m.gate.leave()
	v := m.view()
	last, err := v.meta()
	if err != nil {
		return nil, m.unreadable("kv.Export", "cannot read the database", keep(err, v.close()))
	}
	e := &Export{
		Applied: last.applied, Term: last.term, Revision: last.revision, Clock: last.clock,
		m: m, last: last, view: v, next: []byte{last.tables().data()},
	}
	m.exports.mu.Lock()
	defer m.exports.mu.Unlock()
	if m.exports.open == nil {
		m.exports.open = map[*Export]struct{}{}
	}
	m.exports.open[e] = struct{}{}
	return e, nil
}

// Close releases the snapshot that the export reads. It is idempotent.
func (e *Export) Close() {
	e.m.exports.mu.Lock()
	defer e.m.exports.mu.Unlock()
	e.release()
}

func (e *Export) release() {
	if e.view != nil {
		_ = e.view.close() // closing a snapshot does not fail
		e.view = nil
		delete(e.m.exports.open, e)
	}
}

// close ends all exports. It is called while the machine closes, when no goroutine is inside Next.
func (x *exports) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for e := range x.open {
		e.release()
	}
}

// Next returns the next part of the export, with about size bytes. A part is smaller or empty if some of its items have
// expired. The result hasMore is true if further parts follow. Next returns the same errors as Get, and
// fault.Unavailable if the machine or the export is closed.
func (e *Export) Next(size int) (part Exported, hasMore bool, err error) {
	if err := e.m.use("kv.Export"); err != nil {
		return part, false, err
	}
	defer e.m.gate.leave()
	if e.view == nil {
		return part, false, errClosed("kv.Export")
	}
	if e.next != nil && e.next[0] == e.last.tables().data() {
		err = e.records(&part, size)
	} else if e.next != nil {
		err = e.remembered(&part, size)
	}
	if err != nil {
		return Exported{}, false, e.m.unreadable("kv.Export", "cannot read the database", err)
	}
	return part, e.next != nil, nil
}

// walk calls f for the keys of a table in order, beginning at e.next. It stops after the first key for which f returns
// true, and sets e.next to the position after that key. The result done is true if walk has reached the end of the
// table.
func (e *Export) walk(table byte, f func(it *pebble.Iterator) (enough bool, err error)) (done bool, err error) {
	return e.walkTo([]byte{table + 1}, f)
}

// walkTo works like walk for the keys from e.next up to, but not including, end.
func (e *Export) walkTo(end []byte, f func(it *pebble.Iterator) (enough bool, err error)) (done bool, err error) {
	it, err := e.view.snapshot.NewIter(&pebble.IterOptions{LowerBound: e.next, UpperBound: end})
	if err != nil {
		return false, err
	}
	defer func() { err = keep(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		enough, err := f(it)
		if err != nil {
			return false, err
		}
		if enough {
			e.next = append(bytes.Clone(it.Key()), 0)
			return false, nil
		}
	}
	return true, it.Error()
}

func (e *Export) records(part *Exported, size int) error {
	done, err := e.walk(e.last.tables().data(), func(it *pebble.Iterator) (bool, error) {
		raw, err := it.ValueAndErr()
		if err != nil {
			return false, err
		}
		r, err := parseRecord(raw)
		if err != nil {
			return false, err
		}
		store, key, ok := strings.Cut(string(it.Key()[1:]), "\x00")
		if !ok {
			return false, errRecord
		}
		if r.live(e.last.clock) && store != SystemStore && store != LockStore {
			part.Records = append(part.Records, command.Op{
				Kind: command.OpSet, Store: store, Key: key, Value: slices.Clone(r.value),
				ContentType: string(r.contentType), ExpireAt: r.expireAt,
			})
		}
		size -= len(raw) + len(it.Key())
		return size <= 0, nil
	})
	if done {
		e.next = []byte{e.last.tables().queue()}
	}
	return err
}

func (e *Export) remembered(part *Exported, size int) error {
	done, err := e.walk(e.last.tables().queue(), func(it *pebble.Iterator) (bool, error) {
		raw, err := it.ValueAndErr()
		if err != nil {
			return false, err
		}
		item, err := parseClientItem(raw)
		if err != nil {
			return false, err
		}
		number, ok := parseNumberKey(it.Key())
		if !ok || item.key == "" {
			return false, errClient
		}
		if item.expireAt > e.last.clock {
			if err := e.client(part, number, item.key); err != nil {
				return false, err
			}
		}
		size -= len(raw) + len(it.Key())
		return size <= 0, nil
	})
	if done {
		e.next = nil
	}
	return err
}

// client adds the client result of one item of the client queue to part. number and key come from that item. If a later
// request has used the same client id, nothing is added, because that request has its own item.
func (e *Export) client(part *Exported, number uint64, key string) error {
	return e.view.get([]byte(key), func(raw []byte) error {
		r, err := parseClientRow(raw)
		if err != nil || r.number != number {
			return err
		}
		part.Remembered = append(part.Remembered,
			command.Remembered{Key: key[1:], ExpireAt: r.expireAt, Fingerprint: r.fingerprint, Result: r.result})
		return nil
	})
}
