package kv

import "fmt"

// rows is what one Apply knows of data records: what it read and what it changed. It
// stands above the database, so that a request sees the requests before it.
type rows struct{ known map[rowKey]row }

// rowKey aliases the entries being applied.
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

// row returns what is known of a key, reading it if need be.
func (w *writer) row(k rowKey) (row, error) {
	if r, ok := w.rows.known[k]; ok {
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
