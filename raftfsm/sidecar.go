package raftfsm

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// sidecarSuffix is the suffix of the ids of nodes without data. No server id ends with it, because the part of a server
// id after the last dot is hexadecimal.
const sidecarSuffix = ".sidecar"

// SidecarID returns the id by which other nodes know a node without replicas. The parameter node is the node id.
func SidecarID(node string) string { return node + sidecarSuffix }

// sidecar implements replica for a node without data: it reads and writes through servers.
type sidecar struct {
	peers   peercalls.Peers
	cluster Cluster
	node    *membership
	metrics *Metrics
	retry   retries
	remote  *peercalls.LeaderClient
	reads   readClient
	routes  *peercalls.RouteTable
	wg      sync.WaitGroup

	watchWaits chan struct{} // a call that waits for changes holds one of the maxWatchWaits slots
}

// openSidecar sets h.replica to a sidecar.
func openSidecar(_ context.Context, h *Host) error {
	o := h.opts
	if o.Peers == nil {
		return fault.New(fault.Invalid, "raftfsm.Open", "a host without replicas needs Peers")
	}
	id, err := datadir.IdentifySidecar(o.directory())
	if err != nil {
		return err
	}
	id.Server, id.Cluster = SidecarID(id.Node), "" // a sidecar belongs to the cluster it joins
	h.node = newMembership(o.Dir, id, true, h.stop)
	s := &sidecar{peers: o.Peers, cluster: o.Cluster, node: h.node, metrics: h.metrics,
		retry: retries{h.metrics, h.stop}, routes: peercalls.NewRouteTable(o.Peers, o.Cluster, h.stop),
		watchWaits: make(chan struct{}, maxWatchWaits)}
	s.remote = s.routes.Client(h.metrics)
	s.reads = readClient{o.Peers, h.metrics, s, s.noteFailure}
	s.wg.Go(s.routes.Run)
	h.replica = s
	return nil
}

// partitions implements replica.
func (s *sidecar) partitions() uint32 { return s.routes.Partitions() }

// waitPartitions implements replica. It waits until a server has been reached.
func (s *sidecar) waitPartitions(ctx context.Context) (uint32, error) {
	select {
	case <-s.routes.Reached():
		return s.partitions(), nil
	default:
	}
	select {
	case <-s.routes.Reached():
		return s.partitions(), nil
	case <-s.retry.stop:
		return 0, peercalls.ErrClosing()
	case <-ctx.Done():
		return 0, &fault.Error{Code: fault.Unavailable, Op: "raftfsm.route",
			Msg: "no server of the cluster has been reached yet", Err: ctx.Err(),
			Hint: "see 'quorate status' and 'quorate members' on this node"}
	}
}

// Leader implements replica.
func (s *sidecar) Leader(gid uint32) raft.ServerID { return s.routes.Leader(gid) }

// waitChange implements replica.
func (s *sidecar) waitChange(ctx context.Context, _ uint32) { s.routes.WaitChange(ctx, retryPause) }

// route implements replica.
func (s *sidecar) route(gid uint32) peercalls.Route { return s.routes.Route(gid) }

// ready implements replica.
func (s *sidecar) ready(gid uint32) error {
	var msg string
	leader := s.Leader(gid)
	switch {
	case s.partitions() == 0:
		msg = "no server of the cluster has been reached yet"
	case leader == "":
		msg = fmt.Sprintf("no server that this node reaches knows a leader of group %d", gid)
		return errLeaderless(gid, msg, s.cluster, "check that servers run, and that this node reaches their peer ports")
	case !s.routes.Answers(string(leader)):
		msg = fmt.Sprintf("%s, which leads group %d, does not answer this node", leader, gid)
	default:
		return nil
	}
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Ready", Msg: msg,
		Hint: "check that servers run, and that this node reaches their peer ports"}
}

// propose implements replica. It always forwards the request to the leader.
func (s *sidecar) propose(ctx context.Context, gid uint32, data group.Encoded, ack group.Ack,
	hasValues bool) (group.Answer, error) {
	to := s.Leader(gid)
	if to == "" {
		return group.Answer{}, errNoLeader("raftfsm.forward", gid)
	}
	a, err := s.remote.Propose(ctx, to, gid, data, ack, hasValues)
	s.noteFailure(string(to), err)
	return a, err
}

// ask implements replica.
func (s *sidecar) ask(ctx context.Context, gid uint32, method string, payload []byte) ([]byte, error) {
	to := s.Leader(gid)
	if to == "" {
		return nil, errNoLeader("raftfsm.forward", gid)
	}
	out, err := s.remote.Ask(ctx, to, gid, method, payload)
	s.noteFailure(string(to), err)
	return out, err
}

// readIndex implements replica.
func (s *sidecar) readIndex(ctx context.Context, gid uint32, after raftlog.Position) (group.ReadIndex, group.Holding,
	error) {
	to := s.Leader(gid)
	if to == "" {
		return group.ReadIndex{}, group.Unknown, errNoLeader("raftfsm.forward", gid)
	}
	ri, held, err := s.remote.ReadIndex(ctx, to, gid, after)
	s.noteFailure(string(to), err)
	return ri, held, err
}

// confirm implements replica.
func (s *sidecar) confirm(n session.Seen) (session.Seen, bool) { return n, false }

// noteFailure records in the route table that a call to the given server has failed. It ignores errors that come from
// the request and not from the server.
func (s *sidecar) noteFailure(target string, err error) {
	if err == nil {
		return
	}
	switch fault.CodeOf(err) {
	case fault.NotLeader, fault.Unavailable, fault.Indeterminate, fault.Timeout:
		s.routes.Failed(target)
	}
}

// writesAllowed implements replica. It returns what the leader has reported last.
func (s *sidecar) writesAllowed(gid uint32) error {
	if !s.routes.ReadOnly(gid) {
		return nil
	}
	return &fault.Error{Code: fault.ReadOnly, Op: "raftfsm.space", Key: utoa(gid),
		Msg:  fmt.Sprintf("group %d is read-only: the disks of a majority of its voters are nearly full", gid),
		Hint: "free some space there, or delete keys; writes open again by themselves within a minute"}
}

// serve implements replica. It refuses every call, because this node has no groups.
func (s *sidecar) serve(_ context.Context, method string, payload []byte) ([]byte, error) {
	_, _, err := openCall(method, payload, 0)
	return nil, err
}

// export implements replica.
func (s *sidecar) export(context.Context, uint32, raftlog.Position) (*kv.Export, backup.Group, error) {
	return nil, backup.Group{}, errNoData("raftfsm.Backup")
}

// settle implements replica.
func (s *sidecar) settle(own *ownWrites, q *query, done []*session.Seen, got given) {
	settleElsewhere(own, q, done, got)
}

// close implements replica.
func (s *sidecar) close() error {
	s.remote.Close()
	s.wg.Wait()
	return nil
}

// read implements replica. It sends a strong read to the leader, and an eventual read to the nearest server. If the
// leader fails, read determines the leader again and retries. If the nearest server fails or its replica has not caught
// up, read tries the next server.
func (s *sidecar) read(ctx context.Context, gid uint32, ask asking, q *query) (given, error) {
	var last error
	for patience := firstTry; ; patience *= 2 {
		got, done, err := s.reads.round(ctx, gid, ask, q, s.targets(gid, q.strong), patience)
		if done {
			return got, s.readError(ctx, gid, err)
		}
		if last = cmp.Or(err, last); last == nil {
			last = errNoLeader("raftfsm.read", gid)
		}
		s.metrics.retries.WithLabelValues(retryCause(last)).Inc()
		s.waitChange(ctx, gid)
		if ctx.Err() != nil || s.retry.closing() {
			return given{}, noQuorum("raftfsm.read", s, gid, last)
		}
	}
}

// targets returns the servers to call, best first. If strong is true and the leader is known, the leader is first.
func (s *sidecar) targets(gid uint32, strong bool) []string {
	readers := s.routes.Readers(gid)
	leader := string(s.Leader(gid))
	if !strong || leader == "" {
		return readers
	}
	return append([]string{leader}, readers...)
}

func (s *sidecar) readError(ctx context.Context, gid uint32, err error) error {
	if err != nil && ctx.Err() != nil && readElsewhere(err) {
		return noQuorum("raftfsm.read", s, gid, err)
	}
	return err
}
