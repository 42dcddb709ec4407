package raftfsm

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
)

const (
	pollPeriod    = 2 * time.Second        // interval of polls of all servers while nothing fails
	pollPause     = 100 * time.Millisecond // minimum time between polls
	pollHang      = 500 * time.Millisecond // interval of polls after a leader has not answered for this long
	pollWait      = time.Second            // limit for the answer of one server
	avoidFailed   = 3 * time.Second        // how long a server is avoided after a failed call
	maxPartitions = 1 << 16
)

// routeTable chooses the servers to which a node without data sends its calls. It records which server leads each
// group, which servers can serve reads, and the round-trip time to each. It polls every server that gossip considers
// alive, periodically and after each failed call. It is safe for concurrent use.
type routeTable struct {
	peers   Peers
	servers func() []string // ids of the servers that are alive
	calls   *leaderCalls
	stop    chan struct{}
	kick    chan struct{} // capacity 1: poll now

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
	groups []groupRoute  // by group
}

// groupRoute is a server's answer about one group.
type groupRoute struct {
	leader string // server id; empty = no leader known
	term   uint64
	reads  bool // its replica can serve reads: it is a member and has caught up
	full   bool // the group is read-only
}

func newRouteTable(p Peers, servers func() []string, stop chan struct{}) *routeTable {
	t := &routeTable{peers: p, servers: servers, stop: stop, kick: make(chan struct{}, 1), known: make(chan struct{}),
		views: map[string]*serverView{}, near: map[uint32]string{}, changed: make(chan struct{})}
	t.calls = newLeaderCalls(t)
	return t
}

// run polls until stop is closed.
func (t *routeTable) run() {
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

// idle waits until the next poll is due. It returns false when stop is closed.
func (t *routeTable) idle(period, hurry <-chan time.Time) bool {
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
func (t *routeTable) poll() {
	ctx, cancel := context.WithTimeout(context.Background(), pollWait)
	defer cancel()
	servers := t.servers()
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

func (t *routeTable) ask(ctx context.Context, id string) {
	t.update(ctx, id)
	for gid := range t.calls.waiting(0) {
		t.calls.moved(gid, t.leader(gid))
	}
}

// update queries one server and records its answer.
func (t *routeTable) update(ctx context.Context, id string) {
	sent := time.Now()
	out, err := t.peers.Call(ctx, id, MethodRoute, message(formFirst, 0))
	var groups []groupRoute
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
func (t *routeTable) found(n uint32) {
	if n == 0 || t.count.Load() != 0 {
		return
	}
	t.count.Store(n)
	close(t.known)
}

// forget drops servers that gossip no longer considers alive.
func (t *routeTable) forget(servers []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.views {
		if !slices.Contains(servers, id) {
			delete(t.views, id)
		}
	}
}

// leader returns the leader of a group. If servers report different leaders, it returns the one with the highest term.
// It returns an empty id if no server reports a leader.
func (t *routeTable) leader(gid uint32) raft.ServerID {
	t.mu.Lock()
	defer t.mu.Unlock()
	var term uint64
	leader := ""
	for _, v := range t.views {
		if int(gid) >= len(v.groups) || v.groups[gid].leader == "" {
			continue
		}
		if g := v.groups[gid]; leader == "" || g.term > term {
			leader, term = g.leader, g.term
		}
	}
	return raft.ServerID(leader)
}

// readers returns all servers in the order in which a read of a group should try them. It sorts first by whether the
// server answers, then by whether its replica has caught up, then by round-trip time. Among servers with similar
// round-trip times it picks one at random, and uses the same one for later calls.
func (t *routeTable) readers(gid uint32) []string {
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
		if int(gid) >= len(v.groups) || !v.groups[gid].reads {
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

// failed records that a call to a server failed, and starts a poll.
func (t *routeTable) failed(id string) {
	t.mu.Lock()
	if v := t.views[id]; v != nil {
		v.failed = time.Now()
	}
	t.mu.Unlock()
	t.refresh()
}

func (t *routeTable) refresh() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// waitChange starts a poll and waits until a server has answered, the time in limit has passed, or ctx ends.
func (t *routeTable) waitChange(ctx context.Context, limit time.Duration) {
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

// answers reports whether a server answered the last poll.
func (t *routeTable) answers(id string) bool {
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

// route returns the current route to a group.
func (t *routeTable) route(gid uint32) Route {
	out := Route{Leader: t.leader(gid)}
	if ids := t.readers(gid); len(ids) > 0 {
		out.Nearest = ids[0]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, v := range t.views {
		if int(gid) >= len(v.groups) {
			continue
		}
		g := v.groups[gid]
		if g.leader == string(out.Leader) {
			out.Term = max(out.Term, g.term)
		}
		out.Reads = out.Reads || v.answer && g.reads
		if id == out.Nearest {
			out.Trip = v.trip
		}
	}
	return out
}

// serveRoute answers another node's query about all groups.
func (s *server) serveRoute(r *frame) ([]byte, error) {
	if len(r.Rest) > 0 {
		return nil, errFrame(MethodRoute)
	}
	b := binary.AppendUvarint(nil, uint64(len(s.groups)))
	for _, g := range s.groups {
		member := false
		servers, _ := g.Servers()
		for _, m := range servers {
			member = member || string(m.ID) == s.node.self.Server
		}
		b = appendString(b, g.Leader())
		b = binary.AppendUvarint(b, g.Term())
		b = append(b, boolByte(member && g.CaughtUp()))
	}
	for i := range s.groups { // earlier versions ignore what follows
		b = append(b, boolByte(s.writesAllowed(uint32(i)) != nil)) //nolint:gosec // few
	}
	return b, nil
}

func readRoutes(b []byte) ([]groupRoute, error) {
	f := newFrame(b)
	n := f.Uvarint()
	f.Bad = f.Bad || n == 0 || n > maxPartitions || n > uint64(len(b))
	var out []groupRoute
	for range n {
		if f.Bad {
			break
		}
		out = append(out, groupRoute{leader: f.Text(), term: f.Uvarint(), reads: f.Byte() == 1})
	}
	if f.Bad {
		return nil, errFrame(MethodRoute)
	}
	if len(f.Rest) >= len(out) { // earlier versions end here
		for i := range out {
			out[i].full = f.Byte() == 1
		}
	}
	return out, nil
}

// readOnly reports whether a group is read-only, according to the group's leader.
func (t *routeTable) readOnly(gid uint32) bool {
	leader := string(t.leader(gid))
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.views[leader]
	return v != nil && v.answer && int(gid) < len(v.groups) && v.groups[gid].full
}
