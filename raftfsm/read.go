package raftfsm

import (
	"context"
	"strconv"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
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
)

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// look reads a machine at a cluster time. pending says that something was left out only
// because of that time, which the log has not reached yet.
type look func(m *kv.Machine, now uint64) (pending bool, err error)

// read serves f from a group at the level asked for and says at which it was given.
func (h *Host) read(ctx context.Context, gid uint32, opts *state.ReadOptions, f look) (state.Proof, error) {
	tag := h.tag.Load()
	sess, foreign, err := parseSession(opts.Session, tag)
	if err != nil {
		return state.Proof{}, err
	}
	r := reading{host: h, group: h.groups[gid], id: gid, session: sess, foreign: foreign, f: f}
	var p state.Proof
	var at seen
	if opts.Consistency == state.Strong {
		p, at, err = r.strong(ctx)
	} else {
		p, at, err = r.eventual(ctx, opts.MaxStaleness)
	}
	if err != nil {
		return state.Proof{}, err
	}
	p.Session = opts.Session
	if p.Level != state.Stale || r.forgive {
		if r.forgive {
			sess = sess.without(gid)
		}
		p.Session = sess.with(at).token(tag)
	}
	return p, nil
}

// reading is one read of one group.
type reading struct {
	host    *Host
	group   *group.Group
	id      uint32
	session session
	foreign bool
	f       look
	forgive bool // what the session or this node had seen of the group was lost, and the answer says so
}

// strong is linearizable: a fresh read index, the machine up to it, then the look. What
// is due but not yet removed through the log is made definite first, so that no later
// leader, whose clock may be behind, shows it again.
func (r *reading) strong(ctx context.Context) (state.Proof, seen, error) {
	for {
		// An eventual write of the session, or of this node, may be on the leader's disk and
		// not committed yet.
		after, _ := r.session.of(r.id)
		if own := r.host.own[r.id].Load(); own != nil && after.before(*own) {
			after = *own
		}
		ri, _, err := r.readIndex(ctx, after.pos)
		if err != nil {
			return state.Proof{}, seen{}, err
		}
		if err := r.group.WaitApplied(ctx, ri.Index); err != nil {
			return state.Proof{}, seen{}, err
		}
		pending, at, err := r.see(ri.Now)
		if err != nil {
			return state.Proof{}, seen{}, err
		}
		if !pending {
			return state.Proof{Level: state.Linearizable}, at, nil
		}
		if err := r.tick(ctx); err != nil {
			return state.Proof{}, seen{}, err
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
		if to := r.host.elsewhere(r.group); to != "" {
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

// eventual reads the local machine, after what the session and this node have written.
func (r *reading) eventual(ctx context.Context, bound time.Duration) (state.Proof, seen, error) {
	p := state.Proof{Level: state.SessionLevel, Age: -1}
	reason, err := r.catchUp(ctx)
	if err != nil {
		return p, seen{}, err
	}
	if age, known := r.group.Age(); known {
		p.Age = age
	}
	if bound > 0 {
		if p.Age < 0 || p.Age > bound {
			p, at, err := r.strong(ctx)
			p.Level, p.Age = state.Bounded, 0
			return p, at, err
		}
		p.Level = state.Bounded
	}
	_, at, err := r.see(r.group.Now())
	if err != nil {
		return p, seen{}, err
	}
	if reason != "" {
		p.Level = state.Stale
		r.host.metrics.staleReads.WithLabelValues(reason).Inc()
	}
	return p, at, nil
}

// catchUp waits for what the session and this node have seen. The reason is empty if the
// guarantees hold.
func (r *reading) catchUp(ctx context.Context) (reason string, err error) {
	if r.foreign {
		r.forgive = true
		return staleForeign, nil
	}
	if !r.group.CaughtUp() {
		return staleBehind, nil
	}
	if s, ok := r.session.of(r.id); ok {
		if reason, err := r.await(ctx, s); reason != "" || err != nil {
			return reason, err
		}
	}
	own := r.host.own[r.id].Load()
	if own == nil {
		return "", nil
	}
	reason, err = r.await(ctx, *own)
	if err == nil && (reason == "" || reason == staleLost) {
		r.host.own[r.id].CompareAndSwap(own, nil) // reflected, or lost and reported once
	}
	return reason, err
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
	if r.group.Holds(s.pos) == group.Unknown && !r.group.Leading() {
		brief, end := context.WithTimeout(wait, replicaPatience)
		_ = r.group.WaitApplied(brief, s.pos.Index)
		end()
	}
	held := r.group.Holds(s.pos)
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
		r.forgive = true
		return staleLost, nil
	}
	if err != nil && ctx.Err() == nil && wait.Err() != nil {
		return staleNoQuorum, nil
	}
	return "", err
}

// done reports whether the machine surely reflects s already.
func (r *reading) done(s seen) bool {
	return r.group.Machine().Applied() >= s.pos.Index && (s.committed || r.group.Holds(s.pos) == group.Held)
}

// see looks at the machine and notes the position that was seen: at least as new as
// anything the look can have shown.
func (r *reading) see(now uint64) (pending bool, at seen, err error) {
	for {
		m := r.group.Machine()
		pending, err = r.f(m, now)
		if fault.Is(err, fault.Unavailable) && m != r.group.Machine() {
			continue // a received snapshot replaced the machine
		}
		return pending, seen{group: r.id, pos: group.Position{Term: r.group.Term(), Index: m.Visible()}, committed: true}, err
	}
}
