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
	scoutPeriod = 2 * time.Second        // between looks at all servers while nothing fails
	scoutPause  = 100 * time.Millisecond // least time between looks
	scoutHurry  = 500 * time.Millisecond // a leader that has not answered for so long is looked after, so often
	scoutWait   = time.Second            // for one server's answer
	scoutBad    = 3 * time.Second        // a server that failed a call is avoided so long
	maxGroups   = 1 << 16
)

// scout finds out for a node without replicas who leads each group and which servers can
// be read, and how far away they are. It asks every server that gossip knows to be alive:
// now and then, and at once when a call has failed.
type scout struct {
	host *Host
	kick chan struct{} // one slot: look now

	partitions atomic.Uint32 // 0 = no server has been reached; written once
	known      chan struct{} // closed when partitions is set

	mu      sync.Mutex
	views   map[string]*serverView // by server id
	near    map[uint32]string      // by group: the server that is read
	changed chan struct{}          // closed when views have changed
}

// serverView is what one server said last.
type serverView struct {
	trip   time.Duration // smoothed round trip; 0 = it has not answered
	answer bool          // it answered when it was asked last
	failed time.Time     // when a call to it failed last
	groups []routed      // by group
}

// routed is what a server says about one group.
type routed struct {
	leader string // server id; empty = it knows none
	term   uint64
	reads  bool // its replica can be read: it is a member and has caught up
}

func newScout(h *Host) *scout {
	return &scout{host: h, kick: make(chan struct{}, 1), known: make(chan struct{}), views: map[string]*serverView{}, near: map[uint32]string{}, changed: make(chan struct{})}
}

// run looks around until stop is closed.
func (s *scout) run(stop <-chan struct{}) {
	tick, hurry := time.NewTicker(scoutPeriod), time.NewTicker(scoutHurry)
	defer tick.Stop()
	defer hurry.Stop()
	for {
		s.look(stop)
		pause := time.NewTimer(scoutPause)
		select {
		case <-pause.C:
		case <-stop:
			pause.Stop()
			return
		}
		period := tick.C
		if s.partitions.Load() == 0 {
			period = time.After(scoutPause)
		}
		if !s.rest(period, hurry.C, stop) {
			return
		}
	}
}

// rest waits until it is time to look again; false = stop is closed.
func (s *scout) rest(period, hurry <-chan time.Time, stop <-chan struct{}) bool {
	for {
		select {
		case <-s.kick:
			return true
		case <-period:
			return true
		case <-hurry:
			if len(s.host.awaited.waiting(scoutHurry)) > 0 {
				return true
			}
		case <-stop:
			return false
		}
	}
}

// look asks every server once, all at a time, and takes answers as they come.
func (s *scout) look(stop <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), scoutWait)
	defer cancel()
	servers := s.host.opts.Servers()
	s.forget(servers)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, id := range servers {
		wg.Go(func() { s.ask(ctx, id) })
	}
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-stop:
		cancel()
		<-done
	}
}

func (s *scout) ask(ctx context.Context, id string) {
	s.hear(ctx, id)
	for gid := range s.host.awaited.waiting(0) {
		s.host.awaited.moved(gid, s.leader(gid))
	}
}

// hear notes what a server says.
func (s *scout) hear(ctx context.Context, id string) {
	sent := time.Now()
	out, err := s.host.opts.Peers.Call(ctx, id, MethodRoute, message(formFirst, 0))
	var groups []routed
	if err == nil {
		groups, err = readRoutes(out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.views[id]
	if v == nil {
		v = &serverView{}
		s.views[id] = v
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
	s.found(uint32(len(groups))) //nolint:gosec // bounded by readRoutes
	close(s.changed)
	s.changed = make(chan struct{})
}

// found notes how many groups the cluster has, once. It is called with mu.
func (s *scout) found(n uint32) {
	if n == 0 || s.partitions.Load() != 0 {
		return
	}
	s.host.makeOrigins(int(n))
	s.partitions.Store(n)
	close(s.known)
}

// forget drops servers that gossip no longer knows to be alive.
func (s *scout) forget(servers []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.views {
		if !slices.Contains(servers, id) {
			delete(s.views, id)
		}
	}
}

// leader is the server that leads a group as the one with the newest term says; empty if
// none is known.
func (s *scout) leader(gid uint32) raft.ServerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var term uint64
	leader := ""
	for _, v := range s.views {
		if int(gid) >= len(v.groups) || v.groups[gid].leader == "" {
			continue
		}
		if g := v.groups[gid]; leader == "" || g.term > term {
			leader, term = g.leader, g.term
		}
	}
	return raft.ServerID(leader)
}

// readers are the servers that can be asked to read a group, the best first: those whose
// replica has caught up before others, those that answer before others, the near before
// the far. Of several that are about as near one is chosen by lot, so that the nodes share
// the load, and kept: its replica has what was read before.
func (s *scout) readers(gid uint32) []string {
	type choice struct {
		id        string
		rank, far int
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []choice
	for id, v := range s.views {
		c := choice{id: id, far: bits.Len64(uint64(v.trip.Microseconds()))} //nolint:gosec // not negative
		if !v.answer || time.Since(v.failed) < scoutBad {
			c.rank += 2
		}
		if int(gid) >= len(v.groups) || !v.groups[gid].reads {
			c.rank++
		}
		list = append(list, c)
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	slices.SortStableFunc(list, func(a, b choice) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.far, b.far)) })
	out := make([]string, len(list))
	for i, c := range list {
		out[i] = c.id
		if c.id == s.near[gid] && c.rank == list[0].rank && c.far <= list[0].far+1 {
			copy(out[1:], out[:i])
			out[0] = c.id
		}
	}
	if len(out) > 0 {
		s.near[gid] = out[0]
	}
	return out
}

// failed notes that a call to a server did not succeed, and looks around.
func (s *scout) failed(id string) {
	s.mu.Lock()
	if v := s.views[id]; v != nil {
		v.failed = time.Now()
	}
	s.mu.Unlock()
	s.refresh()
}

func (s *scout) refresh() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// waitChange looks around and waits until there is news, or limit has passed, or ctx ends.
func (s *scout) waitChange(ctx context.Context, limit time.Duration) {
	s.mu.Lock()
	changed := s.changed
	s.mu.Unlock()
	s.refresh()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-s.host.stop:
	case <-ctx.Done():
	}
}

// Route is how a node without replicas reaches one group.
type Route struct {
	Leader  raft.ServerID // empty = none is known
	Term    uint64        // of that leader, as far as it was told
	Nearest string        // server that eventual reads go to first; empty = none is known
	Trip    time.Duration // round trip to it
	Reads   bool          // some replica can be read
}

// Route says how this node, which has no replicas, reaches a group.
func (h *Host) Route(gid uint32) Route {
	if h.scout == nil {
		return Route{}
	}
	s := h.scout
	out := Route{Leader: s.leader(gid)}
	if ids := s.readers(gid); len(ids) > 0 {
		out.Nearest = ids[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, v := range s.views {
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

// FindLeader asks servers who leads a group, for a node that takes no part in it any more;
// empty if none of them knows.
func (h *Host) FindLeader(ctx context.Context, gid uint32, servers []string) string {
	ctx, cancel := context.WithTimeout(ctx, scoutWait)
	defer cancel()
	answers := make(chan routed, len(servers))
	for _, id := range servers {
		go func() {
			out, err := h.opts.Peers.Call(ctx, id, MethodRoute, message(formFirst, 0))
			groups, bad := readRoutes(out)
			if err != nil || bad != nil || int(gid) >= len(groups) {
				answers <- routed{}
				return
			}
			answers <- groups[gid]
		}()
	}
	var best routed
	for range servers {
		if a := <-answers; a.leader != "" && (best.leader == "" || a.term > best.term) {
			best = a
		}
	}
	return best.leader
}

// serveRoute tells another node about all groups.
func (h *Host) serveRoute(r *frame) ([]byte, error) {
	if len(r.Rest) > 0 {
		return nil, errFrame(MethodRoute)
	}
	b := binary.AppendUvarint(nil, uint64(len(h.groups)))
	for _, g := range h.groups {
		member := false
		servers, _ := g.Servers()
		for _, s := range servers {
			member = member || string(s.ID) == h.self.Server
		}
		b = appendString(b, g.Leader())
		b = binary.AppendUvarint(b, g.Term())
		b = append(b, boolByte(member && g.CaughtUp()))
	}
	return b, nil
}

func readRoutes(b []byte) ([]routed, error) {
	f := newFrame(b)
	n := f.Uvarint()
	f.Bad = f.Bad || n == 0 || n > maxGroups || n > uint64(len(b))
	var out []routed
	for range n {
		if f.Bad {
			break
		}
		out = append(out, routed{leader: f.Text(), term: f.Uvarint(), reads: f.Byte() == 1})
	}
	if f.Bad {
		return nil, errFrame(MethodRoute)
	}
	return out, nil
}
