package kv

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/quorate/quorate/raftfsm/command"
)

// A restore goes through the log. So every replica ends in the same state, and a crash leaves a replica either before
// or after the restore. Chunks are written to the set of tables that is not live, which no reader uses. One final
// entry, in one Pebble batch with its index, makes that set the live one and deletes the other. Writes continue in
// the meantime. Writes before the final entry are replaced; writes after it see the restored data.
//
// Other effects of a restore:
//
//   - Revisions: restored records get new revisions, in the order of the backup. They begin 2^40 above the greater of
//     this machine's counter and the backup's. So no write has used them before, not even a write after the backup
//     in a cluster that was lost later.
//   - Origins stay, because their sequence numbers count requests of this log. Each remembered result is replaced by a
//     refusal: a retry of a request that was decided before must neither be applied again nor be acknowledged.
//   - Client results are replaced by those of the backup, because the backup includes the writes of those requests.
//   - Histories of changes end.
//   - SystemStore stays. It is in no backup.
//   - LockStore becomes empty. It is in no backup.
//   - Cluster time continues. Restored records that have expired by now are never visible.

// revisionRaise is what a restore adds to the revision counter, so that no earlier write has used the new revisions.
const revisionRaise = 1 << 40

// MaxBackupRevision is the maximum revision counter of a backup that can be restored. No cluster reaches it in
// practice.
const MaxBackupRevision = 1 << 62

// maxBase is the maximum revision counter at which a restore can begin. It is part of the format.
//
// It is 2^61 above MaxBackupRevision, and each restore raises the counter by about 2^40. So about 2^21 restores are
// possible even after a backup with MaxBackupRevision. After the last one, writes still have 2^61 revisions.
const maxBase = 3 << 61

// SystemStore is the name of the internal store for records of the cluster, for example its removed servers. An
// export leaves it out, and a restore does not change it. The name is part of the format.
const SystemStore = "system"

// Durations in milliseconds of cluster time. They are part of the format.
const (
	stageHold = 10 * 1000      // another restore may replace a restore that has had no step for this long
	stageLife = 10 * 60 * 1000 // a restore that has had no step for this long is dropped
)

// replaced describes the live set of tables, the last restore of a machine, and the running restore.
type replaced struct {
	live    uint64 // the set of tables that is read
	at      uint64 // index of the last restore; 0 = none
	id      uint64 // id of the last restore
	stage   uint64 // id of the running restore; 0 = none, and then the fields below are 0
	seen    uint64 // cluster time of the newest step of the running restore
	parts   uint64 // chunks received
	base    uint64 // the first restored record gets revision base+1
	keys    uint64 // records staged
	clients uint64 // client results staged
}

// stageDue returns the cluster time at which the running restore counts as abandoned: stageLife after its newest step.
// It returns the constant never if no restore is running.
func (m *meta) stageDue() uint64 {
	if m.replaced.stage == 0 {
		return never
	}
	return later(m.replaced.seen, stageLife)
}

// Restored returns the index of the entry that last replaced all data with a backup, or 0.
func (m *Machine) Restored() uint64 { return m.state.Load().replaced.at }

// restores reports whether b is a step of a restore. Such a step needs a Pebble batch of its own, because it reads
// tables that must contain all earlier changes.
func restores(b *command.Batch) bool {
	return len(b.Requests) == 1 && b.Requests[0].Kind == command.KindRestore
}

// cut commits the changes that this Apply has made so far, and begins a new batch.
func (m *Machine) cut() error {
	w := m.writer
	if w.meta.applied != m.Applied() {
		if err := m.commit(); err != nil {
			return err
		}
	}
	if err := w.end(); err != nil {
		return err
	}
	w.begin()
	return nil
}

// restore applies one step of a restore and sets the outcome in res:
//
//	Applied   this entry or an earlier one has applied the step
//	Conflict  another restore is running
//	Stale     the restore is unknown or has ended
//	Rejected  an earlier chunk is missing, or the revision counter is above maxBase
func (w *writer) restore(r *command.Request, res *Result) error {
	s, own := r.Restore, &w.meta.replaced
	switch {
	case s.Step == command.StepCommit && own.id == s.ID && own.stage != s.ID:
		return nil
	case s.Step == command.StepBegin:
		w.stageBegin(s, res)
	case own.stage != s.ID:
		res.Outcome = Stale
	case s.Step == command.StepChunk:
		w.stageChunk(r, res)
	case s.Step == command.StepCommit && s.Part != own.parts:
		res.Outcome = Rejected
	case s.Step == command.StepCommit:
		return w.stageCommit(res.Index)
	default:
		w.stageDrop()
	}
	return nil
}

func (w *writer) stageBegin(s *command.Restore, res *Result) {
	own := &w.meta.replaced
	base := max(w.meta.revision, s.Revision)
	switch {
	case own.stage == s.ID:
		return
	case own.id == s.ID:
		res.Outcome = Stale
		return
	case own.stage != 0 && w.meta.clock < later(own.seen, stageHold):
		res.Outcome = Conflict
		return
	case base > maxBase:
		res.Outcome = Rejected
		return
	}
	w.stageDrop()
	own.stage, own.seen, own.base = s.ID, w.meta.clock, base+revisionRaise
}

// stageDrop drops the running restore and its data.
func (w *writer) stageDrop() {
	own := &w.meta.replaced
	for _, table := range w.meta.tables().other().all() {
		w.txn.clear(table)
	}
	own.stage, own.seen, own.parts, own.base, own.keys, own.clients = 0, 0, 0, 0, 0, 0
	w.meta.sums.stage = setHash{}
}

func (w *writer) stageChunk(r *command.Request, res *Result) {
	own := &w.meta.replaced
	own.seen = w.meta.clock
	switch {
	case r.Restore.Part < own.parts:
		return
	case r.Restore.Part > own.parts:
		res.Outcome = Rejected
		return
	}
	own.parts++
	to := w.meta.tables().other()
	for i := range r.Ops {
		if s := r.Ops[i].Store; s != SystemStore && s != LockStore {
			w.stageRecord(to, &r.Ops[i])
		}
	}
	for i := range r.Restore.Remembered {
		w.stageClient(to, &r.Restore.Remembered[i], res.Index)
	}
}

func (w *writer) stageRecord(to tables, o *command.Op) {
	own := &w.meta.replaced
	own.keys++
	put := w.txn.batch.SetDeferred(dataKeySize(o.Store, o.Key), recordSize(o.ExpireAt, o.ContentType, o.Value))
	appendDataKey(put.Key[:0], to, o.Store, o.Key)
	appendRecord(put.Value[:0], own.base+own.keys, o.ExpireAt, o.ContentType, o.Value)
	w.meta.sums.stage.add(w.share(put.Key[1:], put.Value))
	w.txn.err = keep(w.txn.err, put.Finish())
	if o.ExpireAt != 0 {
		w.txn.set(appendDueKey(w.key[:0], to, o.ExpireAt, o.Store, o.Key), nil)
	}
}

func (w *writer) stageClient(to tables, c *command.Remembered, index uint64) {
	own := &w.meta.replaced
	key := append([]byte{to.client()}, c.Key...)
	r := clientRow{number: own.clients, expireAt: c.ExpireAt, fingerprint: c.Fingerprint, index: index,
		result: c.Result}
	own.clients++
	w.txn.set(key, r.append(nil))
	item := binary.BigEndian.AppendUint64([]byte{clientFormat}, r.expireAt)
	w.txn.set(appendNumberKey(nil, to.queue(), r.number), append(item, key...))
}

// stageCommit makes the data of the running restore live. index is the index of the entry that commits the restore.
func (w *writer) stageCommit(index uint64) error {
	own := &w.meta.replaced
	kept, hash, err := w.keepSystem(w.meta.tables().other())
	if err != nil {
		return err
	}
	for _, table := range w.meta.tables().all() {
		w.txn.clear(table)
	}
	w.meta.revision = max(w.meta.revision, own.base) + own.keys
	w.meta.keys, w.meta.clientFirst, w.meta.clientNext = own.keys+kept, 0, own.clients
	*own = replaced{live: uint64(w.meta.tables().other()), at: index, id: own.stage}
	w.meta.sums.swap(hash)
	w.rows.recent.forget()
	w.dropHistories()
	w.locks, w.dues, w.restored = nil, nil, true
	w.dueFloor = 0
	for _, number := range slices.Sorted(maps.Keys(w.origins.byNumber)) {
		w.refuse(w.origins.byNumber[number], index)
	}
	return nil
}

// keepSystem copies the records of SystemStore to the set of tables that the restore will make live. It commits them in
// a separate batch before that set becomes live, so that a reader always finds them. Repeating the copy after a crash
// does no harm. keepSystem returns the number and the set hash of the copied records.
func (w *writer) keepSystem(to tables) (kept uint64, hash setHash, err error) {
	copies := txn{db: w.txn.db}
	copies.begin()
	defer func() { err = keep(err, copies.end()) }()
	from := appendDataKey(nil, w.meta.tables(), SystemStore, "")
	it, err := w.txn.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: successor(from)})
	if err != nil {
		return 0, hash, err
	}
	defer func() { err = keep(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		raw, err := it.ValueAndErr()
		if err != nil {
			return 0, hash, err
		}
		r, err := parseRecord(raw)
		if err != nil {
			return 0, hash, err
		}
		key := string(it.Key()[len(from):])
		copies.set(appendDataKey(nil, to, SystemStore, key), raw)
		if r.expireAt != 0 {
			copies.set(appendDueKey(nil, to, r.expireAt, SystemStore, key), nil)
		}
		hash.add(w.share(it.Key()[1:], raw))
		kept++
	}
	if err := it.Error(); err != nil {
		return 0, hash, err
	}
	return kept, hash, copies.commit()
}

// refuse replaces every remembered result of an origin by the outcome Stale.
func (w *writer) refuse(o *origin, index uint64) {
	if len(o.results) == 0 {
		return
	}
	for _, e := range o.entries {
		w.txn.delete(appendRememberedKey(nil, o.number, e.index))
	}
	o.entries = nil
	o.pending.entry = index
	w.origins.touched = append(w.origins.touched, o)
	refusal := appendResult(nil, &Result{Outcome: Stale, Index: index}, index)
	for _, seq := range slices.Sorted(maps.Keys(o.results)) {
		o.remember(seq, remembered{index: index, data: refusal})
	}
}

// expireStage drops the running restore if it is abandoned. The result removed is 1 if a restore was dropped, and
// otherwise 0. The result hasMore is always false, because at most one restore is running.
func (w *writer) expireStage(int) (removed int, hasMore bool, err error) {
	if w.meta.stageDue() > w.meta.clock {
		return 0, false, nil
	}
	w.stageDrop()
	return 1, false, nil
}
