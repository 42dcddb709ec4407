package kv

import (
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// Change is one change of one key.
type Change struct {
	Revision    uint64 // of the new record, or of the removal
	Key         string
	Deleted     bool
	Expired     bool // Deleted because the key had expired
	Last        bool // the last change of its request in this history
	Value       []byte
	ContentType string // empty = JSON text
	ExpireAt    uint64 // cluster time, Unix milliseconds; 0 = never
}

// Size returns about how many bytes of memory the change takes.
func (c *Change) Size() int { return len(c.Key) + len(c.Value) + len(c.ContentType) + 128 }

// Changes is a part of a history.
type Changes struct {
	Items    []Change
	Kept     bool   // there is a history; otherwise only Revision and Restored are set
	ID       uint64 // differs from that of any other history of the machine
	Floor    uint64 // every change with a greater revision is kept
	Until    uint64 // cluster time at which the history is switched off
	Revision uint64 // newest revision of the machine
	Restored uint64 // index of the last restore; 0 = none
	// Seen is the revision up to which Items is complete: Items has every change above the requested revision, up to
	// Seen. It is 0, and Items is empty, if the requested revision is below Floor or above Revision.
	Seen uint64
}

// Changes returns the changes after the given revision in the history of a prefix (see command.Watch). It reads them in
// one consistent view. It stops after about maxBytes bytes, but returns at least one change if there is any. It returns
// the same errors as Get.
func (m *Machine) Changes(store, prefix string, revision uint64, maxBytes int) (Changes, error) {
	if err := m.useStore("kv.Changes", store); err != nil {
		return Changes{}, err
	}
	defer m.gate.leave()
	out, err := m.changes(rowKey{store, prefix}, revision, maxBytes)
	if err != nil {
		return Changes{}, m.unreadable("kv.Changes", "cannot read the changes of store "+store, err)
	}
	return out, nil
}

func (m *Machine) changes(k rowKey, after uint64, maxBytes int) (out Changes, err error) {
	v := m.view()
	defer func() { err = keep(err, v.close()) }()
	last, err := v.meta()
	if err != nil {
		return out, err
	}
	out.Revision, out.Restored = last.revision, last.replaced.at
	h, err := v.history(k)
	if err != nil || h == nil {
		return out, err
	}
	out.Kept, out.ID, out.Floor, out.Until = true, h.id, h.floor, h.until
	if after < h.floor || after > last.revision {
		return out, nil
	}
	out.Seen = last.revision
	it, err := v.snapshot.NewIter(&pebble.IterOptions{
		LowerBound: appendChangeKey(nil, h.id, after+1), UpperBound: appendNumberKey(nil, tableChange, h.id+1)})
	if err != nil {
		return out, err
	}
	defer func() { err = keep(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		if maxBytes <= 0 && len(out.Items) > 0 {
			out.Seen = out.Items[len(out.Items)-1].Revision
			return out, nil
		}
		raw, err := it.ValueAndErr()
		if err != nil {
			return out, err
		}
		c, err := parseChange(it.Key(), raw)
		if err != nil {
			return out, err
		}
		out.Items = append(out.Items, c)
		maxBytes -= c.Size()
	}
	return out, it.Error()
}

// history reads the record of the history k from the database, without the list of its closed segments. It returns nil
// if the history does not exist.
func (v *view) history(k rowKey) (h *history, err error) {
	key := appendWatchedKey(nil, k)
	raw, closer, err := v.snapshot.Get(key)
	if err == pebble.ErrNotFound { //nolint:errorlint // as Pebble documents
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close() //nolint:errcheck // a reference to memory
	return parseHistory(key, raw)
}

// Histories returns the number of histories and the bytes of their changes.
func (m *Machine) Histories() (count int, bytes uint64) {
	s := m.state.Load()
	return s.histories, s.historyBytes
}

// Revision returns the newest revision after the last applied entry.
func (m *Machine) Revision() uint64 { return m.state.Load().revision }

// listeners are notified of changes in histories.
type listeners struct {
	count atomic.Int64 // lets Apply skip the lock when there are none
	mu    sync.Mutex
	all   map[rowKey]map[*Listener]struct{}
}

// Listener receives a notification after a history has changed.
type Listener struct {
	// C receives an element after the history has changed or was switched off. Its capacity is 1, so one element may
	// stand for several changes.
	C <-chan struct{}
	// Closed is closed when the machine closes.
	Closed <-chan struct{}

	c   chan struct{}
	key rowKey
	m   *Machine
}

// Listen returns a Listener for the history of the given prefix (see command.Watch). The caller must call
// Listener.Stop when it no longer needs the Listener. A slow listener does not delay Apply.
func (m *Machine) Listen(store, prefix string) *Listener {
	c := make(chan struct{}, 1)
	l := &Listener{C: c, Closed: m.gate.closing, c: c, key: rowKey{store, prefix}, m: m}
	m.feeds.mu.Lock()
	defer m.feeds.mu.Unlock()
	if m.feeds.all == nil {
		m.feeds.all = map[rowKey]map[*Listener]struct{}{}
	}
	if m.feeds.all[l.key] == nil {
		m.feeds.all[l.key] = map[*Listener]struct{}{}
	}
	m.feeds.all[l.key][l] = struct{}{}
	m.feeds.count.Add(1)
	return l
}

// Stop ends the notifications.
func (l *Listener) Stop() {
	m := l.m
	m.feeds.mu.Lock()
	defer m.feeds.mu.Unlock()
	if _, ok := m.feeds.all[l.key][l]; !ok {
		return
	}
	delete(m.feeds.all[l.key], l)
	if len(m.feeds.all[l.key]) == 0 {
		delete(m.feeds.all, l.key)
	}
	m.feeds.count.Add(-1)
}

// notify notifies the listeners of the histories that this Apply has changed.
func (m *Machine) notify() {
	hs := &m.writer.histories
	if m.feeds.count.Load() == 0 || len(hs.touched)+len(hs.gone) == 0 {
		return
	}
	m.feeds.mu.Lock()
	defer m.feeds.mu.Unlock()
	for _, h := range hs.touched {
		m.feeds.wake(h.key)
	}
	for _, k := range hs.gone {
		m.feeds.wake(k)
	}
}

func (l *listeners) wake(k rowKey) {
	for n := range l.all[k] {
		select {
		case n.c <- struct{}{}:
		default: // the listener has not received the previous notification yet
		}
	}
}

// Scan reads the records of a prefix in one consistent view. The caller must call Close. Only one goroutine may use a
// Scan.
type Scan struct {
	Revision uint64 // newest revision in the view

	export *Export
	end    []byte
	strip  int
}

// Scan starts to read the records whose keys begin with prefix. It returns the same errors as Get. Until Scan.Close is
// called, Pebble cannot free the disk space of overwritten records.
func (m *Machine) Scan(store, prefix string) (*Scan, error) {
	if err := m.useStore("kv.Scan", store); err != nil {
		return nil, err
	}
	m.gate.leave()
	e, err := m.Export()
	if err != nil {
		return nil, err
	}
	var end []byte
	e.next, end = listBounds(e.last.tables(), store, prefix, "")
	return &Scan{Revision: e.Revision, export: e, end: end, strip: dataKeySize(store, "")}, nil
}

// Close releases the snapshot that the scan reads. It is idempotent.
func (s *Scan) Close() { s.export.Close() }

// Next returns the next records in the order of their keys, about maxBytes bytes at a time. The result hasMore is true
// if further records follow. Next skips expired records, so items may be empty even if hasMore is true. It returns the
// same errors as Get, and fault.Unavailable if the scan was closed.
func (s *Scan) Next(maxBytes int) (items []Change, hasMore bool, err error) {
	e := s.export
	if err := e.m.use("kv.Scan"); err != nil {
		return nil, false, err
	}
	defer e.m.gate.leave()
	if e.view == nil {
		return nil, false, errClosed("kv.Scan")
	}
	done, err := e.walkTo(s.end, func(it *pebble.Iterator) (bool, error) {
		raw, err := it.ValueAndErr()
		if err != nil {
			return false, err
		}
		r, err := parseRecord(raw)
		if err != nil {
			return false, err
		}
		maxBytes -= len(raw) + len(it.Key())
		if r.live(e.last.clock) {
			items = append(items, Change{Revision: r.revision, Key: string(it.Key()[s.strip:]), ExpireAt: r.expireAt,
				ContentType: string(r.contentType), Value: append([]byte(nil), r.value...)})
		}
		return maxBytes <= 0, nil
	})
	if err != nil {
		return nil, false, e.m.unreadable("kv.Scan", "cannot read the database", err)
	}
	return items, !done, nil
}
