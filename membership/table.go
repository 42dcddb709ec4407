package membership

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// table collects what gossip reports, life by life, and makes rosters of it. It calls
// nobody: memberlist reports to it while it holds a lock of its own.
type table struct {
	self     string // gossip name of this node
	forget   time.Duration
	current  atomic.Pointer[Roster]
	contests chan struct{} // one slot: filled while two lives of one node id are taken for alive

	mu        sync.Mutex
	lives     map[string]*life     // by gossip name
	farewells map[string]time.Time // names that said good-bye, and when we heard
	arrivals  int                  // lives seen so far
}

// life is one run of one node.
type life struct {
	Member
	arrival    int    // which it was in order
	up         bool   // memberlist takes it for alive, whatever it has said itself
	superseded bool   // it did not answer when another life of its node had come
	meta       []byte // its facts as they came
}

// claims reports whether a life may stand for its node as long as nobody came before it.
func (l *life) claims() bool { return l.State == Alive && !l.superseded }

// strayFarewell is how long a good-bye from somebody unknown is kept: it may overtake the
// news that there is such a node.
const strayFarewell = time.Minute

// maxFarewells bounds the good-byes that are kept, against a peer that makes names up.
const maxFarewells = 1 << 14

// newTable makes a table with this node in it.
func newTable(self Member, forget time.Duration) *table {
	t := &table{self: self.Name(), forget: forget, contests: make(chan struct{}, 1),
		lives: map[string]*life{}, farewells: map[string]time.Time{}}
	t.current.Store(&Roster{self: self.NodeID, changed: make(chan struct{})})
	t.alive(self.Facts, self.Gossip, self.encode())
	return t
}

func (t *table) roster() *Roster { return t.current.Load() }

// knows reports whether a life is alive at this address and has said just this already.
func (t *table) knows(name string, at netip.AddrPort, meta []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lives[name]
	return l != nil && l.up && l.Gossip == at && bytes.Equal(l.meta, meta)
}

// alive takes in that a life is alive and what it says about itself. It keeps a copy of meta.
func (t *table) alive(f Facts, at netip.AddrPort, meta []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lives[f.Name()]
	if l == nil {
		t.arrivals++
		l = &life{arrival: t.arrivals}
		t.lives[f.Name()] = l
	}
	if !l.up {
		l.State, l.Since = Alive, time.Now()
	}
	l.Facts, l.Gossip, l.up, l.meta = f, at, true, bytes.Clone(meta)
	t.part(l)
	t.publish()
}

// dead takes in that memberlist has given a life up.
func (t *table) dead(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lives[name]
	if l == nil || !l.up {
		return
	}
	l.up = false
	if l.State == Alive {
		l.State, l.Since = Failed, time.Now()
	}
	t.part(l)
	t.publish()
}

// farewell takes in that a life said good-bye; it reports whether that is news.
func (t *table) farewell(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, old := t.farewells[name]; old || len(t.farewells) >= maxFarewells && t.lives[name] == nil {
		return false
	}
	t.farewells[name] = time.Now()
	if l := t.lives[name]; l != nil {
		t.part(l)
		t.publish()
	}
	return true
}

// part marks a life as left if it said so.
func (t *table) part(l *life) {
	if _, said := t.farewells[l.Name()]; said && l.State != Left {
		if l.State == Alive {
			l.Since = time.Now()
		}
		l.State = Left
	}
}

// said returns the lives we know that said good-bye, sorted.
func (t *table) said() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for name := range t.farewells {
		if t.lives[name] != nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// prune forgets lives that ended long ago, and good-byes of nobody.
func (t *table) prune() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for name, l := range t.lives {
		if !l.up && l.State != Alive && name != t.self && now.Sub(l.Since) >= t.forget {
			delete(t.lives, name)
		}
	}
	for name, at := range t.farewells {
		if t.lives[name] == nil && now.Sub(at) >= strayFarewell {
			delete(t.farewells, name)
		}
	}
	t.publish()
}

// publish makes a new roster if anything in it is new. The caller holds mu.
func (t *table) publish() {
	best := t.choose()
	members := make([]Member, 0, len(best))
	for _, l := range best {
		members = append(members, l.Member)
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.NodeID, b.NodeID) })
	if old := t.current.Load(); !slices.Equal(old.members, members) {
		t.current.Store(&Roster{members: members, self: old.self, changed: make(chan struct{})})
		close(old.changed)
	}
	if t.unsettled() {
		t.wakeReferee()
	}
}

// choose picks one life for each node id, and drops those that ended and were not chosen.
func (t *table) choose() map[string]*life {
	best := map[string]*life{}
	for _, l := range t.lives {
		if b := best[l.NodeID]; b == nil || t.better(l, b) {
			best[l.NodeID] = l
		}
	}
	for name, l := range t.lives {
		if best[l.NodeID] != l && !l.up {
			delete(t.lives, name)
		}
	}
	return best
}

// better reports whether life a stands for its node rather than b. Of two that are alive it
// is the one that came first, until it is found superseded; of two that are not, the last.
// For this node itself nobody else can stand.
func (t *table) better(a, b *life) bool {
	switch {
	case a.Name() == t.self || b.Name() == t.self:
		return a.Name() == t.self
	case a.claims() != b.claims():
		return a.claims()
	case a.claims():
		return a.arrival < b.arrival
	default:
		return a.arrival > b.arrival
	}
}

// supersede takes in that a life did not answer although it is taken for alive, or that it
// does so again.
func (t *table) supersede(name string, silent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lives[name]; l != nil && name != t.self && l.superseded != silent {
		l.superseded = silent
		t.publish()
	}
}

// silenced returns lives that did not answer when asked and that memberlist has not given up.
func (t *table) silenced() []Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Member
	for _, l := range t.lives {
		if l.superseded && l.up {
			out = append(out, l.Member)
		}
	}
	return out
}

// unsettled reports whether the referee has anything to do. The caller holds mu.
func (t *table) unsettled() bool {
	for _, l := range t.lives {
		if l.superseded && l.up {
			return true
		}
	}
	return len(t.contested()) > 0
}

func (t *table) wakeReferee() {
	select {
	case t.contests <- struct{}{}:
	default:
	}
}

func (t *table) wakeIfUnsettled() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unsettled() {
		t.wakeReferee()
	}
}

// disputes returns the node ids of which two lives are taken for alive: the one that stands
// for the node, and the one that came after it.
func (t *table) disputes() []overlap {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contested()
}

func (t *table) contested() []overlap {
	chosen := t.current.Load()
	var out []overlap
	for name, l := range t.lives {
		holder, ok := chosen.Node(l.NodeID)
		if ok && holder.State == Alive && holder.Name() != name && l.claims() {
			out = append(out, overlap{holder, l.Member})
		}
	}
	slices.SortFunc(out, func(a, b overlap) int { return cmp.Compare(a.b.Name(), b.b.Name()) })
	return out
}
