package raftfsm

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// RoleSidecar marks the identity of a directory without replicas.
const RoleSidecar = "sidecar"

// sidecarSuffix is the end of the id of a node without replicas. No server id ends with it, because the part of a
// server id after the last dot is hexadecimal.
const sidecarSuffix = ".sidecar"

// SidecarID returns the id by which other nodes know a node without replicas.
func SidecarID(node string) string { return node + sidecarSuffix }

// sidecar implements replica for a node without data: it reads and writes through servers.
type sidecar struct {
	peers   Peers
	explain func(group uint32) (why, hint string) // Options.NoLeader
	node    *membership
	metrics *Metrics
	retry   retries
	remote  *leaderClient
	routes  *routeTable
	wg      sync.WaitGroup
}

// openSidecar gives h the replica of a node without data.
func openSidecar(_ context.Context, h *Host) error {
	o := h.opts
	if o.Peers == nil || o.Servers == nil {
		return fault.New(fault.Invalid, "raftfsm.Open", "a host without replicas needs Peers and Servers")
	}
	id, err := identifySidecar(o)
	if err != nil {
		return err
	}
	h.node = newMembership(o.Dir, id, true, h.stop)
	s := &sidecar{peers: o.Peers, explain: o.NoLeader, node: h.node, metrics: h.metrics,
		retry: retries{h.metrics, h.stop}, routes: newRouteTable(o.Peers, o.Servers, h.stop)}
	s.remote = newLeaderClient(o.Peers, h.metrics, s.routes.calls)
	s.wg.Go(s.routes.run)
	h.replica = s
	return nil
}

// identifySidecar reads or creates the identity of the data directory of a node without replicas. It returns an error
// for a directory with a server's data, because that server would be missing from its groups.
func identifySidecar(o Options) (Identity, error) {
	id, err := readIdentity(o.Dir)
	if err != nil {
		return Identity{}, err
	}
	switch {
	case id == nil:
		id = &Identity{Node: o.newNodeID(), Role: RoleSidecar}
		if err := id.write(o.Dir); err != nil {
			return *id, err
		}
	case id.Role != RoleSidecar:
		return *id, &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: o.Dir,
			Msg: fmt.Sprintf("the data directory %s holds the data of server %s, which a sidecar would not serve",
				o.Dir, id.Node),
			Hint: "start it with --role server; or, to make it a sidecar, run quorate leave there first and then " +
				"name another --data-dir"}
	default:
		if err := id.agree(o); err != nil {
			return *id, err
		}
	}
	id.Server, id.Cluster = SidecarID(id.Node), "" // a sidecar belongs to the cluster it joins
	return *id, nil
}

// partitions implements replica.
func (s *sidecar) partitions() uint32 { return s.routes.count.Load() }

// waitPartitions implements replica. It waits until a server has been reached.
func (s *sidecar) waitPartitions(ctx context.Context) (uint32, error) {
	select {
	case <-s.routes.known:
		return s.partitions(), nil
	default:
	}
	select {
	case <-s.routes.known:
		return s.partitions(), nil
	case <-s.retry.stop:
		return 0, errClosing()
	case <-ctx.Done():
		return 0, &fault.Error{Code: fault.Unavailable, Op: "raftfsm.route",
			Msg: "no server of the cluster has been reached yet", Err: ctx.Err(),
			Hint: "see 'quorate status' and 'quorate members' on this node"}
	}
}

// leader implements replica.
func (s *sidecar) leader(gid uint32) raft.ServerID { return s.routes.leader(gid) }

// waitChange implements replica.
func (s *sidecar) waitChange(ctx context.Context, _ uint32) { s.routes.waitChange(ctx, retryPause) }

// route implements replica.
func (s *sidecar) route(gid uint32) Route { return s.routes.route(gid) }

// ready implements replica.
func (s *sidecar) ready(gid uint32) error {
	var msg string
	leader := s.leader(gid)
	switch {
	case s.partitions() == 0:
		msg = "no server of the cluster has been reached yet"
	case leader == "":
		msg = fmt.Sprintf("no server that this node reaches knows a leader of group %d", gid)
		return errLeaderless(gid, msg, s.explain, "check that servers run, and that this node reaches their peer ports")
	case !s.routes.answers(string(leader)):
		msg = fmt.Sprintf("%s, which leads group %d, does not answer this node", leader, gid)
	default:
		return nil
	}
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Ready", Msg: msg,
		Hint: "check that servers run, and that this node reaches their peer ports"}
}

// propose implements replica. It always forwards the request.
func (s *sidecar) propose(ctx context.Context, gid uint32, data group.Encoded, ack group.Ack,
	values bool) (group.Answer, error) {
	to := s.leader(gid)
	if to == "" {
		return group.Answer{}, errNoLeader("raftfsm.forward", gid)
	}
	a, err := s.remote.propose(ctx, to, gid, data, ack, values)
	s.noteFailure(string(to), err)
	return a, err
}

// ask implements replica.
func (s *sidecar) ask(ctx context.Context, gid uint32, method string, payload []byte) ([]byte, error) {
	to := s.leader(gid)
	if to == "" {
		return nil, errNoLeader("raftfsm.forward", gid)
	}
	out, err := s.remote.ask(ctx, to, gid, method, payload)
	s.noteFailure(string(to), err)
	return out, err
}

// noteFailure tells the route table that a call to a server failed, if the error concerns that server and not the
// request.
func (s *sidecar) noteFailure(to string, err error) {
	if err == nil {
		return
	}
	switch fault.CodeOf(err) {
	case fault.NotLeader, fault.Unavailable, fault.Indeterminate, fault.Timeout:
		s.routes.failed(to)
	}
}

// writesAllowed implements replica. It returns what the leader has reported last.
func (s *sidecar) writesAllowed(gid uint32) error {
	if !s.routes.readOnly(gid) {
		return nil
	}
	return &fault.Error{Code: fault.ReadOnly, Op: "raftfsm.space", Key: utoa(gid),
		Msg:  fmt.Sprintf("group %d is read-only: the disks of a majority of its voters are nearly full", gid),
		Hint: "free space there, see 'quorate status' on a server; writes open again by themselves, deletes still work"}
}

// serve implements replica. It refuses every call, because this node has no groups.
func (s *sidecar) serve(_ context.Context, method string, payload []byte) ([]byte, error) {
	_, _, _, err := openCall(method, payload, 0)
	return nil, err
}

// export implements replica.
func (s *sidecar) export(context.Context, uint32, raftlog.Position) (*kv.Export, backup.Group, error) {
	return nil, backup.Group{}, errNoData("raftfsm.Backup")
}

// settle implements replica. It also records the position of the answer, because the next read may go to another
// server.
func (s *sidecar) settle(own *ownWrites, q *query, done []*session.Seen, got given) {
	shared := own.shares(done)
	if got.ownDone {
		own.settle(q, done)
	}
	if got.level != state.Stale {
		own.moveTo(q, got.at, shared)
	}
}

// close implements replica.
func (s *sidecar) close() error {
	s.remote.close()
	s.wg.Wait()
	return nil
}

// firstTry is the time limit of the first server that is tried for a read. It doubles with each round of servers, so
// a paused server delays most reads only by firstTry.
const firstTry = 1500 * time.Millisecond

// read implements replica. It sends a strong read directly to the leader. It sends an eventual read to the nearest
// server, and to the next one if that server fails or its replica has not caught up.
func (s *sidecar) read(ctx context.Context, gid uint32, ask asking, q *query) (given, error) {
	var last error
	for patience := firstTry; ; patience *= 2 {
		var stale *given
		for _, to := range s.targets(gid, q.strong) {
			got, err := s.askRead(ctx, to, gid, ask, q, patience)
			if err == nil && got.reason == staleBehind {
				kept := got
				stale = &kept // another replica may be further ahead
				continue
			}
			if err == nil || !readElsewhere(err) || ctx.Err() != nil {
				return got, s.readError(ctx, gid, err)
			}
			last = err
			s.noteFailure(to, err)
			if q.strong {
				break // the leader may have changed
			}
		}
		if stale != nil {
			return *stale, nil // q holds the result of that answer
		}
		if last == nil {
			last = errNoLeader("raftfsm.read", gid)
		}
		s.metrics.retries.WithLabelValues(retryCause(last)).Inc()
		s.waitChange(ctx, gid)
		if ctx.Err() != nil || s.retry.closing() {
			return given{}, noQuorum("raftfsm.read", s, gid, last)
		}
	}
}

// targets returns the servers to call, best first.
func (s *sidecar) targets(gid uint32, strong bool) []string {
	readers := s.routes.readers(gid)
	leader := string(s.leader(gid))
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

func (s *sidecar) readError(ctx context.Context, gid uint32, err error) error {
	if err != nil && ctx.Err() != nil && readElsewhere(err) {
		return noQuorum("raftfsm.read", s, gid, err)
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
