package raftfsm_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/session"
)

// cluster is several hosts in one process. Raft and calls between servers use memory, and links can be cut.
type cluster struct {
	raftfsm.NoCluster
	t     testing.TB
	mu    sync.Mutex
	hosts map[string]*raftfsm.Host // by server id; nil = down
	wires map[string]map[uint32]*raft.InmemTransport
	apart map[[2]string]bool
	hangs map[string]chan<- string // by server id: writes and read indexes hang; each method is sent to the channel
	// spoil answers calls instead of the called server; nil = the server does
	spoil func(method string, payload []byte, serve func() ([]byte, error)) ([]byte, error)
	late  sync.WaitGroup // calls to a hanging server that arrive late
}

// network is the connection of one server to the others.
type network struct {
	c    *cluster
	self string // server id; guarded by c.mu
}

// Wait implements peercalls.Peers.
func (n *network) Wait(ctx context.Context, server, method string, payload []byte) ([]byte, error) {
	return n.Call(ctx, server, method, payload)
}

// Call implements peercalls.Peers.
func (n *network) Call(ctx context.Context, server, method string, payload []byte) ([]byte, error) {
	n.c.mu.Lock()
	self := n.self
	h, cut := n.c.hosts[server], n.c.apart[[2]string{self, server}]
	hung, spoil := n.c.hangs[server], n.c.spoil
	n.c.mu.Unlock()
	if h == nil || cut {
		return nil, fault.New(fault.Unavailable, "test.Call", server+" cannot be reached")
	}
	if hung != nil && (method == peercalls.MethodPropose || method == peercalls.MethodReadIndex) {
		return nil, n.c.hang(ctx, hung, h, method, slices.Clone(payload))
	}
	serve := func() ([]byte, error) { return h.Serve(ctx, method, payload) }
	if spoil != nil {
		whole := serve
		serve = func() ([]byte, error) { return spoil(method, payload, whole) }
	}
	out, err := serve()
	n.c.mu.Lock()
	cut = n.c.apart[[2]string{server, self}]
	n.c.mu.Unlock()
	if cut {
		return nil, fault.New(fault.Indeterminate, "test.Call", "the answer of "+server+" was lost")
	}
	return out, err
}

// hang sends the method to tell, and waits until the caller gives up. Only then does it deliver the call to h.
func (c *cluster) hang(ctx context.Context, tell chan<- string, h *raftfsm.Host, method string, payload []byte) error {
	tell <- method
	<-ctx.Done()
	c.late.Go(func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = h.Serve(late, method, payload) // the caller has given up
	})
	return &fault.Error{Code: fault.Indeterminate, Op: "test.Call", Msg: "no answer came", Err: ctx.Err()}
}

// newCluster returns a cluster without servers.
func newCluster(t testing.TB) *cluster {
	return &cluster{t: t, hosts: map[string]*raftfsm.Host{}, wires: map[string]map[uint32]*raft.InmemTransport{},
		apart: map[[2]string]bool{}, hangs: map[string]chan<- string{}}
}

// startCluster forms a cluster with the given number of voters. change changes the options of each server; nil = none.
func startCluster(t testing.TB, size int, change func(*raftfsm.Options)) *cluster {
	t.Helper()
	c := newCluster(t)
	first := c.add(1, change)
	for i := 2; i <= size; i++ {
		h := c.add(i, change)
		must(t, h.Adopt(first.Identity().Cluster, 0))
		for g := range first.Groups() {
			c.admit(g, raft.ServerID(h.Identity().Server))
		}
	}
	return c
}

// admit makes a server a voter of a group. It looks for the leader each time, because on a busy machine the
// leader may change.
func (c *cluster) admit(gid int, id raft.ServerID) {
	c.t.Helper()
	eventually(c.t, func() error {
		err := errors.New("no leader")
		for _, h := range c.running() {
			if g := h.Groups()[gid]; g.Leading() {
				if err = g.AddNonvoter(c.t.Context(), id, 0); err == nil {
					err = g.Promote(c.t.Context(), id, 0)
				}
			}
		}
		return err
	})
}

// running returns the running hosts.
func (c *cluster) running() []*raftfsm.Host {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*raftfsm.Host
	for _, h := range c.hosts {
		if h != nil {
			out = append(out, h)
		}
	}
	return out
}

// add opens host i. Host 1 forms the cluster.
func (c *cluster) add(i int, change func(*raftfsm.Options)) *raftfsm.Host {
	c.t.Helper()
	h := open(c.t, c.options(i, change))
	c.mu.Lock()
	c.hosts[h.Identity().Server] = h
	c.mu.Unlock()
	return h
}

// options returns the options of server i. Server 1 forms the cluster.
func (c *cluster) options(i int, change func(*raftfsm.Options)) raftfsm.Options {
	c.t.Helper()
	self := &network{c: c}
	o := options(c.t, c.t.TempDir())
	o.NodeID, o.Bootstrap, o.Peers = fmt.Sprintf("n%d", i), i == 1, self
	o.Timing = group.Timing{Heartbeat: 500 * time.Millisecond, Election: 500 * time.Millisecond,
		Lease: 400 * time.Millisecond}
	o.Transport = func(id uint32, server raft.ServerID) raft.Transport {
		c.mu.Lock()
		self.self = string(server) // the same for all groups
		c.mu.Unlock()
		tr := c.wire(id, server)
		if o.Bootstrap {
			stand(tr, server)
		}
		return tr
	}
	if change != nil {
		change(&o)
	}
	return o
}

// stand makes a server that is being opened start an election at once, because it is the only voter.
func stand(to *raft.InmemTransport, server raft.ServerID) {
	at, from := raft.NewInmemTransportWithTimeout("", 5*time.Second)
	from.Connect(raft.ServerAddress(server), to)
	go func() {
		now := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax,
			Addr: []byte(at)}}
		// After an error, the server starts an election after its timeout.
		_ = from.TimeoutNow(server, raft.ServerAddress(server), now, new(raft.TimeoutNowResponse))
	}()
}

// term returns the greatest term in group 0 of all running servers.
func (c *cluster) term() uint64 {
	var term uint64
	for _, h := range c.running() {
		term = max(term, h.Groups()[0].Term())
	}
	return term
}

// seesAll runs rounds of a write and a read that must see the write. While there is no leader, or after an
// eventual write was lost, a read may be stale and marked as such. Then the round is repeated.
func seesAll(t *testing.T, rounds int, round func(i int, value string) state.Item) {
	t.Helper()
	stale := 0
	for i := 0; i < rounds; i++ {
		value := fmt.Sprint(i)
		got := round(i, value)
		switch {
		case got.Level == state.Stale && stale < rounds/4:
			stale++
			i--
			<-time.After(20 * time.Millisecond)
		case string(got.Value) != value || got.Level != state.SessionLevel:
			t.Fatalf("write %d: read %q at level %s, after %d stale answers", i, got.Value, got.Level, stale)
		}
	}
}

// wire creates the raft transport of a server and connects it with all others.
func (c *cluster) wire(id uint32, server raft.ServerID) *raft.InmemTransport {
	_, tr := raft.NewInmemTransportWithTimeout(raft.ServerAddress(server), 200*time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wires[string(server)] == nil {
		c.wires[string(server)] = map[uint32]*raft.InmemTransport{}
	}
	c.wires[string(server)][id] = tr
	for other, wires := range c.wires {
		if w := wires[id]; w != nil && other != string(server) && !c.apart[[2]string{string(server), other}] {
			tr.Connect(raft.ServerAddress(other), w)
			w.Connect(raft.ServerAddress(server), tr)
		}
	}
	return tr
}

// isolate cuts all links of a server, in both directions; heal restores them.
func (c *cluster) isolate(server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.wires {
		if other != server {
			c.apart[[2]string{server, other}], c.apart[[2]string{other, server}] = true, true
		}
	}
	c.lagLocked(server)
}

func (c *cluster) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.apart)
	for a, from := range c.wires {
		for b, to := range c.wires {
			for id := range from {
				if a != b {
					from[id].Connect(raft.ServerAddress(b), to[id])
				}
			}
		}
	}
}

// leader waits until a running server leads group 0, and returns this server. except is empty, or has the id of one
// server that does not count.
func (c *cluster) leader(except ...string) *raftfsm.Host {
	c.t.Helper()
	var found *raftfsm.Host
	eventually(c.t, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for id, h := range c.hosts {
			if h != nil && h.Groups()[0].Leading() && (len(except) == 0 || except[0] != id) {
				found = h
				return nil
			}
		}
		return errors.New("no leader")
	})
	return found
}

// others returns all hosts except h.
func (c *cluster) others(h *raftfsm.Host) []*raftfsm.Host {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*raftfsm.Host
	for _, o := range c.hosts {
		if o != nil && o != h {
			out = append(out, o)
		}
	}
	return out
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCluster_AnyServerServesAnyRequest(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	lead := c.leader()
	for _, follower := range c.others(lead) {
		s := follower.Store("", "s")
		eventually(t, func() error { return follower.Ready(0) })
		for _, app := range []string{"a", "b", "c"} { // keys in both partitions
			key := app + "||" + follower.Identity().Node
			w := set(t, s, key, "1", state.Strong)
			if got := get(t, lead.Store("", "s"), key, state.Strong); got.ETag != w.ETags[0] {
				t.Errorf("%s: written with etag %s through a follower, the leader reads %q", key, w.ETags[0], got.ETag)
			}
			set(t, lead.Store("", "s"), key, "2", state.Strong)
			if got := get(t, s, key, state.Strong); string(got.Value) != "2" || got.Level != state.Linearizable {
				t.Errorf("%s: a strong read at a follower gave %q at %s", key, got.Value, got.Level)
			}
			_, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: key, Value: []byte("3"),
				ETag: w.ETags[0]}}})
			if !fault.Is(err, fault.Conflict) || fault.KeyOf(err) != key {
				t.Errorf("%s: a stale etag through a follower gave %v", key, err)
			}
		}
	}
}

func TestEventualRead_FollowsOwnWritesOfNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	follower := c.others(c.leader())[0]
	eventually(t, func() error { return follower.Ready(0) })
	s := follower.Store("", "s")
	seesAll(t, 200, func(_ int, value string) state.Item {
		set(t, s, "app||k", value, state.Eventual)
		return get(t, s, "app||k", state.Eventual)
	})
}

func TestSession_IsValidOnEveryServer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	lead := c.leader()
	follower := c.others(lead)[0]
	eventually(t, func() error { return follower.Ready(0) })
	seesAll(t, 200, func(_ int, value string) state.Item {
		w := set(t, lead.Store("", "s"), "app||k", value, state.Eventual)
		got, err := follower.Store("", "s").Get(t.Context(), state.GetRequest{Key: "app||k",
			ReadOptions: state.ReadOptions{Session: w.Session}})
		must(t, err)
		return got
	})
}

func TestCluster_WriteSurvivesLeaderLoss(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	lead := c.leader()
	s := lead.Store("", "s")
	for i := range 50 {
		set(t, s, fmt.Sprintf("app||%d", i), "v", state.Strong)
	}
	id := lead.Identity().Server
	c.isolate(id)
	next := c.leader(id)
	for i := range 50 {
		if got := get(t, next.Store("", "s"), fmt.Sprintf("app||%d", i), state.Strong); !got.Found() {
			t.Fatalf("key %d is lost", i)
		}
	}
	set(t, next.Store("", "s"), "app||after", "v", state.Strong)

	// The deposed leader must not answer strong reads. Its writes fail or wait.
	_, err := s.Get(within(t, 300*time.Millisecond), state.GetRequest{Key: "app||after",
		ReadOptions: state.ReadOptions{Consistency: state.Strong}})
	if err == nil {
		t.Error("a server without a majority answered a strong read")
	}
	_, err = s.Set(within(t, 300*time.Millisecond),
		state.SetRequest{Items: []state.Write{{Key: "app||x", Value: []byte("1")}}, Consistency: state.Strong})
	if code := fault.CodeOf(err); code != fault.Unavailable && code != fault.Indeterminate && code != fault.Timeout {
		t.Errorf("a write without a majority gave %v", err)
	}
	c.heal()
	eventually(t, func() error {
		got, err := s.Get(within(t, 10*time.Second), state.GetRequest{Key: "app||after",
			ReadOptions: state.ReadOptions{Consistency: state.Strong}})
		if err == nil && !got.Found() {
			t.Fatal("a strong read went back in time")
		}
		return err
	})
}

// loseWrite writes a key at a leader that no other server can hear, and returns the leader. It calls prepare with the
// store of the leader before. If the leader steps down before it acknowledges the write, loseWrite tries again.
func (c *cluster) loseWrite(key string, prepare func(state.Store)) (lead *raftfsm.Host, w state.Written) {
	c.t.Helper()
	for {
		lead = c.leader()
		s := lead.Store("", "s")
		prepare(s)
		c.isolate(lead.Identity().Server)
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		w, err := s.Set(ctx, state.SetRequest{Items: []state.Write{{Key: key, Value: []byte("lost")}},
			Consistency: state.Eventual})
		cancel()
		if err == nil {
			return lead, w
		}
		c.t.Logf("the leader stepped down before it acknowledged the write: %v", err)
		c.heal()
	}
}

func TestLostWrite_IsReportedToSession(t *testing.T) {
	t.Parallel()
	registries := map[string]*prometheus.Registry{} // by node id
	c := startCluster(t, 3, func(o *raftfsm.Options) { registries[o.NodeID] = o.Registerer.(*prometheus.Registry) })
	var old uint64
	lead, w := c.loseWrite("app||k", func(s state.Store) {
		set(t, s, "app||k", "old", state.Strong)
		old = c.leader().Groups()[0].Machine().Applied()
	})
	s := lead.Store("", "s")
	next := c.leader(lead.Identity().Server)
	set(t, next.Store("", "s"), "app||k", "new", state.Strong)
	c.heal()
	var told state.Item
	eventually(t, func() (err error) {
		told, err = s.Get(within(t, 10*time.Second), state.GetRequest{Key: "app||k",
			ReadOptions: state.ReadOptions{Session: w.Session}})
		switch {
		case err != nil:
			return err
		case told.Level != state.Stale:
			return fmt.Errorf("the session's write was lost, but the answer %q has level %s", told.Value, told.Level)
		case told.Session == w.Session:
			return errors.New("the answer is stale for another reason")
		}
		return nil
	})
	// The answer settles the position. A session that has it from elsewhere loses it, too.
	merged, ok := lead.MergeSessions(w.Session, told.Session)
	if got, after := lead.AnswerSession(w.Session, merged, told.Session); !ok || !after || got != told.Session {
		t.Errorf("a node that has reported the loss has the session %q, want %q", got, told.Session)
	}
	// For a called application, the lost position is replaced by what it covers.
	id := lead.Identity()
	for _, h := range []*raftfsm.Host{lead, next} {
		verified, err := h.VerifySession(within(t, time.Minute), "", w.Session)
		must(t, err)
		positions, _, err := session.Parse(verified, session.Cluster{Tag: id.Tag(), Groups: 1})
		must(t, err)
		if len(positions) != 1 || !positions[0].Committed || positions[0].Pos.Index < old {
			t.Errorf("the token of the lost write is verified as %+v, want a committed position from index %d",
				positions, old)
		}
	}
	if got := get(t, s, "app||k", state.Strong); string(got.Value) != "new" {
		t.Errorf("strong read: %q", got.Value)
	}
	for node, reg := range registries {
		want := 0.0
		if node == lead.Identity().Node {
			want = 1
		}
		eventually(t, func() error { // the loss is counted once the log of another leader has replaced the entries
			if got := counter(t, reg, "quorate_raft_eventual_writes_lost_total", "group", "0"); got != want {
				return fmt.Errorf("%s counts %v eventual writes lost, want %v", node, got, want)
			}
			return nil
		})
	}
}

// Without tokens, the application that wrote learns of the loss, even if other applications have read before.
func TestLostWrite_IsReportedToItsApplication(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	lead, _ := c.loseWrite("mine||k", func(s state.Store) {
		for _, app := range []string{"mine", "other"} {
			set(t, s, app+"||k", "old", state.Strong)
			get(t, s, app+"||k", state.Eventual)
		}
	})
	s := lead.Store("", "s")
	next := c.leader(lead.Identity().Server)
	set(t, next.Store("", "s"), "mine||k", "new", state.Strong)
	c.heal()
	eventually(t, func() error {
		if g := lead.Groups()[0]; g.Leader() == "" || g.Term() < next.Groups()[0].Term() {
			return errors.New("it has not heard of the next leader")
		}
		return nil
	})
	// A read without a leader is stale for another reason, so it is repeated. If that read had reported the
	// loss to the other application, the application that wrote would not learn of it.
	whole := func(key string) {
		t.Helper()
		eventually(t, func() error {
			if got := get(t, s, key, state.Eventual); got.Level != state.SessionLevel {
				return fmt.Errorf("%s reads %q at %s", key, got.Value, got.Level)
			}
			return nil
		})
	}
	whole("other||k")
	if got := get(t, s, "mine||k", state.Eventual); got.Level != state.Stale {
		t.Errorf("the application whose write was lost read %q at %s", got.Value, got.Level)
	}
	whole("mine||k")
}

// A session learns of a lost write from its next eventual read, also if it has written under the next leader meanwhile.
// With a token, it learns this at every node. Afterwards it still reads its later write.
func TestLostWrite_IsReportedAfterAnotherWrite(t *testing.T) {
	t.Parallel()
	for name, bound := range map[string]time.Duration{
		"with a token": 0, "without a token": 0,
		"without a token, at a leader": time.Nanosecond, // the bound makes the node ask the leader
	} {
		withToken := name == "with a token"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registries := map[string]*prometheus.Registry{} // by node id
			c := startCluster(t, 3, func(o *raftfsm.Options) {
				registries[o.NodeID] = o.Registerer.(*prometheus.Registry)
			})
			writer, w := c.loseWrite("app||lost", func(s state.Store) { set(t, s, "app||k", "old", state.Strong) })
			set(t, c.leader(writer.Identity().Server).Store("", "s"), "app||other", "1", state.Strong)
			c.heal()
			reader, token := writer, ""
			if withToken { // another node, which does not know the lost write
				reader, token = c.others(writer)[0], w.Session
			}
			again, err := writer.Store("", "s").Set(within(t, time.Minute), state.SetRequest{
				Items: []state.Write{{Key: "app||k", Value: []byte("new")}}, Consistency: state.Eventual,
				Session: token})
			must(t, err)
			if withToken {
				token = again.Session
			}
			s := reader.Store("", "s")
			read := func(key string) (state.Item, error) {
				return s.Get(within(t, time.Minute), state.GetRequest{Key: key,
					ReadOptions: state.ReadOptions{Session: token, MaxStaleness: bound}})
			}
			eventually(t, func() error { // an answer before the replica has caught up is stale for another reason
				got, err := read("app||lost")
				switch {
				case err == nil && got.Level == state.Bounded: // without a leader at first, so nothing was settled
					return fmt.Errorf("read %q at level %s after the write was lost", got.Value, got.Level)
				case err == nil && got.Level != state.Stale:
					t.Fatalf("read %q at level %s after the write was lost", got.Value, got.Level)
				}
				if err == nil && counter(t, registries[reader.Identity().Node], "quorate_store_stale_reads_total",
					"reason", "lost_write") != 1 {
					err = errors.New("the answer is stale for another reason")
				}
				if withToken && err == nil {
					token = got.Session
				}
				return err
			})
			got, err := read("app||k")
			must(t, err)
			want := state.SessionLevel
			if bound > 0 {
				want = state.Bounded
			}
			if string(got.Value) != "new" || got.Level != want {
				t.Errorf("the next read returned %q at %s", got.Value, got.Level)
			}
		})
	}
}

// Only a leader knows that an entry is lost. A server that knows no leader and whose log is shorter must answer
// with an error or stale data, and must not drop the position from the session.
func TestLostWrite_IsNotReportedWithoutLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	c := startCluster(t, 3, nil)
	lead := c.leader()
	set(t, lead.Store("", "s"), "app||k", "old", state.Strong)
	alone := c.others(lead)[0]
	eventually(t, func() error { return alone.Ready(0) })
	c.isolate(alone.Identity().Server)
	w, err := lead.Store("", "s").Set(within(t, time.Minute),
		state.SetRequest{Items: []state.Write{{Key: "app||k", Value: []byte("new")}}, Consistency: state.Eventual})
	must(t, err)
	eventually(t, func() error {
		if alone.Groups()[0].Leader() != "" {
			return errors.New("it has not noticed yet")
		}
		return nil
	})
	s, session := alone.Store("", "s"), w.Session
	for i := range 2 {
		got, err := s.Get(within(t, time.Minute), state.GetRequest{Key: "app||k",
			ReadOptions: state.ReadOptions{Session: session}})
		must(t, err)
		if got.Level != state.Stale {
			t.Errorf("read %d returned %q at %s without the session's write", i, got.Value, got.Level)
		}
		session = got.Session
	}
	c.heal()
	got, err := s.Get(within(t, time.Minute), state.GetRequest{Key: "app||k",
		ReadOptions: state.ReadOptions{Consistency: state.Strong, Session: session}})
	must(t, err)
	if string(got.Value) != "new" {
		t.Errorf("read %q; the write was never lost", got.Value)
	}
}

// The term of a committed position is the term at the time of the read, not that of the entry. A replica whose
// log has the entry with an earlier term must wait for it as well.
func TestSession_WaitsForPositionOfLaterTerm(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) {
		// followers learn of a commit only with the next entry
		o.Timing.Announce, o.Timing.Commit = time.Minute, time.Minute
	})
	lead := c.leader()
	set(t, lead.Store("", "s"), "app||k", "old", state.Strong)
	w, err := lead.Store("", "s").Set(within(t, time.Minute),
		state.SetRequest{Items: []state.Write{{Key: "app||k", Value: []byte("new")}}, Consistency: state.Strong})
	must(t, err)
	token, err := base64.RawURLEncoding.DecodeString(w.Session)
	must(t, err)
	token[10]++ // changes the term, as for a read after a later election
	opts := state.ReadOptions{Session: base64.RawURLEncoding.EncodeToString(token)}
	for _, h := range c.others(lead) {
		eventually(t, func() error { return h.Ready(0) })
		got, err := h.Store("", "s").Get(within(t, time.Minute), state.GetRequest{Key: "app||k", ReadOptions: opts})
		must(t, err)
		if got.Level != state.Stale && string(got.Value) != "new" {
			t.Errorf("read %q at %s after the session had seen %q", got.Value, got.Level, "new")
		}
	}
}

func TestAdopt_RefusesServerOfAnotherCluster(t *testing.T) {
	t.Parallel()
	h := open(t, options(t, t.TempDir()))
	if err := h.Adopt("another", 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
	must(t, h.Adopt(h.Identity().Cluster, 0))
}

func TestForm_OtherServersJoin(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, hosts: map[string]*raftfsm.Host{}, wires: map[string]map[uint32]*raft.InmemTransport{},
		apart: map[[2]string]bool{}, hangs: map[string]chan<- string{}}
	a, b := c.add(2, nil), c.add(3, nil) // neither bootstraps a cluster
	candidate := a.Identity().Server
	for _, h := range []*raftfsm.Host{a, b} {
		must(t, h.Promise(candidate))
		must(t, h.Promise(candidate))
		if err := h.Promise(b.Identity().Server); !fault.Is(err, fault.Conflict) {
			t.Fatalf("a second promise gave %v", err)
		}
	}
	must(t, a.Form(within(t, time.Minute)))
	if err := a.Form(t.Context()); !fault.Is(err, fault.Conflict) {
		t.Errorf("forming twice gave %v", err)
	}
	if err := a.Promise("x"); !fault.Is(err, fault.Conflict) {
		t.Errorf("a promise of a member gave %v", err)
	}
	must(t, b.Adopt(a.Identity().Cluster, 0))
	must(t, a.Groups()[0].AddNonvoter(t.Context(), raft.ServerID(b.Identity().Server), 0))
	must(t, a.Groups()[0].Promote(t.Context(), raft.ServerID(b.Identity().Server), 0))
	set(t, a.Store("", "s"), "app||k", "1", state.Strong)
	eventually(t, func() error { return b.Ready(0) })
	if got := get(t, b.Store("", "s"), "app||k", state.Strong); string(got.Value) != "1" {
		t.Errorf("read %q", got.Value)
	}
}

func TestForm_InterruptedIsCompletedByNextStart(t *testing.T) {
	t.Parallel()
	o := options(t, t.TempDir())
	o.Bootstrap = false
	o.Step = func(string) {}
	h := open(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the cluster id is written, but the group is not formed yet
	_ = h.Form(ctx)
	id := h.Identity()
	closeHost(t, h)
	o.Registerer = prometheus.NewRegistry()
	again := open(t, o)
	if got := again.Identity(); got.Cluster != id.Cluster || got.Forming || got.Cluster == "" {
		t.Errorf("after the restart: %+v, before %+v", got, id)
	}
	set(t, again.Store("", "s"), "app||k", "1", state.Strong)
}
