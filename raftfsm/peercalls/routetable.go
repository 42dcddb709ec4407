package peercalls

import (
	"cmp"
	"context"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/session"
)

const (
	pollPeriod  = 2 * time.Second        // interval of polls of all servers while nothing fails
	pollPause   = 100 * time.Millisecond // minimum time between polls
	pollHang    = 500 * time.Millisecond // interval of polls while a call to a leader has lasted at least this long
	pollWait    = time.Second            // limit for the answer of one server
	avoidFailed = 3 * time.Second        // how long a server is avoided after a failed call
)

// RouteTable chooses the servers to which a node without data sends its calls. It records the leader of each group,
// the servers that can serve reads, and the round-trip time to each server. It polls every server that gossip
// reports as alive, periodically and after each failed call. It is safe for concurrent use.
type RouteTable struct {
	peers  Peers
	gossip Gossip
	calls  *leaderCalls
	stop   chan struct{}
	kick   chan struct{} // capacity 1: poll now

	count atomic.Uint32 // number of groups; 0 = no server has been reached; written once
	known chan struct{} // closed when count is set

	mu      sync.Mutex
	views   map[string]*serverView // by server id
	near    map[uint32]string      // by group: the server to read from
	changed chan struct{}          // closed when views have changed
}

// serverView is the last answer of one server.
type serverView struct {
	trip   time.Duration // smoothed round trip; 0 = it has not answered
	answer bool          // it answered the last poll
	failed time.Time     // time of the last failed call to it
	groups []GroupRoute  // by group
}

// GroupRoute is a server's answer about one group.
type GroupRoute struct {
	Leader string // server id; empty = no leader known
	Term   uint64
	Reads  bool // its replica can serve reads: it is a member and has caught up
	Full   bool // the group is read-only
}

// NewRouteTable returns a table that does not poll until Run is called. When the channel stop is closed, polls end and
// calls of WaitChange return.
func NewRouteTable(p Peers, g Gossip, stop chan struct{}) *RouteTable {
	t := &RouteTable{peers: p, gossip: g, stop: stop, kick: make(chan struct{}, 1), known: make(chan struct{}),
		views: map[string]*serverView{}, near: map[uint32]string{}, changed: make(chan struct{})}
	t.calls = newLeaderCalls(t)
	return t
}

// Client returns a client that calls the leaders in t. Normally t polls the servers every two seconds. While a call of
// the client lasts longer than pollHang, t polls at that interval, to find a new leader sooner.
func (t *RouteTable) Client(m Observer) *LeaderClient { return leaderClientOf(t.peers, m, t.calls) }

// Partitions returns the number of groups; 0 = no server has been reached.
func (t *RouteTable) Partitions() uint32 { return t.count.Load() }

// Reached returns a channel that is closed when the number of groups is known.
func (t *RouteTable) Reached() <-chan struct{} { return t.known }

// Run polls until stop is closed.
func (t *RouteTable) Run() {
	tick, hurry := time.NewTicker(pollPeriod), time.NewTicker(pollHang)
	defer tick.Stop()
	defer hurry.Stop()
	for {
		t.poll()
		pause := time.NewTimer(pollPause)
		select {
		case <-pause.C:
		case <-t.stop:
			pause.Stop()
			return
		}
		period := tick.C
		if t.count.Load() == 0 {
			period = time.After(pollPause)
		}
		if !t.idle(period, hurry.C) {
			return
		}
	}
}

// idle waits until the next poll is due. A poll is due when period fires, when a poll is requested, or when hurry fires
// while a call has been in flight for at least pollHang. idle returns false when stop is closed.
func (t *RouteTable) idle(period, hurry <-chan time.Time) bool {
	for {
		select {
		case <-t.kick:
			return true
		case <-period:
			return true
		case <-hurry:
			if len(t.calls.waiting(pollHang)) > 0 {
				return true
			}
		case <-t.stop:
			return false
		}
	}
}

// poll queries every server once, concurrently, and uses each answer as it arrives.
func (t *RouteTable) poll() {
	ctx, cancel := context.WithTimeout(context.Background(), pollWait)
	defer cancel()
	servers := t.gossip.LiveServers()
	t.forget(servers)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, id := range servers {
		wg.Go(func() { t.ask(ctx, id) })
	}
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-t.stop:
		cancel()
		<-done
	}
}

func (t *RouteTable) ask(ctx context.Context, id string) {
	t.update(ctx, id)
	for gid := range t.calls.waiting(0) {
		t.calls.moved(gid, t.Leader(gid))
	}
}

// update queries one server and records its answer.
func (t *RouteTable) update(ctx context.Context, id string) {
	sent := time.Now()
	out, err := t.peers.Call(ctx, id, MethodRoute, Message(0))
	var groups []GroupRoute
	if err == nil {
		groups, err = readRoutes(out)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.views[id]
	if v == nil {
		v = &serverView{}
		t.views[id] = v
	}
	if v.answer = err == nil; !v.answer {
		return
	}
	trip := max(time.Since(sent), time.Microsecond)
	if v.trip == 0 {
		v.trip = trip
	}
	v.trip += (trip - v.trip) / 4
	v.groups = groups
	t.found(uint32(len(groups))) //nolint:gosec // bounded by readRoutes
	close(t.changed)
	t.changed = make(chan struct{})
}

// found records the number of groups of the cluster, once. The caller holds mu.
func (t *RouteTable) found(n uint32) {
	if n == 0 || t.count.Load() != 0 {
		return
	}
	t.count.Store(n)
	close(t.known)
}

// forget drops servers that gossip no longer considers alive.
func (t *RouteTable) forget(servers []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.views {
		if !slices.Contains(servers, id) {
			delete(t.views, id)
		}
	}
}

// Leader returns the leader of a group, or an empty id if no server reports one. If servers report different leaders,
// Leader returns the one with the highest term.
func (t *RouteTable) Leader(gid uint32) raft.ServerID {
	t.mu.Lock()
	defer t.mu.Unlock()
	var term uint64
	leader := ""
	for _, v := range t.views {
		if int(gid) >= len(v.groups) || v.groups[gid].Leader == "" {
			continue
		}
		if g := v.groups[gid]; leader == "" || g.Term > term {
			leader, term = g.Leader, g.Term
		}
	}
	return raft.ServerID(leader)
}

// Readers returns all servers in the order in which a read of a group should try them. The criteria, in order of
// precedence:
//
//  1. Servers that work come first. A server works if it has answered the last poll and no call to it has failed in the
//     last 3 seconds.
//  2. Servers whose replica has caught up come before those whose replica has not.
//  3. Servers with a shorter round-trip time come first.
//
// Similar round-trip times count as equal, and the order of equal servers is random. The first server stays first in
// later calls, unless another server is clearly better.
func (t *RouteTable) Readers(gid uint32) []string {
	type choice struct {
		id        string
		rank, far int
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []choice
	for id, v := range t.views {
		c := choice{id: id, far: bits.Len64(uint64(v.trip.Microseconds()))} //nolint:gosec // not negative
		if !v.answer || time.Since(v.failed) < avoidFailed {
			c.rank += 2
		}
		if int(gid) >= len(v.groups) || !v.groups[gid].Reads {
			c.rank++
		}
		list = append(list, c)
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	slices.SortStableFunc(list, func(a, b choice) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.far, b.far))
	})
	out := make([]string, len(list))
	for i, c := range list {
		out[i] = c.id
		if c.id == t.near[gid] && c.rank == list[0].rank && c.far <= list[0].far+1 {
			copy(out[1:], out[:i])
			out[0] = c.id
		}
	}
	if len(out) > 0 {
		t.near[gid] = out[0]
	}
	return out
}

// Failed records that a call to a server failed, and starts a poll.
func (t *RouteTable) Failed(id string) {
	t.mu.Lock()
	if v := t.views[id]; v != nil {
		v.failed = time.Now()
	}
	t.mu.Unlock()
	t.refresh()
}

func (t *RouteTable) refresh() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// WaitChange starts a poll, and waits until a server has answered, but not longer than limit. It returns early if ctx
// ends or the table is stopped.
func (t *RouteTable) WaitChange(ctx context.Context, limit time.Duration) {
	t.mu.Lock()
	changed := t.changed
	t.mu.Unlock()
	t.refresh()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-t.stop:
	case <-ctx.Done():
	}
}

// Answers reports whether a server answered the last poll.
func (t *RouteTable) Answers(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.views[id]
	return v != nil && v.answer
}

// Route describes how a node without replicas reaches one group.
type Route struct {
	Leader  raft.ServerID // empty = none is known
	Term    uint64        // term of that leader, as far as it is known
	Nearest string        // server used first for eventual reads; empty = none is known
	Trip    time.Duration // round-trip time to that server
	Reads   bool          // some replica can serve reads
}

// Route returns the current route to a group.
func (t *RouteTable) Route(gid uint32) Route {
	out := Route{Leader: t.Leader(gid)}
	if ids := t.Readers(gid); len(ids) > 0 {
		out.Nearest = ids[0]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, v := range t.views {
		if int(gid) >= len(v.groups) {
			continue
		}
		g := v.groups[gid]
		if g.Leader == string(out.Leader) {
			out.Term = max(out.Term, g.Term)
		}
		out.Reads = out.Reads || v.answer && g.Reads
		if id == out.Nearest {
			out.Trip = v.trip
		}
	}
	return out
}

// AppendRoutes encodes what this server knows about each group, as an answer to MethodRoute.
func AppendRoutes(b []byte, routes []GroupRoute) []byte {
	b = binary.AppendUvarint(b, uint64(len(routes)))
	for i := range routes {
		b = lenprefix.Append(b, routes[i].Leader)
		b = binary.AppendUvarint(b, routes[i].Term)
		b = append(b, BoolByte(routes[i].Reads), BoolByte(routes[i].Full))
	}
	return b
}

// readRoutes decodes what AppendRoutes encodes.
func readRoutes(b []byte) ([]GroupRoute, error) {
	f := NewFrame(b)
	n := f.Uvarint()
	f.Bad = f.Bad || n == 0 || n > session.MaxGroups || n > uint64(len(b))
	var out []GroupRoute
	for range n {
		if f.Bad {
			break
		}
		out = append(out, GroupRoute{Leader: f.Text(), Term: f.Uvarint(), Reads: f.Byte() == 1, Full: f.Byte() == 1})
	}
	if f.Bad {
		return nil, ErrFrame(MethodRoute)
	}
	return out, nil
}

// ReadOnly reports whether a group is read-only, according to the last answer of its leader.
func (t *RouteTable) ReadOnly(gid uint32) bool {
	leader := string(t.Leader(gid))
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.views[leader]
	return v != nil && v.answer && int(gid) < len(v.groups) && v.groups[gid].Full
}
