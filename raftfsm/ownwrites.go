package raftfsm

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm/session"
)

// maxOwn is the maximum number of applications for which ownWrites has separate lists of positions. All other
// applications share one list.
const maxOwn = 1024

// application identifies an application by its store and the prefix of its keys.
type application struct{ store, prefix string }

// maxLeaders is the maximum number of positions in an awaited list. Each position is from the term of a different
// leader.
const maxLeaders = 16

// awaited is a list of log positions that a read must wait for. Usually the list has one position.
//
// After a change of leader, the list may have one position for each leader. A position of a later leader never replaces
// the position of an earlier leader's uncommitted write, because that write may be lost. No position in the list covers
// another one (see session.Seen.Covers). The positions are never modified.
type awaited []*session.Seen

// with adds a position to the list, removes the positions that the new one replaces, and returns the result. If the
// list already covers the new position, with adds nothing. It may change w.
//
// If the result has more than maxLeaders positions, with drops the position of the earliest leader. If the write at
// that position was lost, no read reports the loss.
func (w awaited) with(at *session.Seen) awaited {
	if slices.ContainsFunc(w, func(s *session.Seen) bool { return s.Covers(*at) && !at.Replaces(*s) }) {
		return w
	}
	w = append(slices.DeleteFunc(w, func(s *session.Seen) bool { return at.Replaces(*s) }), at)
	if len(w) > maxLeaders {
		first := slices.MinFunc(w, func(a, b *session.Seen) int { return cmp.Compare(a.Pos.Term, b.Pos.Term) })
		w = w.without([]*session.Seen{first})
	}
	return w
}

// without returns the list without the positions in done. It may change w.
func (w awaited) without(done []*session.Seen) awaited {
	return slices.DeleteFunc(w, func(s *session.Seen) bool { return slices.Contains(done, s) })
}

// newest returns the position of the newest write that may be uncommitted, or the zero position if there is none. A
// strong read must wait only for this position: its read index covers all committed positions, and a later leader has
// all writes of earlier leaders that were not lost.
func (w awaited) newest() (at session.Seen) {
	for _, s := range w {
		if !s.Committed && cmp.Or(cmp.Compare(at.Pos.Term, s.Pos.Term), cmp.Compare(at.Pos.Index, s.Pos.Index)) < 0 {
			at = *s
		}
	}
	return at
}

// ownWrites records, for one group, the log positions of the newest writes of each application on this node. The next
// eventual read of an application waits until the replica has applied these writes. If a write was lost, this read
// reports the loss.
//
// At most maxOwn applications have positions of their own. All others share the positions in the field rest.
//
// Invariant: a write is covered by a position of its application or by a shared position, until a read has seen the
// write or reported its loss.
type ownWrites struct {
	mu sync.Mutex
	by map[application]awaited // guarded by mu
	// rest are the newest positions of all applications without positions of their own; guarded by mu
	rest awaited
}

// note records the position at, which an application has seen.
func (o *ownWrites) note(app application, at session.Seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	have, known := o.by[app]
	switch {
	case o.by == nil:
		o.by = map[application]awaited{}
	case !known && len(o.by) >= maxOwn:
		o.shareOne()
	}
	o.by[app] = have.with(&at)
}

// shareOne moves the positions of one application to rest. The caller holds mu.
func (o *ownWrites) shareOne() {
	for app, own := range o.by {
		delete(o.by, app)
		for _, s := range own {
			o.rest = o.rest.with(s)
		}
		return
	}
}

// shareAll records s, the position of a change that affects all applications. It adds s to rest, and removes the
// positions that s covers from the lists of the applications.
func (o *ownWrites) shareAll(s *session.Seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rest = o.rest.with(s)
	for app := range o.by {
		o.keep(app, slices.DeleteFunc(o.by[app], func(have *session.Seen) bool { return s.Covers(*have) }))
	}
}

// keep sets the positions of an application, or forgets the application if own is empty. The caller holds mu.
func (o *ownWrites) keep(app application, own awaited) {
	if len(own) == 0 {
		delete(o.by, app)
		return
	}
	o.by[app] = own
}

// positions returns the positions that a read of q has to wait for.
func (o *ownWrites) positions(q *query) (out []*session.Seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out = append(out, o.rest...)
	if len(o.by) == 0 {
		return out
	}
	if q.all() {
		for app, own := range o.by {
			if app.store == q.store {
				out = append(out, own...)
			}
		}
		return out
	}
	q.applications(func(app application) { out = append(out, o.by[app]...) })
	return out
}

// newest returns the newest of all positions, or the zero position if there is none.
func (o *ownWrites) newest() (at session.Seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Clone(o.rest)
	for _, own := range o.by {
		all = append(all, own...)
	}
	return all.newest()
}

// settle removes the given positions after the read q has waited for them, so that later reads do not wait for them
// again. A position that was added after the read began stays.
func (o *ownWrites) settle(q *query, applied []*session.Seen) {
	if len(applied) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rest = o.rest.without(applied)
	drop := func(app application) { o.keep(app, o.by[app].without(applied)) }
	if !q.all() {
		q.applications(drop)
		return
	}
	for app := range o.by {
		drop(app)
	}
}

// settleElsewhere updates own after another server has answered the read q. done has the positions in own that the read
// had to wait for, and got describes the answer.
//
// If got.ownDone is true, the answer reflects the writes at the positions in done or reports their loss.
// settleElsewhere then removes these positions.
//
// If the answer is not stale, or if got.ownDone is true, settleElsewhere also adds the position of the answer. A later
// read from another replica then returns no older data.
func settleElsewhere(own *ownWrites, q *query, done []*session.Seen, got given) {
	shared := own.shares(done)
	if got.ownDone {
		own.settle(q, done)
	}
	if got.level != state.Stale || got.ownDone {
		own.moveTo(q, got.at, shared)
	}
}

// moveTo records the position of another server's answer to the read q, so that later reads from other servers return
// no older data. It records the position for the applications whose keys q reads. If shared is true or q may read the
// keys of several applications, it records the position for all applications.
func (o *ownWrites) moveTo(q *query, at session.Seen, shared bool) {
	if shared || q.all() {
		o.shareAll(&at)
	}
	if !q.all() {
		q.applications(func(app application) { o.note(app, at) })
	}
}

// shares reports whether own contains a position that all applications share. own is a result of the method positions.
func (o *ownWrites) shares(own []*session.Seen) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.rest, func(s *session.Seen) bool { return slices.Contains(own, s) })
}

// clear removes all positions.
func (o *ownWrites) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by, o.rest = nil, nil
}

// all reports whether q may read the keys of several applications.
func (q *query) all() bool { return q.kind == queryList && !strings.Contains(q.prefix, "||") }

// applications calls f for each application whose keys q reads. Nearly always, this is only one application.
func (q *query) applications(f func(application)) {
	if q.kind == queryList {
		f(application{q.store, state.PrefixOf(q.prefix)})
		return
	}
	for i, k := range q.keys {
		if p := state.PrefixOf(k); i == 0 || p != state.PrefixOf(q.keys[i-1]) {
			f(application{q.store, p})
		}
	}
}
