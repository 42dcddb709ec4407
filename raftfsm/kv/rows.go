package kv

import (
	"fmt"
	"strings"
)

// rows caches the data records that the current Apply has read or changed, so that a request sees the changes of
// earlier requests. The map known has the rows of the current Apply, and recent has rows of earlier ones. A record is
// looked up in known, then in recent, and then in the database.
type rows struct {
	known  map[rowKey]row
	recent recent
}

// rowKey identifies a data record. In rows.known, its strings may share memory with the entries that are being
// applied.
type rowKey struct{ store, key string }

// row is a data record without its value. The zero row is that of an absent key.
type row struct {
	stored   bool // the record is in the database, even if it has expired
	revision uint64
	expireAt uint64
	hash     setHash // what the record contributes to sums.data
}

func (r *row) live(clock uint64) bool {
	return r.stored && (r.expireAt == 0 || r.expireAt > clock)
}

// keepRows is the maximum number of items in a map that is reused by the next Apply. A larger map is dropped, to free
// its memory.
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

// settle copies the rows of the current Apply to the cache r.recent. Call it after the rows were written to the
// database. The row for an absent key is copied only if the key is already cached, so that removed keys do not fill the
// cache.
func (r *rows) settle() {
	for k, v := range r.known {
		if v.stored || r.recent.find(k) != nil {
			r.recent.put(k, v)
		}
	}
}

// recent caches rows of the database, so that frequent writes of a key do not read it from the database each time. Only
// the writer changes rows, so a cached row stays valid until a restore replaces all tables.
//
// The cache has two maps with the same size limit, young and old. Using a row moves the row to young. When young is
// full, the rows in old are dropped, and young becomes old.
type recent struct {
	young, old map[rowKey]*kept
	bytes      int // approximate size of young
	limit      int // maximum of bytes; 0 disables the cache
}

// kept is a cached row with its own copy of the key.
type kept struct {
	key rowKey
	row row
}

// keptSize is the approximate number of bytes of memory that a cached row needs, without its key. It includes unused
// space of the map.
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

// find returns the cached row of a key, or nil. It moves the row to the map young.
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

// row returns the row of a key. It reads the database if the row is not cached.
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
