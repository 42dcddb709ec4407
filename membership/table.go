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

// table stores what memberlist reports about each incarnation, and builds rosters from it. It must not call other
// components, because memberlist holds a lock while it reports.
type table struct {
	self     string // gossip name of this node
	forget   time.Duration
	current  atomic.Pointer[Roster]
	contests chan struct{} // one slot; an element wakes resolveDuplicates

	mu           sync.Mutex
	incarnations map[string]*incarnation // by gossip name
	farewells    map[string]time.Time    // when the announcement to leave was received, by gossip name
	arrivals     int                     // incarnations seen so far
}

// incarnation is one run of one node.
type incarnation struct {
	Member
	arrival    int    // order of arrival
	up         bool   // memberlist reports it alive, even if it announced to leave
	superseded bool   // the incarnation did not answer when another one arrived
	meta       []byte // encoded facts of the incarnation
}

// claims reports whether the roster may show this incarnation as alive: its state is Alive, and it is not superseded.
func (l *incarnation) claims() bool { return l.State == Alive && !l.superseded }

// strayFarewell is how long this node keeps an announcement of an incarnation that it does not know. The announcement
// may arrive before this node learns of the incarnation.
const strayFarewell = time.Minute

// maxFarewells limits the stored announcements. When it is reached, announcements of unknown incarnations are ignored.
// Without this limit, a peer could fill the memory with invented names.
const maxFarewells = 1 << 14

// newTable returns a table with this node in it.
func newTable(self Member, forget time.Duration) *table {
	t := &table{self: self.Name(), forget: forget, contests: make(chan struct{}, 1),
		incarnations: map[string]*incarnation{}, farewells: map[string]time.Time{}}
	t.current.Store(&Roster{self: self.NodeID, changed: make(chan struct{})})
	t.alive(self.Facts, self.Gossip, self.encode())
	return t
}

func (t *table) roster() *Roster { return t.current.Load() }

// knows reports whether the table has a live incarnation with this gossip name, this address and these encoded facts.
func (t *table) knows(name string, at netip.AddrPort, meta []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.incarnations[name]
	return l != nil && l.up && l.Gossip == at && bytes.Equal(l.meta, meta)
}

// alive records that an incarnation is alive and has the given facts. meta has the same facts in encoded form. alive
// copies it.
func (t *table) alive(f Facts, at netip.AddrPort, meta []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.incarnations[f.Name()]
	if l == nil {
		t.arrivals++
		l = &incarnation{arrival: t.arrivals}
		t.incarnations[f.Name()] = l
	}
	if !l.up {
		l.State, l.Since = Alive, time.Now()
	}
	l.Facts, l.Gossip, l.up, l.meta = f, at, true, bytes.Clone(meta)
	t.part(l)
	t.publish()
}

// dead records that memberlist declared an incarnation dead.
func (t *table) dead(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.incarnations[name]
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

// farewell records the announcement that an incarnation leaves. It returns false if the announcement is already known,
// or if maxFarewells announcements are stored and the incarnation is unknown.
func (t *table) farewell(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, old := t.farewells[name]; old || len(t.farewells) >= maxFarewells && t.incarnations[name] == nil {
		return false
	}
	t.farewells[name] = time.Now()
	if l := t.incarnations[name]; l != nil {
		t.part(l)
		t.publish()
	}
	return true
}

// part sets the state of an incarnation to Left if the incarnation has announced that it leaves.
func (t *table) part(l *incarnation) {
	if _, said := t.farewells[l.Name()]; said && l.State != Left {
		if l.State == Alive {
			l.Since = time.Now()
		}
		l.State = Left
	}
}

// leftNames returns the sorted gossip names of the known incarnations that have announced that they leave.
func (t *table) leftNames() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for name := range t.farewells {
		if t.incarnations[name] != nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// prune deletes incarnations that ended long ago. It also deletes announcements of incarnations that have stayed
// unknown for the time strayFarewell.
func (t *table) prune() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for name, l := range t.incarnations {
		if !l.up && l.State != Alive && name != t.self && now.Sub(l.Since) >= t.forget {
			delete(t.incarnations, name)
		}
	}
	for name, at := range t.farewells {
		if t.incarnations[name] == nil && now.Sub(at) >= strayFarewell {
			delete(t.farewells, name)
		}
	}
	t.publish()
}

// publish makes a new roster if anything has changed. The caller holds mu.
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
		t.wakeResolver()
	}
}

// choose returns, for each node id, the incarnation that the roster shows. It deletes all other incarnations from the
// table, unless they are alive.
func (t *table) choose() map[string]*incarnation {
	best := map[string]*incarnation{}
	for _, l := range t.incarnations {
		if b := best[l.NodeID]; b == nil || t.better(l, b) {
			best[l.NodeID] = l
		}
	}
	for name, l := range t.incarnations {
		if best[l.NodeID] != l && !l.up {
			delete(t.incarnations, name)
		}
	}
	return best
}

// better reports whether the roster should show a rather than b. Both are incarnations of one node id. The first rule
// that applies decides:
//
//  1. The incarnation of this process wins.
//  2. An incarnation that is alive and not superseded wins over one that is not.
//  3. If both are alive and not superseded, the earlier one wins.
//  4. Otherwise, the later one wins.
func (t *table) better(a, b *incarnation) bool {
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

// supersede records whether an incarnation is superseded: yes if silent is true, and no if silent is false. A
// superseded incarnation does not answer pings, although memberlist reports it as alive. The roster may then show a
// later incarnation of the node instead.
func (t *table) supersede(name string, silent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.incarnations[name]; l != nil && name != t.self && l.superseded != silent {
		l.superseded = silent
		t.publish()
	}
}

// silenced returns the superseded incarnations that memberlist still reports alive.
func (t *table) silenced() []Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Member
	for _, l := range t.incarnations {
		if l.superseded && l.up {
			out = append(out, l.Member)
		}
	}
	return out
}

// unsettled reports whether resolveDuplicates has anything to do. The caller holds mu.
func (t *table) unsettled() bool {
	for _, l := range t.incarnations {
		if l.superseded && l.up {
			return true
		}
	}
	return len(t.contested()) > 0
}

func (t *table) wakeResolver() {
	select {
	case t.contests <- struct{}{}:
	default:
	}
}

func (t *table) wakeIfUnsettled() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unsettled() {
		t.wakeResolver()
	}
}

// disputes returns the pairs of incarnations that have the same node id and both seem to be alive. The first
// incarnation of each pair is in the roster.
func (t *table) disputes() []overlap {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contested()
}

func (t *table) contested() []overlap {
	chosen := t.current.Load()
	var out []overlap
	for name, l := range t.incarnations {
		holder, ok := chosen.Node(l.NodeID)
		if ok && holder.State == Alive && holder.Name() != name && l.claims() {
			out = append(out, overlap{holder, l.Member})
		}
	}
	slices.SortFunc(out, func(a, b overlap) int { return cmp.Compare(a.b.Name(), b.b.Name()) })
	return out
}
