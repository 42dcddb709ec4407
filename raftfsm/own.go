package raftfsm

import (
	"strings"
	"sync"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm/command"
)

// maxOwn is how many applications of one group a node remembers apart.
const maxOwn = 1024

// application is whose keys are read and written: those of one store with one prefix.
type application struct{ store, prefix string }

// ownWrites holds, for one group, the newest write acknowledged at this node that the
// machine may not reflect yet, by application: eventual reads of an application come after
// its own writes, and the news that one was lost reaches the application that wrote it.
//
// Invariant: what an application has written here is at or below the position kept for it,
// or at or below rest, until a read of that application has reflected it or told that it is
// lost. At most maxOwn applications are kept apart; beyond that they share rest, which only
// makes reads wait for more, and tells of a lost write to whoever reads first.
type ownWrites struct {
	mu   sync.Mutex
	by   map[application]*seen // guarded by mu; entries are replaced, never changed
	rest *seen                 // guarded by mu: the newest of all that are not kept apart
}

// note remembers that an application has seen at.
func (o *ownWrites) note(app application, at seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	have, known := o.by[app]
	switch {
	case known && !have.before(at):
		return
	case o.by == nil:
		o.by = map[application]*seen{}
	case !known && len(o.by) >= maxOwn:
		o.shareOne()
	}
	o.by[app] = &at
}

// shareOne gives the place of some application up. It is called with mu.
func (o *ownWrites) shareOne() {
	for app, s := range o.by {
		delete(o.by, app)
		o.share(s)
		return
	}
}

// share notes what counts for all. It is called with mu.
func (o *ownWrites) share(s *seen) {
	if o.rest == nil || o.rest.before(*s) {
		o.rest = s
	}
}

// shareAll notes what counts for all, in place of what it replaces.
func (o *ownWrites) shareAll(s *seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.share(s)
	for app, have := range o.by {
		if have.before(*s) {
			delete(o.by, app)
		}
	}
}

// of is what a read of q has to come after.
func (o *ownWrites) of(q *query) (out []*seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rest != nil {
		out = append(out, o.rest)
	}
	if len(o.by) == 0 {
		return out
	}
	if q.all() {
		for app, s := range o.by {
			if app.store == q.store {
				out = append(out, s)
			}
		}
		return out
	}
	q.applications(func(app application) {
		if s := o.by[app]; s != nil {
			out = append(out, s)
		}
	})
	return out
}

// newest is the newest of all.
func (o *ownWrites) newest() (at seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rest != nil {
		at = *o.rest
	}
	for _, s := range o.by {
		if at.before(*s) {
			at = *s
		}
	}
	return at
}

// settle forgets what a read has come after, unless there is news since.
func (o *ownWrites) settle(q *query, done []*seen) {
	if len(done) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range done {
		if o.rest == s {
			o.rest = nil
		}
	}
	drop := func(app application) {
		for _, s := range done {
			if o.by[app] == s {
				delete(o.by, app)
			}
		}
	}
	if !q.all() {
		q.applications(drop)
		return
	}
	for app := range o.by {
		drop(app)
	}
}

// moveTo notes what a read at another server has shown: the next one may be another's.
// Reads of that kind share what they have shared before.
func (o *ownWrites) moveTo(q *query, at seen, shared bool) {
	if shared || q.all() {
		o.shareAll(&at)
	}
	if !q.all() {
		q.applications(func(app application) { o.note(app, at) })
	}
}

// shares reports whether one of those is everybody's.
func (o *ownWrites) shares(own []*seen) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rest != nil && len(own) > 0 && own[0] == o.rest
}

// clear forgets everything.
func (o *ownWrites) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by, o.rest = nil, nil
}

// all reports whether q reads the keys of any application.
func (q *query) all() bool { return q.kind == queryList && !strings.Contains(q.prefix, "||") }

// applications calls f for those whose keys q names; nearly always that is one.
func (q *query) applications(f func(application)) {
	if q.kind == queryList {
		f(application{q.store, prefixOf(q.prefix)})
		return
	}
	for i, k := range q.keys {
		if p := prefixOf(k); i == 0 || p != prefixOf(q.keys[i-1]) {
			f(application{q.store, p})
		}
	}
}

// noteWrite remembers a write acknowledged here: eventual reads at this node come after it.
func (h *Host) noteWrite(at seen, ops []command.Op) {
	for i := range ops {
		if p := prefixOf(ops[i].Key); i == 0 || p != prefixOf(ops[i-1].Key) {
			h.own[at.group].note(application{ops[i].Store, p}, at)
		}
	}
}

// noteAll remembers a change of everything: all eventual reads at this node come after it.
func (h *Host) noteAll(at seen) {
	h.own[at.group].shareAll(&at)
}

// settleOwn forgets what reads at this node reflect now. A node without replicas remembers
// what it has read instead: the next read may go to another server.
func (h *Host) settleOwn(gid uint32, q *query, own []*seen, got *given) {
	o := &h.own[gid]
	shared := h.scout != nil && o.shares(own)
	if got.ownDone {
		o.settle(q, own)
	}
	if h.scout != nil && got.level != state.Stale {
		o.moveTo(q, got.at, shared)
	}
}
