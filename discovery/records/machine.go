package records

import (
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// State is the state of an incarnation in gossip.
type State uint8

// The states.
const (
	Alive State = iota + 1
	Failed
	Left
)

// Member is an incarnation that gossip knows.
type Member struct {
	Incarnation
	Peer  string // id under which its peer port is dialled; empty = it cannot be dialled
	State State
}

const (
	// keepFailed is how long the record of a failed incarnation is kept, because the incarnation may recover. While the
	// incarnation is failed, Machine.Records does not return the record.
	keepFailed = 10 * time.Minute
	// keepEnded is how long an ended incarnation is remembered, so that late messages about it are ignored.
	keepEnded = 10 * time.Minute
	// keepStray is how long the record of an incarnation that gossip does not know yet is kept.
	keepStray = time.Minute
	maxStrays = 256
	maxEnded  = 4096
)

// Options are the arguments of New.
type Options struct {
	Self        Incarnation
	Bounds      Bounds // zero = DefaultBounds
	Retransmits int    // each broadcast is sent Retransmits * log10(members+1) times; 0 = 3
	Fanout      int    // number of nodes to which each round of gossip sends; 0 = 3
}

// Machine is the catalogue of one node. Two goroutines must not use it at the same time.
type Machine struct {
	self   Incarnation
	bounds Bounds
	fanout int
	own    own

	members map[Incarnation]*member
	held    map[Incarnation]*held // other nodes' records
	ended   map[Incarnation]time.Time
	bytes   int // size of the records in held, encoded
	strays  int
	seen    map[App]struct{}

	queue   *memberlist.TransmitLimitedQueue
	pulls   pulls
	compare comparison
	counts  Counts
	tidied  time.Time
	version uint64 // version of the result of Records
}

// member is an incarnation that gossip knows and that has not ended.
type member struct {
	Member
	since   time.Time // when State was last changed
	nextAsk time.Time // when to pull a record that no broadcast delivered
	pause   time.Duration
}

// held is what is known of the record of another incarnation.
type held struct {
	record  *Record // nil = none yet
	relayed uint64  // newest version that was relayed
	stray   bool    // gossip does not know the incarnation
	at      time.Time
}

// Counts are counters since New.
type Counts struct {
	Sent     [kindRecords + 1]uint64 // broadcasts handed to gossip, by kind
	Received [kindRecords + 1]uint64
	Old      uint64 // messages that brought nothing new
	Gaps     uint64 // messages about a version that must be pulled, because it is too long or its base is missing
	Bad      uint64 // messages that could not be read
	Refused  uint64 // records over the bounds
	Ended    uint64 // messages about incarnations that have ended
}

// New returns a Machine that knows no other node.
func New(o Options) *Machine {
	if o.Bounds == (Bounds{}) {
		o.Bounds = DefaultBounds()
	}
	if o.Retransmits == 0 {
		o.Retransmits = 3
	}
	if o.Fanout == 0 {
		o.Fanout = 3
	}
	m := &Machine{self: o.Self, bounds: o.Bounds, fanout: o.Fanout,
		own:     own{changed: map[App]uint64{}, gone: map[App]uint64{}},
		members: map[Incarnation]*member{}, held: map[Incarnation]*held{}, ended: map[Incarnation]time.Time{},
		seen: map[App]struct{}{}}
	m.pulls.wants = map[Incarnation]*want{}
	m.queue = &memberlist.TransmitLimitedQueue{NumNodes: func() int { return len(m.members) + 1 },
		RetransmitMult: o.Retransmits}
	return m
}

// Serve sets the applications that this node serves, in any order. Usually the next Tick broadcasts the change. Serve
// returns fault.Invalid if an entry is invalid or an application is listed twice, and fault.TooLarge if the record
// would exceed its size limits. After an error, nothing has changed.
func (m *Machine) Serve(entries []Entry) error {
	entries = slices.Clone(entries)
	for i := range entries {
		entries[i].App = entries[i].App.Canonical()
	}
	slices.SortFunc(entries, func(a, b Entry) int { return a.App.compare(b.App) })
	if err := m.bounds.check(entries); err != nil {
		return err
	}
	if m.own.put(entries) {
		m.see(entries)
		m.changed()
	}
	return nil
}

// maxSeen is the maximum number of applications that a Machine remembers for Seen. It remembers an application even
// after all nodes of the application are gone.
const maxSeen = 1 << 16

func (m *Machine) see(entries []Entry) {
	for i := range entries {
		if len(m.seen) < maxSeen {
			m.seen[entries[i].App] = struct{}{}
		}
	}
}

// Seen reports whether any node has ever reported that it serves an application.
func (m *Machine) Seen(app App) bool {
	_, ok := m.seen[app]
	return ok
}

// Served returns what this node serves, sorted by App.
func (m *Machine) Served() []Entry { return slices.Clone(m.own.entries) }

// Members sets the list of all incarnations that gossip knows. This node's own incarnation may be in it. An
// incarnation has ended if its State is Left, or if it is not in the list.
func (m *Machine) Members(now time.Time, list []Member) {
	known := map[Incarnation]bool{}
	for _, n := range list {
		if n.Incarnation == m.self || !n.valid() || n.State == Left {
			continue
		}
		known[n.Incarnation] = true
		m.meet(now, n)
	}
	for l := range m.members {
		if !known[l] {
			m.end(now, l)
		}
	}
	m.changed()
}

// meet records that an incarnation is alive or failed.
func (m *Machine) meet(now time.Time, n Member) {
	delete(m.ended, n.Incarnation)
	was := m.members[n.Incarnation]
	if was == nil {
		was = &member{Member: n, since: now, nextAsk: now.Add(askAfter)}
		m.members[n.Incarnation] = was
		if h := m.held[n.Incarnation]; h != nil && h.stray {
			h.stray = false
			m.strays--
		}
	}
	if was.State != n.State {
		was.since, was.pause, was.nextAsk = now, 0, now.Add(askAfter)
	}
	was.Member = n
	if n.State != Alive {
		delete(m.pulls.wants, n.Incarnation)
	}
}

// end removes an incarnation that has ended, and its record.
func (m *Machine) end(now time.Time, l Incarnation) {
	delete(m.members, l)
	delete(m.pulls.wants, l)
	m.drop(l)
	if len(m.ended) < maxEnded {
		m.ended[l] = now
	}
}

func (m *Machine) drop(l Incarnation) {
	h := m.held[l]
	if h == nil {
		return
	}
	if h.record != nil {
		m.bytes -= h.record.size
	}
	if h.stray {
		m.strays--
	}
	delete(m.held, l)
}

// changed records that the results of Records and Hash may have changed.
func (m *Machine) changed() {
	m.version++
	m.compare.fresh = false
}

// Version returns a number that increases whenever the result of Records changes.
func (m *Machine) Version() uint64 { return m.version }

// Shown is a record of an incarnation that is alive.
type Shown struct {
	*Record
	Peer  string    // id under which its peer port is dialled; empty for this node's own
	Since time.Time // when this version arrived; zero for this node's own
}

// Records returns the records of all live incarnations. This node's record is first, if there is one. The others are
// in no particular order. A Record is immutable.
func (m *Machine) Records() []Shown {
	out := make([]Shown, 0, len(m.held)+1)
	if m.own.version > 0 {
		out = append(out, Shown{Record: m.own.record(m.self)})
	}
	for l, h := range m.held {
		if h.record != nil && m.alive(l) {
			out = append(out, Shown{h.record, m.members[l].Peer, h.at})
		}
	}
	return out
}

// Alive reports whether an incarnation of another node is alive.
func (m *Machine) Alive(l Incarnation) bool { return m.alive(l) }

func (m *Machine) alive(l Incarnation) bool {
	n := m.members[l]
	return n != nil && n.State == Alive
}

// newsTime is how long a new incarnation may take to report what it serves.
const newsTime = 3 * time.Second

// Expecting reports whether a recently joined incarnation has not sent its record yet.
func (m *Machine) Expecting(now time.Time) bool {
	for l, n := range m.members {
		if h := m.held[l]; n.State == Alive && now.Sub(n.since) < newsTime && (h == nil || h.record == nil) {
			return true
		}
	}
	return false
}

// Peer returns the id with which to dial the peer port of an incarnation. It returns "" if the incarnation is not a
// member.
func (m *Machine) Peer(l Incarnation) string {
	if n := m.members[l]; n != nil {
		return n.Peer
	}
	return ""
}

// Size returns the number of incarnations of other nodes that this Machine stores, and the encoded size of their
// records in bytes.
func (m *Machine) Size() (incarnations, bytes int) { return len(m.held), m.bytes }

// Counts returns the counters since New.
func (m *Machine) Counts() Counts { return m.counts }

// Tick broadcasts changes, schedules pulls of missing records, and deletes expired records. Call it every
// TickInterval.
func (m *Machine) Tick(now time.Time) {
	if m.own.due(now, len(m.members)) {
		m.own.announce(m.self, now)
		m.spread(m.self, m.own.message(m.self, m.bounds.Message))
	}
	m.summarise(now)
	if now.Sub(m.tidied) >= tidyInterval {
		m.tidied = now
		m.askSilent(now)
		m.expire(now)
	}
}

// tidyInterval is how often Tick does the work that visits every node.
const tidyInterval = time.Second

// TickInterval is the interval at which Tick must be called. While Quiet returns true, once a second is enough.
const TickInterval = 100 * time.Millisecond

// Quiet reports whether no work is waiting. It returns true if nothing is left to announce or to pull, and the last
// Hash received from another node, if any, was equal to this node's Hash.
func (m *Machine) Quiet() bool {
	return m.own.version == m.own.announcedVersion() && len(m.pulls.wants) == 0 && m.pulls.digest == Incarnation{} &&
		m.compare.differs.IsZero()
}

// expire removes what is too old:
//
//   - records of strays after keepStray; a stray is an incarnation that gossip does not know
//   - records of failed incarnations after keepFailed
//   - the entries of ended incarnations after keepEnded
func (m *Machine) expire(now time.Time) {
	for l, h := range m.held {
		n := m.members[l]
		if h.stray && now.Sub(h.at) >= keepStray || n != nil && n.State == Failed && now.Sub(n.since) >= keepFailed {
			m.drop(l)
		}
	}
	for l, at := range m.ended {
		if now.Sub(at) >= keepEnded {
			delete(m.ended, l)
		}
	}
}

// Receive processes a broadcast of another node.
func (m *Machine) Receive(now time.Time, msg []byte) {
	k, r := open(msg)
	if r.bad || len(msg) > m.bounds.Record {
		m.counts.Bad++
		return
	}
	switch k {
	case kindUpdate:
		if u := r.update(); m.readable(r, k) {
			m.receiveUpdate(now, u, msg)
		}
	case kindAnnounce:
		if a := r.announcement(); m.readable(r, k) && a.version > 0 {
			m.gap(now, a, msg)
		}
	case kindSummary:
		if s := r.summary(); m.readable(r, k) {
			m.receiveSummary(now, s)
		}
	default:
		m.counts.Bad++
	}
}

func (m *Machine) readable(r *reader, k Kind) bool {
	if !r.end() {
		m.counts.Bad++
		return false
	}
	m.counts.Received[k]++
	return true
}

// receiveUpdate applies a broadcast record and relays it.
func (m *Machine) receiveUpdate(now time.Time, u update, msg []byte) {
	if have := m.have(u.incarnation); u.base > have {
		m.gap(now, announcement{u.incarnation, u.version}, msg)
	} else if m.take(now, u) {
		m.relay(now, u.incarnation, u.version, msg)
	}
}

// have returns the version of the record that this node has of an incarnation, or 0 if it has none.
func (m *Machine) have(l Incarnation) uint64 {
	if l == m.self {
		return m.own.version
	}
	if h := m.held[l]; h != nil && h.record != nil {
		return h.record.Version
	}
	return 0
}

// take applies an update and returns true. It returns false, and counts the update, in these cases:
//
//   - The update is not newer than the stored record, or is about this node itself.
//   - The base of the update is missing.
//   - The incarnation has ended.
//   - The record would exceed the limits.
func (m *Machine) take(now time.Time, u update) bool {
	have := m.have(u.incarnation)
	switch _, over := m.ended[u.incarnation]; {
	case u.incarnation == m.self, u.version <= have, u.base > have:
		m.counts.Old++
		return false
	case over:
		m.counts.Ended++
		return false
	}
	h := m.held[u.incarnation]
	var old *Record
	if h != nil {
		old = h.record
	}
	next := newRecord(u.incarnation, u.version, u.applied(old))
	if !m.fits(next, h) {
		m.counts.Refused++
		return false
	}
	if h == nil {
		h = m.hold(u.incarnation)
	}
	if old != nil {
		m.bytes -= old.size
	}
	m.bytes += next.size
	h.record, h.at = next, now
	m.see(u.put)
	m.pulls.got(u.incarnation, u.version)
	m.compare.gained(now)
	m.changed()
	return true
}

// applied returns the entries that a record has after the update. old is the record before the update. It may be nil if
// the update contains the whole record.
func (u *update) applied(old *Record) []Entry {
	if u.base == 0 {
		return u.put
	}
	var out []Entry
	put := Record{Entries: u.put}
	for _, e := range old.Entries {
		_, replaced := put.Find(e.App)
		if _, gone := slices.BinarySearchFunc(u.gone, e.App, App.compare); !gone && !replaced {
			out = append(out, e)
		}
	}
	out = append(out, u.put...)
	slices.SortFunc(out, func(a, b Entry) int { return a.App.compare(b.App) })
	return out
}

// fits reports whether a new record can be stored within the limits. h is what this node has stored for the same
// incarnation, or nil. If h has a record, the new record replaces it, so the old size does not count.
func (m *Machine) fits(record *Record, h *held) bool {
	size := m.bytes + record.size
	if h != nil && h.record != nil {
		size -= h.record.size
	}
	switch {
	case len(record.Entries) > m.bounds.Apps, record.size > m.bounds.Record, size > m.bounds.Bytes:
		return false
	case h != nil:
		return true
	}
	return len(m.held) < m.bounds.Incarnations && (m.members[record.Incarnation] != nil || m.strays < maxStrays)
}

// hold adds an incarnation to m.held, still without a record.
func (m *Machine) hold(l Incarnation) *held {
	h := &held{stray: m.members[l] == nil}
	if h.stray {
		m.strays++
	}
	m.held[l] = h
	return h
}
