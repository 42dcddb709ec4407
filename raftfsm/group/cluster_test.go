package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/transport"
)

// cluster is several servers of one group in this process, connected by links that a test can cut.
type cluster struct {
	t      testing.TB
	change func(raft.ServerID, *Options)

	mu    sync.Mutex
	cut   map[link]bool
	nodes map[raft.ServerID]*server
}

// link is one direction between two servers.
type link struct{ from, to raft.ServerID }

// server is one server of a cluster. It keeps its directory while it is stopped.
type server struct {
	id    raft.ServerID
	dir   string
	wire  *wire
	group *Group
}

var (
	errCut  = errors.New("the wire is cut")
	testIDs = []raft.ServerID{"a", "b", "c"}
)

// quick returns t with short time limits for tests.
func quick(t Timing) Timing {
	t.Heartbeat, t.Election, t.Lease = 500*time.Millisecond, 500*time.Millisecond, 400*time.Millisecond
	t.Commit, t.ReadRound, t.SnapshotPoll = 5*time.Millisecond, 500*time.Millisecond, 20*time.Millisecond
	return t
}

// newCluster opens three servers. The first one creates the group and adds the others. change may adjust the
// options of each.
func newCluster(t testing.TB, change func(raft.ServerID, *Options)) *cluster {
	t.Helper()
	return newClusterWith(t, func(*cluster) func(raft.ServerID, *Options) { return change })
}

// newClusterWith is newCluster for options that use the cluster.
func newClusterWith(t testing.TB, change func(*cluster) func(raft.ServerID, *Options)) *cluster {
	t.Helper()
	c := &cluster{t: t, cut: map[link]bool{}, nodes: map[raft.ServerID]*server{}}
	c.change = change(c)
	dir := t.TempDir() // created before the cleanup below, so that it is removed after the servers have stopped
	t.Cleanup(c.stopAll)
	for _, id := range testIDs {
		c.nodes[id] = &server{id: id, dir: filepath.Join(dir, string(id))}
		c.start(id)
	}
	for _, id := range testIDs[1:] {
		eventually(t, func() error { // on a busy machine another server may have become leader meanwhile
			_, g := c.leader(testIDs...)
			return g.raft.AddVoter(id, raft.ServerAddress(id), 0, 0).Error()
		})
	}
	c.converge()
	return c
}

// start opens a server, for the first time or after stop.
func (c *cluster) start(id raft.ServerID) *Group {
	c.t.Helper()
	n := c.nodes[id]
	_, inmem := raft.NewInmemTransportWithTimeout(raft.ServerAddress(id), 500*time.Millisecond)
	w := &wire{InmemTransport: inmem, cluster: c, id: id}
	o := Options{
		Dir: n.dir, ServerID: id, Transport: w, Confirmer: w, Bootstrap: id == testIDs[0], MemTable: 1 << 20,
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()), Timing: quick(Timing{}),
		Fatal: func(err error) { c.t.Errorf("%s: fatal: %v", id, err) },
	}
	if c.change != nil {
		c.change(id, &o)
	}
	c.mu.Lock()
	n.wire = w
	for _, other := range c.nodes {
		if other.wire != nil {
			w.Connect(raft.ServerAddress(other.id), other.wire.InmemTransport)
			other.wire.Connect(raft.ServerAddress(id), inmem)
		}
	}
	c.mu.Unlock()
	g, err := Open(limited(c.t), o)
	if err != nil {
		c.t.Fatalf("opening %s: %v", id, err)
	}
	c.mu.Lock()
	n.group = g
	c.mu.Unlock()
	return g
}

// stop closes a server.
func (c *cluster) stop(id raft.ServerID) {
	c.t.Helper()
	c.mu.Lock()
	n := c.nodes[id]
	g := n.group
	n.group, n.wire = nil, nil
	c.mu.Unlock()
	if g != nil {
		closeGroup(c.t, g)
	}
}

func (c *cluster) stopAll() {
	for _, id := range testIDs {
		c.stop(id)
	}
}

// group returns the group of the server with the given id, or nil if the server does not run.
func (c *cluster) group(id raft.ServerID) *Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id].group
}

// running returns the groups of the running servers, by server id.
func (c *cluster) running() map[raft.ServerID]*Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[raft.ServerID]*Group{}
	for id, n := range c.nodes {
		if n.group != nil {
			out[id] = n.group
		}
	}
	return out
}

// isolate cuts all links of a server, in both directions.
func (c *cluster) isolate(id raft.ServerID) {
	for _, other := range testIDs {
		if other != id {
			c.set(link{id, other}, true)
			c.set(link{other, id}, true)
		}
	}
}

// heal restores all links.
func (c *cluster) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.cut)
}

func (c *cluster) set(l link, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[l] = cut
}

// target returns the wire at the other end of a link, or nil if the link is cut.
func (c *cluster) target(l link) *wire {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut[l] {
		return nil
	}
	return c.nodes[l.to].wire
}

// leader waits until one of the servers in ids leads and can serve requests. It returns this server.
func (c *cluster) leader(ids ...raft.ServerID) (raft.ServerID, *Group) {
	c.t.Helper()
	var id raft.ServerID
	var g *Group
	until(c.t, fmt.Sprintf("none of %v leads in time", ids), func() bool {
		for _, id = range ids {
			if g = c.group(id); g != nil && g.Leading() {
				return true
			}
		}
		return false
	})
	return id, g
}

// transfer transfers leadership to the server with the given id. It tries again after a failure, because a busy
// machine can exceed the time limit of a transfer. The server leads when transfer returns.
func (c *cluster) transfer(to raft.ServerID) {
	c.t.Helper()
	eventually(c.t, func() error {
		_, g := c.leader(testIDs...)
		if g == c.group(to) {
			return nil
		}
		err := g.raft.LeadershipTransferToServer(to, raft.ServerAddress(to)).Error()
		return errors.Join(err, errors.New(string(to)+" does not lead yet"))
	})
}

// converge waits until all running servers have the same state at the same index.
func (c *cluster) converge() {
	c.t.Helper()
	eventually(c.t, func() error {
		var index, hash uint64
		var first raft.ServerID
		for _, id := range testIDs {
			g := c.group(id)
			if g == nil {
				continue
			}
			i, h := g.Machine().Hash()
			switch {
			case first == "":
				first, index, hash = id, i, h
			case i != index:
				return fmt.Errorf("%s has applied %d, %s %d", id, i, first, index)
			case h != hash:
				c.t.Fatalf("at index %d %s and %s hold different states", i, id, first)
			}
		}
		return nil
	})
}

// put writes through the current leader and retries until the write succeeds. The leader must be one of the servers in
// ids; none = any server.
func (c *cluster) put(key, value string, ids ...raft.ServerID) Answer {
	c.t.Helper()
	if len(ids) == 0 {
		ids = testIDs
	}
	var a Answer
	eventually(c.t, func() error {
		_, g := c.leader(ids...)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		var err error
		a, err = g.ProposeRequest(ctx, setRequest(key, value), Committed)
		if err == nil && a.Result.Outcome != kv.Applied {
			err = errors.New(a.Result.Outcome.String())
		}
		return err
	})
	return a
}

// read is a linearizable read through g.
func read(ctx context.Context, g *Group, key string) (string, error) {
	ri, err := g.ReadIndex(ctx)
	if err != nil {
		return "", err
	}
	return readAt(ctx, g, key, ri)
}

// readAt reads key at g after g has applied the read index.
func readAt(ctx context.Context, g *Group, key string, ri ReadIndex) (string, error) {
	if err := g.WaitApplied(ctx, ri.Index); err != nil {
		return "", err
	}
	for {
		m := g.Machine()
		v, err := m.Get(store, key, ri.Now)
		if fault.Is(err, fault.Unavailable) && m != g.Machine() {
			continue
		}
		return string(v.Value), err
	}
}

// wire is the transport of one server. It is raft's in-memory transport, except that links can be cut during a
// call, and that heartbeats are delivered separately, as on a network.
type wire struct {
	*raft.InmemTransport
	cluster *cluster
	id      raft.ServerID

	mu        sync.Mutex
	heartbeat func(raft.RPC)
}

var _ Confirmer = (*wire)(nil)

func (w *wire) SetHeartbeatHandler(h func(raft.RPC)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heartbeat = h
}

func (w *wire) handler() func(raft.RPC) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heartbeat
}

// over runs call. It fails if the link to the server is cut before the call, or the link back is cut after the call.
func (w *wire) over(to raft.ServerAddress, call func(*wire) error) error {
	there, back := link{w.id, raft.ServerID(to)}, link{raft.ServerID(to), w.id}
	target := w.cluster.target(there)
	if target == nil {
		return errCut
	}
	if err := call(target); err != nil {
		return err
	}
	if w.cluster.target(back) != w {
		return errCut // the response is lost
	}
	return nil
}

func (w *wire) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	return w.over(to, func(target *wire) error {
		if h := target.handler(); transport.IsHeartbeat(args) && h != nil {
			return sendHeartbeat(h, args, resp)
		}
		req := *args // a copy, because raft reuses args when the call times out
		return w.InmemTransport.AppendEntries(id, to, &req, resp)
	})
}

func sendHeartbeat(handler func(raft.RPC), args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	answer := make(chan raft.RPCResponse, 1)
	req := *args
	go handler(raft.RPC{Command: &req, RespChan: answer})
	timer := time.NewTimer(500 * time.Millisecond)
	defer timer.Stop()
	select {
	case a := <-answer:
		if a.Error == nil {
			*resp = *a.Response.(*raft.AppendEntriesResponse)
		}
		return a.Error
	case <-timer.C:
		return errors.New("heartbeat timed out")
	}
}

func (w *wire) RequestVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse) error {
	return w.over(to, func(*wire) error { return w.InmemTransport.RequestVote(id, to, args, resp) })
}

func (w *wire) RequestPreVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	return w.over(to, func(*wire) error { return w.InmemTransport.RequestPreVote(id, to, args, resp) })
}

func (w *wire) TimeoutNow(id raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest,
	resp *raft.TimeoutNowResponse) error {
	return w.over(to, func(*wire) error { return w.InmemTransport.TimeoutNow(id, to, args, resp) })
}

func (w *wire) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return w.over(to, func(*wire) error { return w.InmemTransport.InstallSnapshot(id, to, args, resp, data) })
}

// ConfirmTerm queries the server at the other end of the wire.
func (w *wire) ConfirmTerm(ctx context.Context, server raft.Server, term uint64) error {
	return w.over(server.Address, func(*wire) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		g := w.cluster.group(server.ID)
		if g == nil {
			return errCut
		}
		return g.AnswerConfirm(term)
	})
}

// register registers an origin for a client that retries, and returns the number of the origin.
func (c *cluster) register(name string) uint64 {
	c.t.Helper()
	var number uint64
	eventually(c.t, func() error {
		_, g := c.leader(testIDs...)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		a, err := g.ProposeRequest(ctx, &command.Request{Kind: command.KindRegister, Name: name}, Committed)
		if err == nil {
			number = a.Result.Revisions[0]
		}
		return err
	})
	return number
}
