package records

import (
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// State is what gossip makes of a life.
type State uint8

// The states.
const (
	Alive State = iota + 1
	Failed
	Left
)

// Member is a life that gossip knows.
type Member struct {
	Life
	Peer  string // id under which its peer port is dialled; empty = it cannot be
	State State
}

const (
	keepFailed = 10 * time.Minute // how long a failed life's record is kept, hidden: it may come back
	keepEnded  = 10 * time.Minute // how long an ended life is remembered, so that nobody brings it back
	keepStray  = time.Minute      // how long a record is kept of a life that gossip does not know yet
	maxStrays  = 256
	maxEnded   = 4096
)

// Options are the arguments of New.
type Options struct {
	Self        Life
	Bounds      Bounds // zero = DefaultBounds
	Retransmits int    // each broadcast is sent Retransmits * log10(members+1) times; 0 = 3
	Fanout      int    // receivers of each round of gossip; 0 = 3
}

// Machine is the catalogue of one node. It is for one caller at a time.
type Machine struct {
	self   Life
	bounds Bounds
	fanout int
	own    own

	members map[Life]*member
	held    map[Life]*held // other nodes' records
	ended   map[Life]time.Time
	bytes   int // of held
	strays  int
	seen    map[App]struct{}

	queue   *memberlist.TransmitLimitedQueue
	pulls   pulls
	compare comparison
	counts  Counts
	tidied  time.Time
	version uint64 // of what Records returns
}

// member is a life that gossip knows and has not given up for good.
type member struct {
	Member
	since   time.Time // alive, or failed
	nextAsk time.Time // when to ask it for a record that nobody brought
	pause   time.Duration
}

// held is what is known of another life's record.
type held struct {
	record  *Record // nil = none yet
	relayed uint64  // version that was passed on
	stray   bool    // gossip does not know the life
	at      time.Time
}

// Counts are what has happened so far.
type Counts struct {
	Sent     [kindRecords + 1]uint64 // broadcasts handed to gossip, by kind
	Received [kindRecords + 1]uint64
	Old      uint64 // messages that brought nothing new
	Gaps     uint64 // changes whose base was missing, or too long to be broadcast
	Bad      uint64 // messages that could not be read
	Refused  uint64 // records over the bounds
	Ended    uint64 // messages about lives that have ended
}

// New makes a Machine that knows of nobody.
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
		members: map[Life]*member{}, held: map[Life]*held{}, ended: map[Life]time.Time{}, seen: map[App]struct{}{}}
	m.pulls.wants = map[Life]*want{}
	m.queue = &memberlist.TransmitLimitedQueue{NumNodes: func() int { return len(m.members) + 1 }, RetransmitMult: o.Retransmits}
	return m
}

// Serve takes in what this node serves, and tells others at the next Tick. The entries are
// sorted and made canonical. Errors are of code invalid or too_large; then nothing changes.
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

// maxSeen bounds the applications that are remembered after all their nodes are gone.
const maxSeen = 1 << 16

func (m *Machine) see(entries []Entry) {
	for i := range entries {
		if len(m.seen) < maxSeen {
			m.seen[entries[i].App] = struct{}{}
		}
	}
}

// Seen reports whether any node has ever said that it serves an application.
func (m *Machine) Seen(app App) bool {
	_, ok := m.seen[app]
	return ok
}

// Served is what this node serves, by App.
func (m *Machine) Served() []Entry { return slices.Clone(m.own.entries) }

// Members takes in every life that gossip knows, this node's own left out or not. A life
// that is not listed has ended.
func (m *Machine) Members(now time.Time, list []Member) {
	known := map[Life]bool{}
	for _, n := range list {
		if n.Life == m.self || !n.valid() || n.State == Left {
			continue
		}
		known[n.Life] = true
		m.meet(now, n)
	}
	for l := range m.members {
		if !known[l] {
			m.end(now, l)
		}
	}
	m.changed()
}

// meet takes in that a life is alive or failed.
func (m *Machine) meet(now time.Time, n Member) {
	delete(m.ended, n.Life)
	was := m.members[n.Life]
	if was == nil {
		was = &member{Member: n, since: now, nextAsk: now.Add(askAfter)}
		m.members[n.Life] = was
		if h := m.held[n.Life]; h != nil && h.stray {
			h.stray = false
			m.strays--
		}
	}
	if was.State != n.State {
		was.since, was.pause, was.nextAsk = now, 0, now.Add(askAfter)
	}
	was.Member = n
	if n.State != Alive {
		delete(m.pulls.wants, n.Life)
	}
}

// end forgets a life for good.
func (m *Machine) end(now time.Time, l Life) {
	delete(m.members, l)
	delete(m.pulls.wants, l)
	m.drop(l)
	if len(m.ended) < maxEnded {
		m.ended[l] = now
	}
}

func (m *Machine) drop(l Life) {
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

// changed notes that Records and the hash over them may differ from before.
func (m *Machine) changed() {
	m.version++
	m.compare.fresh = false
}

// Version counts the changes of what Records returns.
func (m *Machine) Version() uint64 { return m.version }

// Shown is a record of a life that is alive.
type Shown struct {
	*Record
	Peer  string    // id under which its peer port is dialled; empty for this node's own
	Since time.Time // when this version came; zero for this node's own
}

// Records returns the records of all lives that are alive, this node's first, as it stands,
// the rest in no order. A Record never changes.
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

// Alive reports whether a life of another node is alive.
func (m *Machine) Alive(l Life) bool { return m.alive(l) }

func (m *Machine) alive(l Life) bool {
	n := m.members[l]
	return n != nil && n.State == Alive
}

// newsTime is how long a life that shows up may take to tell what it serves.
const newsTime = 3 * time.Second

// Expecting reports whether there are lives that have shown up just now, and have not told
// yet whether they serve anything.
func (m *Machine) Expecting(now time.Time) bool {
	for l, n := range m.members {
		if h := m.held[l]; n.State == Alive && now.Sub(n.since) < newsTime && (h == nil || h.record == nil) {
			return true
		}
	}
	return false
}

// Peer is the id under which the peer port of a life that is alive is dialled.
func (m *Machine) Peer(l Life) string {
	if n := m.members[l]; n != nil {
		return n.Peer
	}
	return ""
}

// Size is how many records of others are held and how many bytes they take, encoded.
func (m *Machine) Size() (lives, bytes int) { return len(m.held), m.bytes }

// Counts are what has happened so far.
func (m *Machine) Counts() Counts { return m.counts }

// Tick does what is due: it tells of changes, asks for what is missing, and forgets. Call
// it every TickInterval.
func (m *Machine) Tick(now time.Time) {
	if m.own.due(now, len(m.members)) {
		m.own.tell(m.self, now)
		m.spread(m.self, m.own.message(m.self, m.bounds.Message))
	}
	m.summarise(now)
	if now.Sub(m.tidied) >= tidyInterval {
		m.tidied = now
		m.askSilent(now)
		m.expire(now)
	}
}

// tidyInterval is how often what takes a look at every node is done.
const tidyInterval = time.Second

// TickInterval is how often Tick is to be called.
const TickInterval = 100 * time.Millisecond

// expire forgets what was kept long enough.
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

// Receive takes in a broadcast.
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

// receiveUpdate takes a broadcast record in and passes it on.
func (m *Machine) receiveUpdate(now time.Time, u update, msg []byte) {
	if have := m.have(u.life); u.base > have {
		m.gap(now, announcement{u.life, u.version}, msg)
	} else if m.take(now, u) {
		m.relay(now, u.life, u.version, msg)
	}
}

// have is the version of a life's record that is held; 0 = none.
func (m *Machine) have(l Life) uint64 {
	if l == m.self {
		return m.own.version
	}
	if h := m.held[l]; h != nil && h.record != nil {
		return h.record.Version
	}
	return 0
}

// take puts an update into the catalogue if it is new and applies to what is held; it
// reports whether it did.
func (m *Machine) take(now time.Time, u update) bool {
	have := m.have(u.life)
	switch _, over := m.ended[u.life]; {
	case u.life == m.self, u.version <= have, u.base > have:
		m.counts.Old++
		return false
	case over:
		m.counts.Ended++
		return false
	}
	h := m.held[u.life]
	var old *Record
	if h != nil {
		old = h.record
	}
	next := newRecord(u.life, u.version, u.applied(old))
	if !m.fits(next, h) {
		m.counts.Refused++
		return false
	}
	if h == nil {
		h = m.hold(u.life)
	}
	if old != nil {
		m.bytes -= old.size
	}
	m.bytes += next.size
	h.record, h.at = next, now
	m.see(u.put)
	m.pulls.got(u.life, u.version)
	m.compare.gained(now)
	m.changed()
	return true
}

// applied is the contents after the update.
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

// fits reports whether a record is within the bounds; h is what is held of its life.
func (m *Machine) fits(next *Record, h *held) bool {
	size := m.bytes + next.size
	if h != nil && h.record != nil {
		size -= h.record.size
	}
	switch {
	case len(next.Entries) > m.bounds.Apps, next.size > m.bounds.Record, size > m.bounds.Bytes:
		return false
	case h != nil:
		return true
	}
	return len(m.held) < m.bounds.Lives && (m.members[next.Life] != nil || m.strays < maxStrays)
}

// hold makes room for a life of which nothing is known yet.
func (m *Machine) hold(l Life) *held {
	h := &held{stray: m.members[l] == nil}
	if h.stray {
		m.strays++
	}
	m.held[l] = h
	return h
}
