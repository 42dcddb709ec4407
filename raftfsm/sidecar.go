package raftfsm

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// RoleSidecar marks the identity of a directory without replicas.
const RoleSidecar = "sidecar"

// sidecarSuffix ends the id by which other nodes know a node without replicas. No server
// id has it: what follows the last dot there is hexadecimal.
const sidecarSuffix = ".sidecar"

// SidecarID is the id of a node without replicas towards others: it is no server.
func SidecarID(node string) string { return node + sidecarSuffix }

// identifySidecar reads or makes the identity of a directory without replicas. One that
// holds a server's data is refused: nobody would serve it, and its votes would be missed.
func (h *Host) identifySidecar() error {
	id, err := readIdentity(h.opts.Dir)
	if err != nil {
		return err
	}
	switch {
	case id == nil:
		id = &Identity{Node: h.opts.newNodeID(), Role: RoleSidecar}
		if err := id.write(h.opts.Dir); err != nil {
			return err
		}
	case id.Role != RoleSidecar:
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: h.opts.Dir,
			Msg:  fmt.Sprintf("the data directory %s holds the data of server %s, which a sidecar would not serve", h.opts.Dir, id.Node),
			Hint: "start it with --role server; or, to make it a sidecar, run quorate leave there first and then name another --data-dir"}
	default:
		if err := id.agree(h.opts); err != nil {
			return err
		}
	}
	h.identity = *id
	h.identity.Server, h.identity.Cluster = SidecarID(id.Node), "" // it belongs to whatever cluster it joins
	h.self = h.identity
	return nil
}

// openSidecar prepares a host without replicas: it answers through servers.
func (h *Host) openSidecar() error {
	if h.opts.Peers == nil || h.opts.Servers == nil {
		return fault.New(fault.Invalid, "raftfsm.Open", "a host without replicas needs Peers and Servers")
	}
	if err := h.identifySidecar(); err != nil {
		return err
	}
	h.scout = newScout(h)
	h.forward = newForwarder(h)
	h.wg.Go(func() { h.scout.run(h.stop) })
	return nil
}

// makeOrigins prepares what is kept for each group on this node.
func (h *Host) makeOrigins(n int) {
	h.origins, h.own, h.vouched = make([]*origin, n), make([]ownWrites, n), make([]vouched, n)
	for i := range n {
		h.origins[i] = newOrigin(h.self.Server+"/"+h.boot, h.registrar(uint32(i))) //nolint:gosec // few
	}
}

// Partitions is the number of groups of the cluster; 0 while a node without replicas has
// not reached a server.
func (h *Host) Partitions() uint32 {
	if h.scout != nil {
		return h.scout.partitions.Load()
	}
	return h.self.Partitions
}

// partitions waits until the number of groups is known.
func (h *Host) partitions(ctx context.Context) (uint32, error) {
	if h.scout == nil {
		return h.self.Partitions, nil
	}
	select {
	case <-h.scout.known:
		return h.scout.partitions.Load(), nil
	default:
	}
	select {
	case <-h.scout.known:
		return h.scout.partitions.Load(), nil
	case <-h.stop:
		return 0, errClosing()
	case <-ctx.Done():
		return 0, &fault.Error{Code: fault.Unavailable, Op: "raftfsm.route", Msg: "no server of the cluster has been reached yet", Err: ctx.Err(),
			Hint: "see 'quorate status' and 'quorate members' on this node"}
	}
}

// readySidecar says what keeps a group from being reached; nil if nothing does.
func (h *Host) readySidecar(id uint32) error {
	var msg string
	r := h.Route(id)
	switch {
	case h.Partitions() == 0:
		msg = "no server of the cluster has been reached yet"
	case r.Leader == "":
		msg = fmt.Sprintf("no server that this node reaches knows a leader of group %d", id)
	case !h.scout.answers(string(r.Leader)):
		msg = fmt.Sprintf("%s, which leads group %d, does not answer this node", r.Leader, id)
	default:
		return nil
	}
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Ready", Msg: msg, Hint: "check that servers run, and that this node reaches their peer ports"}
}

// answers reports whether a server answered when it was asked last.
func (s *scout) answers(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.views[id]
	return v != nil && v.answer
}

// failed notes that a call to another server failed in a way that another may not.
func (h *Host) failed(to raft.ServerID, err error) {
	if h.scout == nil || err == nil {
		return
	}
	switch fault.CodeOf(err) {
	case fault.NotLeader, fault.Unavailable, fault.Indeterminate, fault.Timeout:
		h.scout.failed(string(to))
	}
}

// firstTry is how long the first server asked to read may take; each further try may take
// twice as long. A server that was paused must not hold a read up for longer.
const firstTry = 1500 * time.Millisecond

// readAway answers q from a server: a strong read from the leader, which needs no further
// hop, an eventual one from the nearest replica that can give it without marking it stale.
func (h *Host) readAway(ctx context.Context, gid uint32, ask asking, q *query) (given, error) {
	var last error
	for patience := firstTry; ; patience *= 2 {
		var stale *given
		for _, to := range h.targets(gid, q.strong) {
			got, err := h.askRead(ctx, to, gid, ask, q, patience)
			if err == nil && got.reason == staleBehind {
				kept := got
				stale = &kept // another replica may know more
				continue
			}
			if err == nil || !readElsewhere(err) || ctx.Err() != nil {
				return got, readError(ctx, gid, err)
			}
			last = err
			h.failed(raft.ServerID(to), err)
			if q.strong {
				break // who leads may have changed
			}
		}
		if stale != nil {
			return *stale, nil // q holds what came with it
		}
		if last == nil {
			last = errNoLeader("raftfsm.read", gid)
		}
		h.metrics.retries.WithLabelValues(retryCause(last)).Inc()
		h.waitChange(ctx, gid)
		if ctx.Err() != nil || h.closing() {
			return given{}, noQuorum("raftfsm.read", gid, last)
		}
	}
}

// targets are the servers to ask, best first.
func (h *Host) targets(gid uint32, strong bool) []string {
	readers := h.scout.readers(gid)
	leader := string(h.scout.leader(gid))
	if !strong || leader == "" {
		return readers
	}
	return append([]string{leader}, readers...)
}

// readElsewhere reports whether another server may answer a read that failed with err.
func readElsewhere(err error) bool {
	switch fault.CodeOf(err) {
	case fault.NotLeader, fault.Unavailable, fault.Indeterminate, fault.Timeout, fault.Overloaded:
		return true
	}
	return false
}

func readError(ctx context.Context, gid uint32, err error) error {
	if err != nil && ctx.Err() != nil && readElsewhere(err) {
		return noQuorum("raftfsm.read", gid, err)
	}
	return err
}

func retryCause(err error) string {
	switch code := fault.CodeOf(err); code {
	case fault.NotLeader, fault.Indeterminate:
		return string(code)
	}
	return string(fault.Unavailable)
}

// askRead has a server read q.
func (h *Host) askRead(ctx context.Context, to string, gid uint32, ask asking, q *query, patience time.Duration) (given, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b := append(message(formFirst, gid), boolByte(q.strong), boolByte(ask.foreign))
	b = binary.AppendUvarint(b, uint64(max(ask.bound, 0))) //nolint:gosec // not negative
	b = q.append(appendOwn(appendSeen(b, ask.session), ask.own))
	sent := time.Now()
	out, err := h.opts.Peers.Call(ctx, to, MethodRead, b)
	h.metrics.forwarded(forwardRead, err)
	if err != nil {
		return given{}, err
	}
	f := newFrame(out)
	got := readGiven(f, gid)
	if got.age > 0 || got.level == state.SessionLevel && got.age == 0 {
		got.age += time.Since(sent) // it grew older on its way
	}
	got.served = servedReplica
	if to == string(h.scout.leader(gid)) {
		got.served = servedLeader
	}
	return got, q.readFound(f)
}

// serveRead reads for a node without replicas.
func (h *Host) serveRead(ctx context.Context, gid uint32, r *frame) ([]byte, error) {
	strong := r.Byte() == 1
	ask := asking{foreign: r.Byte() == 1, bound: time.Duration(r.Uvarint())} //nolint:gosec // what was sent is not negative
	ask.session, ask.own = r.seen(gid), r.own(gid)
	q, err := readQuery(r)
	if err != nil {
		return nil, err
	}
	q.strong = strong
	got, err := h.readHere(ctx, gid, ask, q)
	if err != nil {
		return nil, err
	}
	return q.appendFound(appendGiven(nil, &got)), nil
}

// The levels as they travel.
func levels() []state.Level {
	return []state.Level{state.Linearizable, state.SessionLevel, state.Bounded, state.Stale}
}

// appendGiven encodes how a read was answered.
func appendGiven(b []byte, g *given) []byte {
	for i, l := range levels() {
		if l == g.level {
			b = append(b, byte(i))
		}
	}
	b = append(b, boolByte(g.forgive), boolByte(g.ownDone))
	b = binary.AppendUvarint(b, uint64(max(g.age+1, 0))) //nolint:gosec // not negative; 0 = not known
	return appendString(appendSeen(b, &g.at), g.reason)
}

func readGiven(f *frame, gid uint32) given {
	var g given
	level := f.Byte()
	if int(level) >= len(levels()) {
		f.Bad = true
		return g
	}
	g.level = levels()[level]
	g.forgive, g.ownDone = f.Byte() == 1, f.Byte() == 1
	g.age = time.Duration(f.Uvarint()) - 1 //nolint:gosec // a duration was sent
	if at := f.seen(gid); at != nil {
		g.at = *at
	}
	g.reason = f.Text()
	return g
}
