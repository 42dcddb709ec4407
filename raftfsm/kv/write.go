package kv

import (
	"encoding/binary"
	"strings"

	"github.com/quorate/quorate/raftfsm/command"
)

// write applies the operations of one request, all or none.
func (w *writer) write(ops []command.Op, res *Result) error {
	for i := range ops {
		ok, err := w.holds(&ops[i])
		if err != nil {
			return err
		}
		if !ok {
			res.Outcome, res.Key = Conflict, strings.Clone(ops[i].Key) // the operation aliases the entry
			return nil
		}
	}
	res.Revisions = w.numbers(len(ops))
	for i := range ops {
		var err error
		if res.Revisions[i], err = w.op(&ops[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) holds(o *command.Op) (bool, error) {
	switch o.Cond {
	case command.CondNone:
		return true, nil
	case command.CondNever:
		return false, nil
	}
	r, err := w.row(rowKey{o.Store, o.Key})
	if err != nil {
		return false, err
	}
	live := r.live(w.meta.clock)
	if o.Cond == command.CondAbsent {
		return !live, nil
	}
	return live && r.revision == o.Revision, nil
}

// op applies one operation and returns its new revision, or 0 for a delete or a check.
func (w *writer) op(o *command.Op) (uint64, error) {
	if o.Kind == command.OpCheck {
		return 0, nil
	}
	if o.Kind == command.OpAppend {
		return w.appendOp(o), nil
	}
	k := rowKey{o.Store, o.Key}
	old, err := w.row(k)
	if err != nil {
		return 0, err
	}
	if o.Kind == command.OpDelete {
		w.remove(k, old)
		return 0, nil
	}
	w.meta.revision++
	revision := w.meta.revision
	expireAt := w.expiry(o)
	if expireAt != 0 && expireAt <= w.meta.clock {
		w.remove(k, old)
	} else {
		w.store(k, old, expireAt, o)
	}
	return revision, nil
}

// appendOp applies an OpAppend. It does not look up a previous row, because the key ends with a new revision and
// therefore cannot exist yet.
func (w *writer) appendOp(o *command.Op) (revision uint64) {
	w.meta.revision++
	key := binary.BigEndian.AppendUint64([]byte(o.Key), w.meta.revision)
	value := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(o.Value)), w.meta.clock)
	stored := *o
	stored.Key, stored.Value = string(key), append(value, o.Value...)
	if expireAt := w.expiry(o); expireAt == 0 || expireAt > w.meta.clock {
		w.store(rowKey{stored.Store, stored.Key}, row{}, expireAt, &stored)
	}
	return w.meta.revision
}

func (w *writer) expiry(o *command.Op) uint64 {
	if o.ExpireAt != 0 || o.TTL == 0 {
		return o.ExpireAt
	}
	return later(w.meta.clock, o.TTL)
}

// store writes the record of a key with the newest revision. old is the previous row of the key.
func (w *writer) store(k rowKey, old row, expireAt uint64, o *command.Op) {
	put := w.txn.batch.SetDeferred(dataKeySize(k.store, k.key), recordSize(expireAt, o.ContentType, o.Value))
	appendDataKey(put.Key[:0], w.meta.tables(), k.store, k.key)
	appendRecord(put.Value[:0], w.meta.revision, expireAt, o.ContentType, o.Value)
	hash := w.share(put.Key[1:], put.Value)
	w.txn.err = keep(w.txn.err, put.Finish())
	w.meta.sums.replace(old.hash, hash)
	if old.expireAt != expireAt {
		w.undue(k, old.expireAt)
		w.due(k, expireAt)
	}
	if !old.stored {
		w.meta.keys++
	}
	w.noteStored(k)
	w.rows.known[k] = row{stored: true, revision: w.meta.revision, expireAt: expireAt, hash: hash}
	w.noteSet(k, expireAt, o)
}

// remove deletes a record, if it exists. If the key's prefix has a history, the removal gets a revision of its own.
func (w *writer) remove(k rowKey, old row) {
	if !old.stored {
		return
	}
	w.key = appendDataKey(w.key[:0], w.meta.tables(), k.store, k.key)
	w.txn.delete(w.key)
	w.undue(k, old.expireAt)
	w.meta.keys--
	w.meta.sums.replace(old.hash, setHash{})
	w.noteRemoved(k)
	w.rows.known[k] = row{}
	w.noteRemoval(k, &old)
}

func (w *writer) due(k rowKey, expireAt uint64) {
	if expireAt != 0 {
		w.key = appendDueKey(w.key[:0], w.meta.tables(), expireAt, k.store, k.key)
		w.txn.set(w.key, nil)
	}
}

func (w *writer) undue(k rowKey, expireAt uint64) {
	if expireAt != 0 {
		w.key = appendDueKey(w.key[:0], w.meta.tables(), expireAt, k.store, k.key)
		w.txn.delete(w.key)
	}
}
