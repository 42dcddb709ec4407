package kv

import "github.com/cockroachdb/pebble/v2"

// txn reads and writes the database for one Apply. It has a batch of changes, and a view of the database without these
// changes. The method get reads only this view. The writer therefore keeps its changes in caches, and looks there
// first.
type txn struct {
	db    *pebble.DB
	batch *pebble.Batch
	base  *pebble.Iterator // opened by the first get
	err   error            // first error of adding to the batch
	// deletions counts the deletions in the batch; a range counts as one
	deletions int64
}

func (t *txn) begin() { t.batch, t.err, t.deletions = t.db.NewBatch(), nil, 0 }

// end releases the batch and the view. It drops changes that were not committed.
func (t *txn) end() error {
	err := t.closeBase()
	if t.batch != nil {
		err = keep(err, t.batch.Close())
		t.batch = nil
	}
	return err
}

func (t *txn) closeBase() error {
	if t.base == nil {
		return nil
	}
	err := t.base.Close()
	t.base = nil
	return err
}

func (t *txn) commit() error {
	if err := keep(t.err, t.closeBase()); err != nil {
		return err
	}
	return t.db.Apply(t.batch, pebble.NoSync)
}

// get returns the value that a key had before this Apply. The result found is false if the key did not exist. The value
// is valid until the next call of get or commit.
//
// get uses an iterator instead of Pebble's Get, because only iterators use the Bloom filters of the lowest level. With
// these filters, most writes of new keys read no block.
func (t *txn) get(key []byte) (value []byte, found bool, err error) {
	if t.base == nil {
		if t.base, err = t.db.NewIter(&pebble.IterOptions{UseL6Filters: true}); err != nil {
			return nil, false, err
		}
	}
	if !t.base.SeekPrefixGE(key) {
		return nil, false, t.base.Error()
	}
	value, err = t.base.ValueAndErr()
	return value, err == nil, err
}

func (t *txn) set(key, value []byte) { t.err = keep(t.err, t.batch.Set(key, value, nil)) }

func (t *txn) delete(key []byte) {
	t.deletions++
	t.err = keep(t.err, t.batch.Delete(key, nil))
}

// deleteRange deletes all keys k with from <= k < end.
func (t *txn) deleteRange(from, end []byte) {
	t.deletions++
	t.err = keep(t.err, t.batch.DeleteRange(from, end, nil))
}

// clear deletes all keys of a table.
func (t *txn) clear(table byte) {
	t.deleteRange([]byte{table}, []byte{table + 1})
}

// keep returns first if it is not nil, and otherwise second.
func keep(first, second error) error {
	if first != nil {
		return first
	}
	return second
}
