package kv

import (
	"fmt"
	"strings"
)

// rows is what one Apply knows of data records: what it read and what it changed. It
// stands above the database, so that a request sees the requests before it. Below it, and
// still above the database, stands what earlier ones knew last.
type rows struct {
	known  map[rowKey]row
	recent recent
}

// rowKey aliases the entries being applied, in known.
type rowKey struct{ store, key string }

// row is a data record without its value. The zero row is that of an absent key.
type row struct {
	stored   bool // also if it has expired
	revision uint64
	expireAt uint64
	hash     setHash // its share of the sum
}

func (r *row) live(clock uint64) bool {
	return r.stored && (r.expireAt == 0 || r.expireAt > clock)
}

// keepRows bounds the map that is kept for the next Apply.
const keepRows = 1 << 14

func (r *rows) begin() {
	if r.known == nil {
		r.known = make(map[rowKey]row)
	}
}

func (r *rows) end() {
	if len(r.known) > keepRows {
		r.known = nil
		return
	}
	clear(r.known)
}

// settle notes that what this Apply knows is in the database. That a key is absent is worth
// no place of its own: keys that expire together would take all.
func (r *rows) settle() {
	for k, v := range r.known {
		if v.stored || r.recent.find(k) != nil {
			r.recent.put(k, v)
		}
	}
}

// recent remembers rows as the database has them, so that keys that are written again and
// again are not looked for in it each time. Nobody but the writer changes a row, so none
// of these can be out of date, except when a restore replaces all tables.
//
// It has two generations of equal size. A row that is used comes into the young one; when
// that is full the old one is forgotten and the young one takes its place. So a row is
// kept as long as fewer others than fill one generation have been used since.
type recent struct {
	young, old map[rowKey]*kept
	bytes      int // about what young takes
	limit      int // of bytes; 0 remembers nothing
}

// kept is a row whose key has memory of its own.
type kept struct {
	key rowKey
	row row
}

// keptSize is about what a kept row takes in memory beside its key: itself, and its place
// in a map that is half empty.
const keptSize = 200

func (r *recent) get(k rowKey) (row, bool) {
	if p := r.find(k); p != nil {
		return p.row, true
	}
	return row{}, false
}

func (r *recent) put(k rowKey, v row) {
	if r.limit == 0 {
		return
	}
	p := r.find(k)
	if p == nil {
		p = &kept{key: rowKey{strings.Clone(k.store), strings.Clone(k.key)}}
		r.add(p)
	}
	p.row = v
}

// find returns what is kept under a key, in the young generation from now on, or nil.
func (r *recent) find(k rowKey) *kept {
	if p := r.young[k]; p != nil {
		return p
	}
	p := r.old[k]
	if p != nil {
		r.add(p)
	}
	return p
}

func (r *recent) add(p *kept) {
	size := keptSize + len(p.key.store) + len(p.key.key)
	if r.bytes += size; r.young == nil || r.bytes > r.limit {
		r.young, r.old, r.bytes = make(map[rowKey]*kept), r.young, size
	}
	r.young[p.key] = p
}

func (r *recent) forget() { r.young, r.old, r.bytes = nil, nil, 0 }

// row returns what is known of a key, reading it if need be.
func (w *writer) row(k rowKey) (row, error) {
	if r, ok := w.rows.known[k]; ok {
		return r, nil
	}
	if r, ok := w.rows.recent.get(k); ok {
		w.rows.known[k] = r
		return r, nil
	}
	w.key = appendDataKey(w.key[:0], w.meta.tables(), k.store, k.key)
	raw, found, err := w.txn.get(w.key)
	if err != nil {
		return row{}, err
	}
	var r row
	if found {
		rec, err := parseRecord(raw)
		if err != nil {
			return row{}, fmt.Errorf("store %q: %w", k.store, err)
		}
		r = row{stored: true, revision: rec.revision, expireAt: rec.expireAt, hash: w.share(w.key[1:], raw)}
	}
	w.rows.known[k] = r
	return r, nil
}
