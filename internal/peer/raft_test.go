package peer_test

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/peer"
)

// sum is a state machine that keeps a hash of its log entries. Its snapshots have ballast.
type sum struct {
	mu      sync.Mutex
	hash    uint64
	count   int
	ballast int // bytes of a snapshot beside the hash
	loaded  int
}

func (s *sum) Apply(l *raft.Log) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprintf(h, "%d:%s", s.hash, l.Data)
	s.hash, s.count = h.Sum64(), s.count+1
	return s.hash
}

func (s *sum) state() (hash uint64, count, loaded int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hash, s.count, s.loaded
}

func (s *sum) Snapshot() (raft.FSMSnapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &sumSnapshot{fmt.Appendf(nil, "%d %d\n", s.hash, s.count), s.ballast}, nil
}

func (s *sum) Restore(r io.ReadCloser) error {
	all, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	head, ballast, _ := bytes.Cut(all, []byte("\n"))
	s.loaded = len(ballast)
	_, err = fmt.Sscan(string(head), &s.hash, &s.count)
	return err
}

type sumSnapshot struct {
	head    []byte
	ballast int
}

func (s *sumSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s.head); err != nil {
		return err
	}
	for left := s.ballast; left > 0; left -= 1 << 20 {
		if _, err := sink.Write(make([]byte, min(left, 1<<20))); err != nil {
			return err
		}
	}
	return sink.Close()
}

func (s *sumSnapshot) Release() {}

// member is a server of a raft group in memory.
type member struct {
	*raft.Raft
	node  *node
	trans *peer.Transport
	fsm   *sum
}

const group = 3

func join(t testing.TB, n *node, servers []raft.Server, timeout time.Duration, ballast int) *member {
	t.Helper()
	m := &member{node: n, fsm: &sum{ballast: ballast}}
	var err error
	if m.trans, err = n.Raft(group); err != nil {
		t.Fatal(err)
	}
	conf := raft.DefaultConfig()
	conf.LocalID, conf.Logger, conf.NoLegacyTelemetry = raft.ServerID(n.id), hclog.NewNullLogger(), true
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = timeout, timeout, timeout
	conf.CommitTimeout = 10 * time.Millisecond
	conf.SnapshotThreshold, conf.TrailingLogs = 1<<40, 1
	store := raft.NewInmemStore()
	snaps := raft.NewInmemSnapshotStore()
	if servers != nil {
		if err := raft.BootstrapCluster(conf, store, store, snaps, m.trans,
			raft.Configuration{Servers: servers}); err != nil {
			t.Fatal(err)
		}
	}
	if m.Raft, err = raft.NewRaft(conf, m.fsm, store, store, snaps, m.trans); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.stop)
	return m
}

func (m *member) stop() {
	m.trans.Interrupt()
	_ = m.Shutdown().Error()
	_ = m.trans.Close()
}

// form makes a group of servers called s0, s1, ...
func form(t testing.TB, net *network, count int, timeout time.Duration, ballast int) (members []*member) {
	t.Helper()
	var servers []raft.Server
	var nodes []*node
	for i := range count {
		id := fmt.Sprintf("s%d", i)
		servers = append(servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
		nodes = append(nodes, start(t, net, id, nil))
	}
	for _, n := range nodes {
		members = append(members, join(t, n, servers, timeout, ballast))
	}
	return members
}

func leader(t testing.TB, members []*member) (found *member) {
	t.Helper()
	eventually(t, "there is one leader, known to all", func() bool {
		found = nil
		for _, m := range members {
			if m.State() == raft.Leader {
				found = m
			}
		}
		if found == nil {
			return false
		}
		for _, m := range members {
			if addr, id := m.LeaderWithID(); string(id) != found.node.id || string(addr) != found.node.id {
				return false
			}
		}
		return true
	})
	return found
}

func agree(t testing.TB, members []*member, count int) {
	t.Helper()
	eventually(t, "all have applied the same", func() bool {
		first, _, _ := members[0].fsm.state()
		for _, m := range members {
			if h, c, _ := m.fsm.state(); h != first || c != count {
				return false
			}
		}
		return true
	})
}

func apply(t testing.TB, m *member, count int) {
	t.Helper()
	var last raft.ApplyFuture
	for i := range count {
		last = m.Apply(fmt.Appendf(nil, "entry %d", i), time.Minute)
	}
	if err := last.Error(); err != nil {
		t.Fatal(err)
	}
}

func TestRaft_ElectsReplicatesAndFailsOver(t *testing.T) {
	net := newNetwork(false)
	members := form(t, net, 3, 200*time.Millisecond, 0)
	first := leader(t, members)
	apply(t, first, 500)
	agree(t, members, 500)
	first.stop()
	var rest []*member
	for _, m := range members {
		if m != first {
			rest = append(rest, m)
		}
	}
	second := leader(t, rest)
	apply(t, second, 100)
	agree(t, rest, 600)
	if err := second.LeadershipTransfer().Error(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leadership is handed over", func() bool { return leader(t, rest) != second })
	if got := second.node.metric(t, "refused_total", "reason", "unknown_group", "direction", "outbound"); got == 0 {
		t.Error("the server without the group has not refused anybody")
	}
}

func TestRaft_PartitionedLeaderIsReplacedAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		members := form(t, net, 3, time.Second, 0)
		first := leader(t, members)
		apply(t, first, 10)
		var rest []*member
		for _, m := range members {
			if m != first {
				rest = append(rest, m)
				first.node.Cut(m.node.id)
			}
		}
		second := leader(t, rest)
		if second == first {
			t.Fatal("the leader did not change")
		}
		apply(t, second, 10)
		for _, m := range rest {
			first.node.Heal(m.node.id)
		}
		if l := leader(t, members); l != second {
			t.Errorf("%s took the lead from %s when it came back", l.node.id, second.node.id)
		}
		agree(t, members, 20)
	})
}

func TestRaft_Installs50MBSnapshot(t *testing.T) {
	net := newNetwork(false)
	const ballast = 50 << 20
	members := form(t, net, 1, 200*time.Millisecond, ballast)
	l := leader(t, members)
	apply(t, l, 100)
	if err := l.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	late := join(t, start(t, net, "late", nil), nil, 200*time.Millisecond, 0)
	if err := l.AddNonvoter("late", "late", 0, 2*time.Minute).Error(); err != nil {
		t.Fatal(err)
	}
	agree(t, append(members, late), 100)
	if _, _, loaded := late.fsm.state(); loaded != ballast {
		t.Errorf("%d bytes were restored", loaded)
	}
}
