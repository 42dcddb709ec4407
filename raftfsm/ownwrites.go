package raftfsm

import (
	"strings"
	"sync"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm/session"
)

// maxOwn is the maximum number of applications for which ownWrites records a separate position. All other
// applications share one position.
const maxOwn = 1024

// application identifies an application: its keys are those of one store with one prefix.
type application struct{ store, prefix string }

// ownWrites records, for one group, the log position of the newest write of each application on this node. The next
// eventual read of the application waits until the replica has applied this write. If the write was lost, that read
// reports the loss.
//
// At most maxOwn applications have a position of their own. All others share the position rest. Invariant: a write is
// at or below the position of its application, or at or below rest. This holds until a read has seen the write or
// reported its loss.
type ownWrites struct {
	mu sync.Mutex
	by map[application]*session.Seen // guarded by mu; entries are replaced, never changed
	// rest is the newest position of all applications without a position of their own; guarded by mu
	rest *session.Seen
}

// note records that an application has seen the position at.
func (o *ownWrites) note(app application, at session.Seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	have, known := o.by[app]
	switch {
	case known && !have.Before(at):
		return
	case o.by == nil:
		o.by = map[application]*session.Seen{}
	case !known && len(o.by) >= maxOwn:
		o.shareOne()
	}
	o.by[app] = &at
}

// shareOne moves the position of one application to rest. The caller holds mu.
func (o *ownWrites) shareOne() {
	for app, s := range o.by {
		delete(o.by, app)
		o.share(s)
		return
	}
}

// share raises rest to s. The caller holds mu.
func (o *ownWrites) share(s *session.Seen) {
	if o.rest == nil || o.rest.Before(*s) {
		o.rest = s
	}
}

// shareAll raises rest to s, for a change that affects all applications. It drops the positions of applications that
// are before s.
func (o *ownWrites) shareAll(s *session.Seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.share(s)
	for app, have := range o.by {
		if have.Before(*s) {
			delete(o.by, app)
		}
	}
}

// positions returns the positions that a read of q has to wait for.
func (o *ownWrites) positions(q *query) (out []*session.Seen) {
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

// newest returns the newest of all positions, or the zero position if there is none.
func (o *ownWrites) newest() (at session.Seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rest != nil {
		at = *o.rest
	}
	for _, s := range o.by {
		if at.Before(*s) {
			at = *s
		}
	}
	return at
}

// settle removes the positions in applied. The read q has waited until the replica had applied these positions (see
// positions), so later reads need not wait for them. If an application has written again since, its position stays.
func (o *ownWrites) settle(q *query, applied []*session.Seen) {
	if len(applied) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range applied {
		if o.rest == s {
			o.rest = nil
		}
	}
	drop := func(app application) {
		for _, s := range applied {
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

// settleElsewhere updates own after another server has answered the read q. awaited has the positions of own that the
// read had to wait for, and got describes the answer. If the answer contains all writes up to these positions, or
// reports that writes were lost, settleElsewhere removes these positions from own. If the answer is not stale, own
// records the position of the answer. So a later read from another replica returns no older data.
func settleElsewhere(own *ownWrites, q *query, awaited []*session.Seen, got given) {
	shared := own.shares(awaited)
	if got.ownDone {
		own.settle(q, awaited)
	}
	if got.level != state.Stale {
		own.moveTo(q, got.at, shared)
	}
}

// moveTo records the position of an answer to the read q that another server has given. Later reads from other
// servers then return no older data. If shared is true, the position is recorded for all applications. Otherwise it
// is recorded only for those whose keys q reads.
func (o *ownWrites) moveTo(q *query, at session.Seen, shared bool) {
	if shared || q.all() {
		o.shareAll(&at)
	}
	if !q.all() {
		q.applications(func(app application) { o.note(app, at) })
	}
}

// shares reports whether own, a result of positions, contains the shared position rest.
func (o *ownWrites) shares(own []*session.Seen) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rest != nil && len(own) > 0 && own[0] == o.rest
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
