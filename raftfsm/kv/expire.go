package kv

import (
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// maxExpire bounds how many items of each kind one request may remove.
const maxExpire = 1 << 16

// expire removes keys, client results and idle origins that have expired by cluster time. Of each kind, it removes the
// oldest first, and at most limit. It also drops an abandoned restore, trims histories, and removes histories that were
// not extended in time.
func (w *writer) expire(limit uint32, res *Result) error {
	n := int(min(limit, maxExpire))
	for _, sort := range [...]func(int) (int, bool, error){w.expireKeys, w.expireClients, w.expireOrigins,
		w.expireStage, w.expireHistories} {
		removed, more, err := sort(n)
		if err != nil {
			return err
		}
		res.Expired += removed
		res.More = res.More || more
	}
	return nil
}

func (w *writer) expireKeys(limit int) (removed int, more bool, err error) {
	items, err := w.dueKeys(limit + 1)
	if err != nil {
		return 0, false, err
	}
	w.dueFloor = later(w.meta.clock, 1)
	if len(items) > limit {
		more, w.dueFloor = true, items[limit].at
		items = items[:limit]
	}
	for _, i := range items {
		w.remove(i.rowKey, w.rows.known[i.rowKey])
	}
	return len(items), more, nil
}

// dueKey is a key that has expired.
type dueKey struct {
	at uint64
	rowKey
}

func (a dueKey) compare(b dueKey) int {
	if a.at != b.at {
		return compare(a.at, b.at)
	}
	if c := strings.Compare(a.store, b.store); c != 0 {
		return c
	}
	return strings.Compare(a.key, b.key)
}

// dueKeys returns up to n expired keys, ordered by their time of expiry. The due index in the database does not have
// the changes of the current Apply yet. For keys that this Apply has read or changed, dueKeys therefore uses the cached
// rows.
func (w *writer) dueKeys(n int) ([]dueKey, error) {
	var items []dueKey
	for k, r := range w.rows.known {
		if r.stored && !r.live(w.meta.clock) {
			items = append(items, dueKey{r.expireAt, k})
		}
	}
	stored, err := w.dueStored(n)
	if err != nil {
		return nil, err
	}
	items = append(items, stored...)
	slices.SortFunc(items, dueKey.compare)
	return items[:min(n, len(items))], nil
}

// dueStored returns up to n expired keys from the due index in the database, and caches their rows in w.rows. It skips
// keys whose rows were already cached.
func (w *writer) dueStored(n int) (items []dueKey, err error) {
	it, err := w.txn.db.NewIter(&pebble.IterOptions{
		LowerBound: appendNumberKey(nil, w.meta.tables().due(), w.dueFloor),
		UpperBound: dueEnd(w.meta.tables(), w.meta.clock),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = keep(err, it.Close()) }()
	for ok := it.First(); ok && len(items) < n; ok = it.Next() {
		at, store, key, ok := parseDueKey(it.Key())
		if !ok {
			return nil, errRecord
		}
		k := rowKey{string(store), string(key)}
		if _, known := w.rows.known[k]; known {
			continue
		}
		r, err := w.row(k)
		if err != nil {
			return nil, err
		}
		if !r.stored || r.expireAt != at {
			return nil, errRecord
		}
		items = append(items, dueKey{at, k})
	}
	return items, it.Error()
}

// dueEnd returns the exclusive upper bound of the keys in the due index that have expired at the given cluster time.
func dueEnd(t tables, clock uint64) []byte {
	if clock == never {
		return []byte{t.due() + 1}
	}
	return appendNumberKey(nil, t.due(), clock+1)
}

func (w *writer) expireClients(limit int) (removed int, more bool, err error) {
	for {
		due, err := w.clientDue()
		if err != nil || !due || removed == limit {
			return removed, due, err
		}
		if err := w.forgetClient(); err != nil {
			return removed, false, err
		}
		removed++
	}
}

func (w *writer) expireOrigins(limit int) (removed int, more bool, err error) {
	if w.origins.due() > w.meta.clock {
		return 0, false, nil
	}
	for _, o := range w.origins.oldest(len(w.origins.byNumber)) {
		if o.due() > w.meta.clock {
			break
		}
		if removed == limit {
			return removed, true, nil
		}
		w.drop(o)
		removed++
	}
	return removed, false, nil
}

// NextDue returns the earliest cluster time at which KindExpire has something to do. For example, a key or client
// result expires at that time, a history must be trimmed, or a restore counts as abandoned. The time may be in the
// past. The result ok is false if there is no such time, or if the machine is closed or broken.
func (m *Machine) NextDue() (ms uint64, ok bool) {
	if m.use("kv.NextDue") != nil {
		return 0, false
	}
	defer m.gate.leave()
	s := m.state.Load()
	known := m.firstDueOf.Load()
	if known == nil || known.state != s {
		first, err := m.firstDue(s.dueFloor)
		if err != nil {
			m.health.fail(errStorage("kv.NextDue", "cannot read what is due", err))
			return 0, false
		}
		// If the database is ahead of s, first may be newer than s. The state that follows then replaces known.
		known = &dueOfState{s, first}
		m.firstDueOf.Store(known)
	}
	ms = min(s.originDue, known.first, s.stageDue(), s.historyDue)
	return ms, ms != never
}

// dueOfState caches the result of firstDue for one published state. An idle leader calls NextDue periodically. With the
// cached result, NextDue need not read the database each time.
type dueOfState struct {
	state *state
	first uint64
}

// firstDue returns the earliest expiry in the due index and the client queue, as a cluster time. If both are empty, it
// returns the constant never. floor is a lower bound: the due index must have no item that expires before floor.
func (m *Machine) firstDue(floor uint64) (first uint64, err error) {
	v := m.view()
	defer func() { err = keep(err, v.close()) }()
	last, err := v.meta()
	if err != nil {
		return never, err
	}
	first = never
	if last.clientFirst != last.clientNext {
		err = v.get(appendNumberKey(nil, last.tables().queue(), last.clientFirst), func(raw []byte) error {
			item, err := parseClientItem(raw)
			first = item.expireAt
			return err
		})
		if err != nil {
			return never, err
		}
	}
	it, err := v.snapshot.NewIter(&pebble.IterOptions{
		LowerBound: appendNumberKey(nil, last.tables().due(), floor), UpperBound: []byte{last.tables().due() + 1},
	})
	if err != nil {
		return never, err
	}
	if it.First() {
		at, _, _, ok := parseDueKey(it.Key())
		if !ok {
			err = errRecord
		}
		first = min(first, at)
	}
	return first, keep(err, it.Close())
}

// OriginDue returns the earliest cluster time at which KindExpire may remove an idle origin. Without origins it
// returns the largest uint64.
func (m *Machine) OriginDue() uint64 { return m.state.Load().originDue }
