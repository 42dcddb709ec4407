package raftfsm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
)

// sidecar opens a host without replicas that reaches the servers of c.
func (c *cluster) sidecar(name string) (*raftfsm.Host, *prometheus.Registry) {
	c.t.Helper()
	reg := prometheus.NewRegistry()
	o := options(c.t, c.t.TempDir())
	o.NodeID, o.Bootstrap, o.Sidecar, o.Registerer = name, false, true, reg
	o.Peers, o.Cluster = &network{c: c, self: raftfsm.SidecarID(name)}, c
	h := open(c.t, o)
	must(c.t, h.Adopt(c.id(), 0))
	eventually(c.t, func() error {
		if h.Partitions() == 0 {
			return errors.New("no server was reached")
		}
		return h.Ready(0)
	})
	return h, reg
}

// id returns the id of the cluster.
func (c *cluster) id() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.hosts {
		if s != nil {
			return s.Identity().Cluster
		}
	}
	return ""
}

// A node that knows no cluster yet must not return a session token. Other nodes would consider it a token of
// another cluster, and the session would lose its positions.
func TestSidecar_SessionBeginsAfterJoining(t *testing.T) {
	c := startCluster(t, 1, nil)
	server := c.hosts[c.LiveServers()[0]].Store("", "s")
	seen, err := server.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "app||k", Value: []byte("1")}},
		Consistency: state.Strong})
	must(t, err)

	o := options(t, t.TempDir())
	o.NodeID, o.Bootstrap, o.Sidecar = "side", false, true
	o.Peers, o.Cluster = &network{c: c, self: raftfsm.SidecarID("side")}, c
	h := open(t, o)
	s := h.Store("", "s")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Get(short, state.GetRequest{Key: "app||k", ReadOptions: state.ReadOptions{Session: seen.Session}})
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("a read at a node of no cluster: %v", err)
	}
	type answer struct {
		written state.Written
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		w, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "app||k", Value: []byte("2")}},
			Consistency: state.Strong, Session: seen.Session})
		answers <- answer{w, err}
	}()
	must(t, h.Adopt(c.id(), 0))
	a := <-answers
	must(t, a.err)
	item, err := server.Get(t.Context(), state.GetRequest{Key: "app||k",
		ReadOptions: state.ReadOptions{Session: a.written.Session}})
	must(t, err)
	if item.Level == state.Stale || string(item.Value) != "2" {
		t.Errorf("a read with the session of the write returned %q, %s", item.Value, item.Level)
	}
}

// LiveServers implements raftfsm.Cluster.
func (c *cluster) LiveServers() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for id, h := range c.hosts {
		if h != nil {
			out = append(out, id)
		}
	}
	return out
}

// apartFrom cuts the links between a node and servers in both directions, for calls only.
func (c *cluster) apartFrom(node string, servers ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range servers {
		c.apart[[2]string{node, s}], c.apart[[2]string{s, node}] = true, true
	}
}

func TestSidecar_Conformance(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the conformance suite a second time, over calls")
	}
	var clock testClock
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Now, o.Partitions = clock.now, 2 })
	h, _ := c.sidecar("side")
	statetest.Run(t, func(*testing.T) state.Store { return h.Store("ns", "suite") },
		statetest.Options{Clock: &statetest.Clock{Now: clock.now, Advance: clock.advance}, RequestIDs: true, Rounds: 2})
}

func TestSidecar_SurvivesLeaderLoss(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	h, _ := c.sidecar("side")
	s := h.Store("", "s")
	set(t, s, "app||k", "before", state.Strong)
	old := c.leader().Identity().Server
	c.isolate(old)
	c.apartFrom("side.sidecar", old)
	set(t, s, "app||k", "after", state.Strong)
	if got := get(t, s, "app||k", state.Strong); string(got.Value) != "after" || got.Level != state.Linearizable {
		t.Errorf("strong read: %q at %s", got.Value, got.Level)
	}
	eventually(t, func() error {
		if got := get(t, s, "app||k", state.Eventual); string(got.Value) != "after" || got.Level != state.SessionLevel {
			return fmt.Errorf("eventual read: %q at %s", got.Value, got.Level)
		}
		return nil
	})
}

func TestSidecar_EventualReadsNeverGoBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	h, _ := c.sidecar("side")
	s := h.Store("", "s")
	servers := c.LiveServers()
	seesAll(t, 90, func(i int, value string) state.Item {
		// A different server answers each time, because the other two are unreachable.
		c.mu.Lock()
		clear(c.apart)
		c.mu.Unlock()
		set(t, s, "app||k", value, state.Eventual)
		c.apartFrom("side.sidecar", servers[i%3], servers[(i+1)%3])
		return get(t, s, "app||k", state.Eventual)
	})
}

func TestSidecar_WritesShareCalls(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	h, reg := c.sidecar("side")
	s := h.Store("", "s")
	set(t, s, "app||first", "v", state.Strong)
	var clients sync.WaitGroup
	errs := make(chan error, 200)
	for i := range 200 {
		clients.Go(func() {
			for j := range 5 {
				_, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: fmt.Sprintf("app||%d-%d", i,
					j), Value: []byte("1")}}, Consistency: state.Strong})
				errs <- err
				if err != nil {
					return
				}
			}
		})
	}
	go func() { clients.Wait(); close(errs) }()
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	calls := counter(t, reg, "quorate_store_forwards_total", "kind", "propose")
	if calls == 0 || calls > 500 {
		t.Errorf("1001 writes of 200 clients took %v calls", calls)
	}
	page, err := s.List(t.Context(), state.ListRequest{Prefix: "app||",
		ReadOptions: state.ReadOptions{Consistency: state.Strong}, Limit: 1000})
	if err != nil || len(page.Items) != 1000 || !page.More {
		t.Errorf("%d keys, more %v, %v", len(page.Items), page.More, err)
	}
}

// counter returns the sum of a counter's series with a label value, or of all series if label is empty.
func counter(t *testing.T, reg *prometheus.Registry, name, label, value string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && label == "" {
				sum += m.GetCounter().GetValue()
			}
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetName() == label && l.GetValue() == value {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

func TestSidecar_ReadsHaveAgeWithinBound(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	h, reg := c.sidecar("side")
	s := h.Store("", "s")
	set(t, s, "app||k", "v", state.Strong)
	for range 20 {
		got, err := s.Get(t.Context(), state.GetRequest{Key: "app||k",
			ReadOptions: state.ReadOptions{MaxStaleness: time.Minute}})
		if err != nil || got.Level != state.Bounded || got.Age < 0 || got.Age > time.Minute {
			t.Fatalf("%s, age %s, %v", got.Level, got.Age, err)
		}
	}
	if n := counter(t, reg, "quorate_store_reads_total", "level", "bounded"); n != 20 {
		t.Errorf("%v bounded reads were counted", n)
	}
}

func TestSidecar_WithoutServersIsUnavailable(t *testing.T) {
	o := options(t, t.TempDir())
	c := &cluster{t: t, hosts: map[string]*raftfsm.Host{}}
	o.Sidecar, o.Peers = true, &network{c: c}
	h := open(t, o)
	if err := h.Ready(0); !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Text(err), "no server") {
		t.Errorf("ready: %v", err)
	}
	_, err := h.Store("", "s").Get(within(t, 100*time.Millisecond), state.GetRequest{Key: "app||k"})
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("get: %v", err)
	}
}

// A sidecar may know its cluster before it has reached a server. Until then, it does not know the number of groups.
func TestSidecar_NotesWaitForAServer(t *testing.T) {
	o := options(t, t.TempDir())
	c := &cluster{t: t, hosts: map[string]*raftfsm.Host{}}
	o.Sidecar, o.Peers = true, &network{c: c}
	h := open(t, o)
	must(t, h.Adopt("0123456789abcdef0123456789abcdef", 0))
	ctx := within(t, 100*time.Millisecond)
	if _, err := h.Note(ctx, "n"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("read: %v", err)
	}
	if _, err := h.NoteNames(ctx, "n"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("list: %v", err)
	}
	if _, err := h.SetNote(ctx, "n", []byte("v"), 0); !fault.Is(err, fault.Unavailable) {
		t.Errorf("write: %v", err)
	}
}

func TestSidecar_RefusesDirectoryOfServer(t *testing.T) {
	t.Parallel()
	o := options(t, t.TempDir())
	closeHost(t, open(t, o))
	o.Registerer, o.Sidecar, o.Peers = prometheus.NewRegistry(), true, &network{}
	_, err := raftfsm.Open(t.Context(), o)
	if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(err), "--role server") {
		t.Errorf("got %v", err)
	}
}

func TestSidecar_KeepsNodeIDAndCanBecomeServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := options(t, dir)
	o.Sidecar, o.Peers = true, &network{c: &cluster{}}
	first := open(t, o)
	id := first.Identity().Node
	closeHost(t, first)
	o.Registerer = prometheus.NewRegistry()
	again := open(t, o)
	if got := again.Identity(); got.Node != id || got.Server != raftfsm.SidecarID(id) {
		t.Errorf("after a restart: %+v, before: %s", got, id)
	}
	closeHost(t, again)
	server := options(t, dir)
	h := open(t, server)
	if got := h.Identity(); got.Node != id || got.Role != "" || got.Partitions != 1 {
		t.Errorf("as a server: %+v", got)
	}
}

// The bound of a bulk read is not sent to servers: the requesting node checks it, and the server has a bound of
// its own.
func TestSidecar_BoundsBulkReads(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	h, _ := c.sidecar("side")
	s := h.Store("", "s")
	set(t, s, "app||k", strings.Repeat("x", 1<<20), state.Strong)
	read := func(keys int, maxBytes int64) error {
		items, err := s.BulkGet(t.Context(), state.BulkGetRequest{Keys: slices.Repeat([]string{"app||k"}, keys),
			MaxBytes: maxBytes})
		if err == nil && (len(items) != keys || len(items[keys-1].Value) != 1<<20) {
			t.Errorf("%d keys: %d items", keys, len(items))
		}
		return err
	}
	for _, row := range []struct {
		keys     int
		maxBytes int64
		large    bool
	}{{2, 0, false}, {2, 2 << 20, false}, {3, 2 << 20, true}, {32, 0, false}, {33, 0, true}} {
		if err := read(row.keys, row.maxBytes); (err != nil) != row.large || row.large &&
			!fault.Is(err, fault.TooLarge) {
			t.Errorf("%d keys within %d bytes: %v", row.keys, row.maxBytes, err)
		}
	}
}
