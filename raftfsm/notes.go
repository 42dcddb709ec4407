package raftfsm

import (
	"context"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
)

// notePrefix is the prefix of the keys of all notes. A note is a small record about the cluster itself, for example the
// progress of scheduled backups. Notes are in the system store of group 0, so no application can access them. Backups
// do not contain notes, and a restore does not change them.
const notePrefix = "note/"

// noteGroup is the group that holds all notes.
const noteGroup = 0

// Note is a small record about the cluster, for example the progress of scheduled backups.
type Note struct {
	Value    []byte // nil = there is none
	Revision uint64 // 0 = there is none
}

// Note returns the note with the given name, or the zero Note if there is no such note. It performs a strong read, and
// returns the errors of such a read.
func (h *Host) Note(ctx context.Context, name string) (Note, error) {
	if _, err := h.replica.waitPartitions(ctx); err != nil {
		return Note{}, err
	}
	q := queryOne(systemStore, notePrefix+name)
	if _, err := h.router.read(ctx, noteGroup, &state.ReadOptions{Consistency: state.Strong}, q); err != nil {
		return Note{}, err
	}
	v := &q.values[0]
	if !v.Found {
		return Note{}, nil
	}
	return Note{Value: v.Value, Revision: v.Revision}, nil
}

// NoteNames returns the names of the notes that begin with prefix, in byte order. It reads in pages. Each page is a
// linearizable read.
func (h *Host) NoteNames(ctx context.Context, prefix string) (names []string, err error) {
	if _, err := h.replica.waitPartitions(ctx); err != nil {
		return nil, err
	}
	for after := ""; ; {
		q := query{kind: queryList, store: systemStore, prefix: notePrefix + prefix, limit: maxPage, after: after}
		if _, err := h.router.read(ctx, noteGroup, &state.ReadOptions{Consistency: state.Strong}, &q); err != nil {
			return nil, err
		}
		for i := range q.listed {
			after = q.listed[i].Key
			names = append(names, after[len(notePrefix):])
		}
		if !q.more || len(q.listed) == 0 {
			return names, nil
		}
	}
}

// SetNote writes a note and returns its new revision. The parameter revision is the revision that the existing note
// must have; 0 means that no note with this name may exist. If the existing note does not meet this condition, SetNote
// returns fault.Conflict. It also returns the errors of a strong write.
func (h *Host) SetNote(ctx context.Context, name string, value []byte, revision uint64) (uint64, error) {
	if _, err := h.replica.waitPartitions(ctx); err != nil {
		return 0, err
	}
	op := command.Op{Kind: command.OpSet, Cond: command.CondAbsent, Store: systemStore, Key: notePrefix + name,
		Value: value}
	if revision != 0 {
		op.Cond, op.Revision = command.CondRevision, revision
	}
	a, err := h.router.write(ctx, noteGroup, &command.Request{Kind: command.KindWrite, Ops: []command.Op{op}},
		group.Committed)
	if err != nil {
		return 0, err
	}
	if err := outcome(&a.Result, nil); err != nil {
		return 0, err
	}
	return a.Result.Revisions[0], nil
}

// LocalNote reads a note from the replica of this node, which may lag behind the leader. It returns
// fault.Unavailable while the replica is being replaced, and fault.Invalid on a node without data.
func (h *Host) LocalNote(name string) (Note, error) {
	if len(h.groups) == 0 {
		return Note{}, errNoData("raftfsm.LocalNote")
	}
	v, err := h.groups[noteGroup].Machine().Get(systemStore, notePrefix+name, 0)
	if err != nil {
		return Note{}, fault.Wrap(err, "raftfsm.LocalNote", "")
	}
	return Note{Value: v.Value, Revision: v.Revision}, nil
}
