package raftfsm

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

const (
	// sessionPatience limits how long an eventual read waits until the replica reaches the position in the session
	// token. After this time, there is probably no quorum that could commit the position. The read then marks its
	// answer as stale.
	sessionPatience = time.Second

	// replicaPatience is how long a read on a follower waits for the local replica before it sends a request to the
	// leader.
	replicaPatience = 50 * time.Millisecond

	// Reasons why an answer is stale, as values of the label "reason".
	staleForeign  = "foreign_session"
	staleLost     = "lost_write"
	staleBehind   = "not_caught_up"
	staleNoQuorum = "no_quorum"
	staleRestored = "restored"
)

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// read executes the query q in a group at the requested level, and returns how it was answered.
func (r *router) read(ctx context.Context, gid uint32, opts *state.ReadOptions, q *query) (state.Proof, error) {
	tag, err := r.node.wait(ctx)
	if err != nil {
		return state.Proof{}, err
	}
	cluster := session.Cluster{Tag: tag, Groups: r.replica.partitions()}
	sess, foreign, err := r.tokens.Parse(opts.Session, cluster)
	if err != nil {
		return state.Proof{}, err
	}
	q.strong = opts.Consistency == state.Strong
	own := &r.group(gid).own
	ask := asking{bound: opts.MaxStaleness, foreign: foreign, own: own.positions(q)}
	if seen := slices.Clone(sess.Of(gid)); len(seen) > 0 {
		ask.session = &seen[len(seen)-1]
		for i := range seen[:len(seen)-1] { // of earlier leaders
			ask.own = append(ask.own, &seen[i])
		}
	}
	got, err := r.replica.read(ctx, gid, ask, q)
	if err != nil {
		return state.Proof{}, err
	}
	r.replica.settle(own, q, ask.own, got)
	r.metrics.gave(&got, r.replica.Leader(gid) != "")
	p := state.Proof{Level: got.level, Age: got.age, Session: opts.Session}
	r.noteSeen(got.at)
	if got.level != state.Stale || got.forgive {
		token := opts.Session
		uncovered := func(e session.Seen) bool { return !got.at.Covers(e) }
		// got.at replaces all positions of the group in the token if the answer reflects them, or if they no longer
		// count.
		if got.forgive || foreign || got.ownDone && slices.ContainsFunc(sess.Of(gid), uncovered) {
			// An answer that reports no losses, such as that of a strong read, refutes only committed positions.
			sess, token = slices.DeleteFunc(slices.Clone(sess), func(e session.Seen) bool {
				return e.Group == gid && (e.Committed || got.ownDone)
			}), ""
		}
		p.Session = r.tokens.After(token, sess, got.at, cluster)
	}
	return p, nil
}

// asking holds what a read needs to know about its requester.
type asking struct {
	bound   time.Duration // maximum age of an eventual read; 0 = none
	session *session.Seen // what the session has seen of the group
	// own has the positions of the newest writes that the application has made on the requesting node, and the
	// positions of the session that are not in the field session. The replica may not have applied these positions yet.
	own     []*session.Seen
	foreign bool // the session is of another cluster
}

// given describes how a read was answered.
type given struct {
	level   state.Level
	age     time.Duration // negative = not known
	at      session.Seen  // position that the session has seen with this answer
	reason  string        // why the answer is stale; empty = it is not
	forgive bool          // a position of the session or of the node was lost; the answer reports that
	ownDone bool          // the answer reflects asking.session and asking.own, or reports what was lost
	served  string        // value of the label "served"
}

// read implements replica. It reads from the replica of this node. If that replica is not trusted, it reads from
// another server.
func (s *server) read(ctx context.Context, gid uint32, ask asking, q *query) (given, error) {
	for patience := firstTry; ; patience *= 2 {
		got, trusted, err := s.readHere(ctx, gid, ask, q)
		if trusted || ctx.Err() != nil {
			return got, err
		}
		others := s.others(gid, q.strong)
		got, done, last := s.elsewhere.round(ctx, gid, ask, q, others, patience)
		if done {
			return got, last
		}
		if d := s.groups[gid].Doubt(); len(others) == 0 || d != nil && !d.Replaceable() {
			return given{}, err
		}
		s.metrics.retries.WithLabelValues(retryCause(last)).Inc()
		s.waitChange(ctx, gid)
		if ctx.Err() != nil || s.retry.closing() {
			return given{}, err
		}
	}
}

// readHere reads from the replica of this node. If the replica is not trusted, the result trusted is false, and err is
// the reason.
func (s *server) readHere(ctx context.Context, gid uint32, ask asking, q *query) (got given, trusted bool, err error) {
	r := reading{server: s, group: s.groups[gid], id: gid, asking: ask, q: q}
	err = unreplaced(r.group.Machine, func() error {
		r.out = given{}
		err := r.group.Trusted()
		if r.untrusted = err != nil; r.untrusted {
			return err
		}
		r.out = given{level: state.SessionLevel, age: -1, served: servedLocal}
		if q.strong {
			return r.strong(ctx)
		}
		return r.eventual(ctx)
	})
	return r.out, !r.untrusted, err
}

// unreplaced calls read, and returns its error. If read succeeds, but a received snapshot has replaced the state
// machine during the call, unreplaced repeats the call. The result may be too old in that case: read waits until the
// earlier machine has applied an index, but the new machine may have applied less.
func unreplaced(machine func() *kv.Machine, read func() error) error {
	for {
		m := machine()
		if err := read(); err != nil || machine() == m {
			return err
		}
	}
}

// others returns the other servers of a group, in the order in which a read should try them. For a strong read, the
// leader comes first if it is known. Otherwise the order is random.
func (s *server) others(gid uint32, strong bool) []string {
	var ids []string
	if s.opts.Peers == nil {
		return nil
	}
	servers, _ := s.groups[gid].Servers()
	for _, m := range servers {
		if id := string(m.ID); id != s.node.self.Server {
			ids = append(ids, id)
		}
	}
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	if i := slices.Index(ids, string(s.Leader(gid))); strong && i > 0 {
		ids[0], ids[i] = ids[i], ids[0]
	}
	return ids
}

// reading is one running read of one group.
type reading struct {
	asking
	server *server
	group  *group.Group
	id     uint32
	q      *query
	out    given
	// untrusted reports that the replica was not trusted when it was read
	untrusted bool
}

// strong performs a linearizable read. It gets a read index, waits until the local replica has applied this index, and
// then reads.
//
// If an item has expired at the leader's time, but not yet at the cluster time in the log, strong first advances the
// time in the log. Otherwise a later leader with a slow clock could return the item again.
func (r *reading) strong(ctx context.Context) error {
	// An eventual write of the session, or of this node, may be on the leader's disk and not committed yet.
	after := awaited(r.own).newest()
	if r.session != nil {
		after = awaited{&after, r.session}.newest()
	}
	for {
		sent := time.Now()
		ri, _, err := r.readIndex(ctx, after.Pos)
		if err != nil {
			return err
		}
		if r.session != nil && isInvented(*r.session, ri) {
			r.out.forgive = true
		}
		if err := r.group.WaitApplied(ctx, ri.Index); err != nil {
			return err
		}
		r.server.fresh[r.id].verified(sent)
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

// readIndex requests a read index from the leader of the group. It retries until a leader answers or ctx ends. The
// second result shows whether the leader's log contains the entry at pos. If the log contains the entry, the read index
// is at or above pos.
func (r *reading) readIndex(ctx context.Context, pos raftlog.Position) (group.ReadIndex, group.Holding, error) {
	for {
		ri, held, err := r.server.readIndex(ctx, r.id, pos)
		if err == nil || !r.server.retry.again(ctx, r.server, r.id, err) {
			if ctx.Err() != nil && err != nil {
				err = noQuorum("raftfsm.read", r.server, r.id, err)
			}
			return ri, held, err
		}
	}
}

// isInvented reports whether a client has invented the position s. The parameter ri is a read index that a leader
// returned for this read. All positions that were committed when the read began are at or below ri. So a committed
// position above ri cannot come from an earlier answer. For an uncommitted position, isInvented returns false.
func isInvented(s session.Seen, ri group.ReadIndex) bool {
	return s.Committed && s.Pos.Index > ri.Index
}

// tick proposes an entry that advances cluster time to the leader's time.
func (r *reading) tick(ctx context.Context) error {
	data, err := command.AppendRequest(nil, &command.Request{Kind: command.KindTick})
	if err != nil {
		return err
	}
	_, err = r.server.propose(ctx, r.id, data, group.Committed, false)
	switch fault.CodeOf(err) {
	case fault.NotLeader, fault.Indeterminate, fault.Unavailable:
		return nil // strong reads again, and calls tick again if necessary
	}
	return err
}

// eventual reads the local replica. It first waits until the replica has applied the positions of the session and of
// the application's newest writes on the requesting node. If the replica may be older than the maximum age of the read,
// eventual performs a strong read instead.
func (r *reading) eventual(ctx context.Context) error {
	reason, err := r.catchUp(ctx)
	if err != nil {
		return err
	}
	if age, known := r.server.fresh[r.id].age(r.group.Age()); known {
		r.out.age = age
	}
	if r.bound > 0 {
		if r.out.age < 0 || r.out.age > r.bound {
			if err := r.strong(ctx); err != nil {
				return err
			}
			r.out.level = state.Bounded
			if reason == staleLost || reason == staleRestored { // no later read reports it
				r.out.level, r.out.reason = state.Stale, reason
			}
			return nil
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

// catchUp waits until the local replica has applied the positions of the session and of the application's newest writes
// on the requesting node. On success, reason is "". Otherwise reason says why an answer of the local replica is stale.
func (r *reading) catchUp(ctx context.Context) (reason string, err error) {
	if r.foreign {
		r.out.forgive = true
		return staleForeign, nil
	}
	if !r.group.CaughtUp() {
		return staleBehind, nil
	}
	if r.session != nil {
		if reason, err = r.reach(ctx, *r.session); reason == staleNoQuorum || err != nil {
			return reason, err
		}
	}
	for _, s := range r.own {
		if r.session != nil && *s == *r.session {
			continue
		}
		why, err := r.reach(ctx, *s)
		switch {
		case err != nil:
			return why, err
		case why == staleNoQuorum:
			r.out.forgive = false // a later read reports the losses, too
			return why, nil
		case reason != staleLost && why != "":
			reason = why
		}
	}
	r.out.ownDone = true
	return reason, nil
}

// reach works like await, but returns staleRestored if a restore has replaced the data at s.
func (r *reading) reach(ctx context.Context, s session.Seen) (reason string, err error) {
	if r.restored(s) {
		return staleRestored, nil
	}
	if reason, err = r.await(ctx, s); reason == "" && err == nil && r.restored(s) { // the restore came during the wait
		return staleRestored, nil
	}
	return reason, err
}

// restored reports whether a restore has replaced the data at position s. If so, it sets r.out.forgive. The router then
// removes the position from the session token, so the loss is reported only once.
func (r *reading) restored(s session.Seen) bool {
	if s.Pos.Index >= r.group.Machine().Restored() {
		return false
	}
	r.out.forgive = true
	return true
}

// await waits until the local replica has applied the position s. If the local log does not show whether the entry at s
// exists, await sends a request to the leader. On a follower, it first waits up to replicaPatience for the local log.
// The result is one of these:
//
//   - reason is "" and err is nil: the replica has applied s.
//   - reason is staleLost: entries of another leader have replaced s. The replica has applied every entry that s covers
//     and that was not lost (see session.Seen.Covers), so the session can drop s.
//   - reason is staleForeign: s is committed according to the session, but this cluster has committed less.
//   - reason is staleNoQuorum: sessionPatience has passed.
//   - err is not nil: ctx has ended, or a call has failed.
func (r *reading) await(ctx context.Context, s session.Seen) (reason string, err error) {
	if r.done(s) {
		return "", nil
	}
	start := time.Now()
	defer func() { r.server.metrics.sessionWait.Observe(time.Since(start).Seconds()) }()
	wait, cancel := context.WithTimeout(ctx, sessionPatience)
	defer cancel()
	if r.holds(s) == group.Unknown && !r.group.Leading() {
		brief, end := context.WithTimeout(wait, replicaPatience)
		_ = r.group.WaitApplied(brief, s.Pos.Index)
		end()
	}
	held := r.holds(s)
	asked := held == group.Unknown
	if asked {
		var ri group.ReadIndex
		if ri, held, err = r.readIndex(wait, s.Pos); err == nil && isInvented(s, ri) {
			r.out.forgive = true
			return staleForeign, nil
		}
		if err == nil {
			err = r.group.WaitApplied(wait, ri.Index)
		}
	}
	unreachable := asked && held == group.Lost // the log of the leader may end before s
	if err == nil && !unreachable {
		err = r.group.WaitApplied(wait, s.Pos.Index)
	}
	if err == nil && !s.Committed && (unreachable || !r.hasApplied(s, held)) {
		r.server.metrics.lostEvents.Inc()
		r.out.forgive = true
		return staleLost, nil
	}
	if err != nil && ctx.Err() == nil && wait.Err() != nil {
		return staleNoQuorum, nil
	}
	return "", err
}

// hasApplied reports whether the local replica has applied the entry at the uncommitted position s, and not another
// entry in its place. The replica must already have applied everything up to s. The parameter held shows whether the
// leader's log has the entry. hasApplied uses held only if the local log no longer shows which entry was applied.
func (r *reading) hasApplied(s session.Seen, held group.Holding) bool {
	here := r.group.Holds(s.Pos)
	return here == group.Held || here == group.Unknown && held == group.Held
}

// holds reports whether the local log contains the entry at s. For a committed position it compares only the index,
// because the term in s may be higher than that of the entry.
func (r *reading) holds(s session.Seen) group.Holding {
	switch {
	case !s.Committed:
		return r.group.Holds(s.Pos)
	case s.Pos.Index <= r.group.LastIndex():
		return group.Held
	}
	return group.Unknown
}

// done reports whether it is certain that the state machine has applied the position s.
func (r *reading) done(s session.Seen) bool {
	return r.group.Machine().Applied() >= s.Pos.Index && (s.Committed || r.group.Holds(s.Pos) == group.Held)
}

// see reads the local replica and records the position of the answer. Every write that the answer reflects is at or
// below this position. pending means the same as in query.look.
func (r *reading) see(now uint64) (pending bool, err error) {
	for {
		m := r.group.Machine()
		pending, err = r.q.look(m, now)
		// After damage, Trusted returns nil only if the machine was replaced meanwhile.
		if r.untrusted = false; err == nil || fault.Is(err, fault.Corrupt) && r.group.Unreadable() {
			err = r.group.Trusted()
			r.untrusted = err != nil
		}
		if (err == nil || fault.Is(err, fault.Unavailable)) && m != r.group.Machine() {
			continue // the machine was replaced meanwhile by a received one
		}
		index := m.Visible() // before the term: an uncommitted entry of that term is then not lost below the index
		r.out.at = session.Seen{Group: r.id, Committed: true,
			Pos: raftlog.Position{Term: r.group.Term(), Index: index}}
		return pending, err
	}
}
