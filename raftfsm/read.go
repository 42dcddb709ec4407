package raftfsm

import (
	"context"
	"strconv"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
)

const (
	// sessionPatience is how long an eventual read waits for what its session has seen
	// before it is answered anyway, marked stale: no quorum can apply it at present.
	sessionPatience = time.Second

	// replicaPatience is how long a replica is waited for before the leader is asked.
	replicaPatience = 50 * time.Millisecond

	staleForeign  = "foreign_session"
	staleLost     = "lost_write"
	staleBehind   = "not_caught_up"
	staleNoQuorum = "no_quorum"
	staleRestored = "restored"
)

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// read answers q from a group at the level asked for and says at which it was given.
func (h *Host) read(ctx context.Context, gid uint32, opts *state.ReadOptions, q *query) (state.Proof, error) {
	tag, err := h.belong(ctx)
	if err != nil {
		return state.Proof{}, err
	}
	sess, foreign, err := h.tokens.parse(opts.Session, tag)
	if err != nil {
		return state.Proof{}, err
	}
	q.strong = opts.Consistency == state.Strong
	ask := asking{bound: opts.MaxStaleness, foreign: foreign, own: h.own[gid].of(q)}
	if s, ok := sess.of(gid); ok {
		ask.session = &s
	}
	var got given
	if h.scout != nil {
		got, err = h.readAway(ctx, gid, ask, q)
	} else {
		got, err = h.readHere(ctx, gid, ask, q)
	}
	if err != nil {
		return state.Proof{}, err
	}
	h.settleOwn(gid, q, ask.own, &got)
	h.metrics.gave(&got)
	p := state.Proof{Level: got.level, Age: got.age, Session: opts.Session}
	if got.level != state.Stale || got.forgive {
		token := opts.Session
		if got.forgive || foreign { // it says more than what counts
			sess, token = sess.without(gid), ""
		}
		p.Session = h.tokens.after(token, sess, got.at, tag)
	}
	return p, nil
}

// asking is what a read needs to know about the one who asks.
type asking struct {
	bound   time.Duration // on the age of an eventual read; 0 = none
	session *seen         // what the session has seen of the group
	own     []*seen       // newest writes of the application at the node that asks, if the machine may not reflect them
	foreign bool          // the session is of another cluster
}

// given is how a read was answered.
type given struct {
	level   state.Level
	age     time.Duration // negative = not known
	at      seen          // what the session has seen now
	reason  string        // why it is stale
	forgive bool          // what the session or the node had seen was lost, and the answer says so
	ownDone bool          // asking.own is reflected, or lost and reported
	served  string        // by whom, a value of the label of that name
}

// readHere answers q from the replica on this node.
func (h *Host) readHere(ctx context.Context, gid uint32, ask asking, q *query) (given, error) {
	r := reading{host: h, group: h.groups[gid], id: gid, asking: ask, q: q}
	r.out = given{level: state.SessionLevel, age: -1, served: servedLocal}
	var err error
	if q.strong {
		err = r.strong(ctx)
	} else {
		err = r.eventual(ctx)
	}
	return r.out, err
}

// reading is one read of one group.
type reading struct {
	asking
	host  *Host
	group *group.Group
	id    uint32
	q     *query
	out   given
}

// strong is linearizable: a fresh read index, the machine up to it, then the look. What
// is due but not yet removed through the log is made definite first, so that no later
// leader, whose clock may be behind, shows it again.
func (r *reading) strong(ctx context.Context) error {
	// An eventual write of the session, or of this node, may be on the leader's disk and
	// not committed yet.
	var after seen
	for _, s := range append(r.own[:len(r.own):len(r.own)], r.session) {
		if s != nil && after.before(*s) {
			after = *s
		}
	}
	for {
		sent := time.Now()
		ri, _, err := r.readIndex(ctx, after.pos)
		if err != nil {
			return err
		}
		if err := r.group.WaitApplied(ctx, ri.Index); err != nil {
			return err
		}
		r.host.vouch(r.id, sent)
		pending, err := r.see(ri.Now)
		if err != nil {
			return err
		}
		if !pending {
			r.out.level, r.out.age = state.Linearizable, 0
			return nil
		}
		if err := r.tick(ctx); err != nil {
			return err
		}
	}
}

// readIndex asks until a leader can prove itself or ctx ends. after is a position the
// index must cover, if the leader's log holds it.
func (r *reading) readIndex(ctx context.Context, after group.Position) (group.ReadIndex, group.Holding, error) {
	for {
		var ri group.ReadIndex
		var held group.Holding
		var err error
		if to, away := r.host.elsewhere(r.id); away {
			ri, held, err = r.host.remoteReadIndex(ctx, to, r.id, after)
		} else {
			ri, held, err = leaderIndex(ctx, r.group, after)
		}
		if err == nil || !r.host.again(ctx, r.id, err) {
			if ctx.Err() != nil && err != nil {
				err = noQuorum("raftfsm.read", r.id, err)
			}
			return ri, held, err
		}
	}
}

// tick moves the log's time to the leader's.
func (r *reading) tick(ctx context.Context) error {
	data, err := command.AppendRequest(nil, &command.Request{Kind: command.KindTick})
	if err != nil {
		return err
	}
	_, err = r.host.propose(ctx, r.id, data, group.Committed, false)
	switch fault.CodeOf(err) {
	case fault.NotLeader, fault.Indeterminate, fault.Unavailable:
		return nil // the next round finds out
	}
	return err
}

// eventual reads the local machine, after what the session and the node that asks have written.
func (r *reading) eventual(ctx context.Context) error {
	reason, err := r.catchUp(ctx)
	if err != nil {
		return err
	}
	if age, known := r.host.age(r.id); known {
		r.out.age = age
	}
	if r.bound > 0 {
		if r.out.age < 0 || r.out.age > r.bound {
			err := r.strong(ctx)
			r.out.level = state.Bounded
			return err
		}
		r.out.level = state.Bounded
	}
	if _, err := r.see(r.group.Now()); err != nil {
		return err
	}
	if reason != "" {
		r.out.level, r.out.reason = state.Stale, reason
	}
	return nil
}

// catchUp waits for what the session and this node have seen. The reason is empty if the
// guarantees hold.
func (r *reading) catchUp(ctx context.Context) (reason string, err error) {
	if r.foreign {
		r.out.forgive = true
		return staleForeign, nil
	}
	if !r.group.CaughtUp() {
		return staleBehind, nil
	}
	if r.session != nil {
		if r.restored(*r.session) {
			return staleRestored, nil
		}
		if reason, err := r.await(ctx, *r.session); reason != "" || err != nil {
			return reason, err
		}
		if r.restored(*r.session) { // while it was waited for
			return staleRestored, nil
		}
	}
	return r.awaitOwn(ctx)
}

// awaitOwn waits for what the application has written at the node that asks.
func (r *reading) awaitOwn(ctx context.Context) (reason string, err error) {
	for _, s := range r.own {
		if r.restored(*s) {
			reason = staleRestored
			continue
		}
		why, err := r.await(ctx, *s)
		switch {
		case err != nil:
			return why, err
		case why == staleLost:
			reason = why
		case why != "":
			return why, nil
		}
	}
	r.out.ownDone = true // reflected, or lost and reported once
	return reason, nil
}

// restored reports whether what was seen has been replaced by a backup since. It is said
// once: the session goes on from what it sees now.
func (r *reading) restored(s seen) bool {
	if s.pos.Index >= r.group.Machine().Restored() {
		return false
	}
	r.out.forgive = true
	return true
}

// await waits until the machine has applied s, or says why it cannot: a short while for
// the replica at hand, then the leader tells where it stands.
func (r *reading) await(ctx context.Context, s seen) (reason string, err error) {
	if r.done(s) {
		return "", nil
	}
	start := time.Now()
	defer func() { r.host.metrics.sessionWait.Observe(time.Since(start).Seconds()) }()
	wait, cancel := context.WithTimeout(ctx, sessionPatience)
	defer cancel()
	if r.holds(s) == group.Unknown && !r.group.Leading() {
		brief, end := context.WithTimeout(wait, replicaPatience)
		_ = r.group.WaitApplied(brief, s.pos.Index)
		end()
	}
	held := r.holds(s)
	if held == group.Unknown {
		var ri group.ReadIndex
		if ri, held, err = r.readIndex(wait, s.pos); err == nil {
			err = r.group.WaitApplied(wait, ri.Index)
		}
	}
	if err == nil && held != group.Lost {
		err = r.group.WaitApplied(wait, s.pos.Index)
	}
	// Another leader's entries may have taken the place of s while it was waited for.
	if !s.committed && (held == group.Lost || r.group.Holds(s.pos) == group.Lost) {
		r.host.metrics.lostEvents.Inc()
		r.out.forgive = true
		return staleLost, nil
	}
	if err != nil && ctx.Err() == nil && wait.Err() != nil {
		return staleNoQuorum, nil
	}
	return "", err
}

// holds says what the local log tells about s. Of a position that cannot be lost only the
// index counts: its term is that of the moment when it was seen, which may be later than
// that of the entry.
func (r *reading) holds(s seen) group.Holding {
	switch {
	case !s.committed:
		return r.group.Holds(s.pos)
	case s.pos.Index <= r.group.LastIndex():
		return group.Held
	}
	return group.Unknown
}

// done reports whether the machine surely reflects s already.
func (r *reading) done(s seen) bool {
	return r.group.Machine().Applied() >= s.pos.Index && (s.committed || r.group.Holds(s.pos) == group.Held)
}

// see looks at the machine and notes the position that was seen: at least as new as
// anything the look can have shown.
func (r *reading) see(now uint64) (pending bool, err error) {
	for {
		m := r.group.Machine()
		pending, err = r.q.look(m, now)
		if err == nil {
			err = r.group.Trusted()
		}
		if (err == nil || fault.Is(err, fault.Unavailable)) && m != r.group.Machine() {
			continue // another has replaced it: a received one, or a right one
		}
		r.out.at = seen{group: r.id, pos: group.Position{Term: r.group.Term(), Index: m.Visible()}, committed: true}
		return pending, err
	}
}
