package records

import (
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// summaryPause is how often each node tells a few others the hash over all it knows.
const summaryPause = 500 * time.Millisecond

// settle is how long a catalogue must have been unchanged before a difference counts: news
// on its way makes hashes differ, and comes by itself.
const settle = time.Second

// patience is how long every hash may differ while news goes on before it counts all the same.
const patience = 3 * time.Second

// The pauses between two digests pulled. The first doubles while digests bring nothing.
const (
	firstDigestPause = time.Second
	lastDigestPause  = 30 * time.Second
	busyDigestPause  = 3 * time.Second // while news goes on
)

// maxQueued bounds the broadcasts that wait.
const maxQueued = 4096

// comparison is how this catalogue is held against those of others.
type comparison struct {
	hash  uint64
	fresh bool // hash is that of the records

	summaries int       // still to be sent in this round
	sentAt    time.Time // the last round
	gainedAt  time.Time // when something new was last taken in
	agreedAt  time.Time // when another node last had the same
	differs   time.Time // since when none has; zero = the last one had

	pulledAt time.Time // the last digest
	pause    time.Duration
}

func (c *comparison) gained(now time.Time) { c.gainedAt, c.pause = now, 0 }

// Hash is the same on nodes that hold the same records of the same lives.
func (m *Machine) Hash() uint64 {
	if m.compare.fresh {
		return m.compare.hash
	}
	hash := uint64(0)
	if m.own.told != nil {
		hash = m.own.told.hash
	}
	for l, h := range m.held {
		if h.record != nil && m.alive(l) {
			hash ^= h.record.hash
		}
	}
	m.compare.hash, m.compare.fresh = hash, true
	return hash
}

// Agreed is when another node last had the same records; zero = never.
func (m *Machine) Agreed() time.Time { return m.compare.agreedAt }

// broadcast is one message in the queue; a newer one about the same life takes its place.
type broadcast struct {
	life Life
	msg  []byte
}

// Invalidates implements memberlist.Broadcast.
func (b broadcast) Invalidates(o memberlist.Broadcast) bool {
	other, ok := o.(broadcast)
	return ok && other.life == b.life
}

// Name implements memberlist.NamedBroadcast.
func (b broadcast) Name() string { return b.life.String() }

// Message implements memberlist.Broadcast.
func (b broadcast) Message() []byte { return b.msg }

// Finished implements memberlist.Broadcast.
func (b broadcast) Finished() {}

// spread queues a message about a life.
func (m *Machine) spread(l Life, msg []byte) {
	if l == m.self {
		m.compare.fresh = false // the told version is part of the hash
	}
	m.queue.QueueBroadcast(broadcast{l, msg})
	if m.queue.NumQueued() > maxQueued {
		m.queue.Prune(maxQueued * 3 / 4)
	}
}

// relay passes on what is new, once.
func (m *Machine) relay(now time.Time, l Life, version uint64, msg []byte) {
	h := m.held[l]
	if h == nil {
		if len(m.held) >= m.bounds.Lives || m.members[l] == nil && m.strays >= maxStrays {
			m.counts.Refused++
			return
		}
		h = m.hold(l)
		h.at = now
	}
	if version <= h.relayed {
		return
	}
	h.relayed = version
	if len(msg) <= m.bounds.Message {
		m.spread(l, slices.Clone(msg))
	}
}

// gap takes in that there is a version which has to be pulled.
func (m *Machine) gap(now time.Time, a announcement, msg []byte) {
	switch _, over := m.ended[a.life]; {
	case a.life == m.self, a.version <= m.have(a.life):
		m.counts.Old++
		return
	case over:
		m.counts.Ended++
		return
	}
	m.counts.Gaps++
	m.want(now, a, a.life, m.jitter(a.life))
	m.relay(now, a.life, a.version, msg)
}

// Broadcasts returns messages for the next packet: each costs overhead bytes more than its
// length, and all together at most limit bytes.
func (m *Machine) Broadcasts(overhead, limit int) [][]byte {
	out := m.queue.GetBroadcasts(overhead, limit)
	for _, msg := range out {
		limit -= len(msg) + overhead
		m.counts.Sent[msg[1]]++
	}
	if m.compare.summaries > 0 {
		s := (&summary{m.self, m.Hash()}).encode()
		if len(s)+overhead <= limit {
			m.compare.summaries--
			m.counts.Sent[kindSummary]++
			out = append(out, s)
		}
	}
	return out
}

// Queued is the number of broadcasts that wait.
func (m *Machine) Queued() int { return m.queue.NumQueued() }

// summarise has the next few packets carry the hash.
func (m *Machine) summarise(now time.Time) {
	if now.Sub(m.compare.sentAt) >= summaryPause && m.own.told != nil {
		m.compare.sentAt, m.compare.summaries = now, m.fanout
	}
}

// receiveSummary holds another node's hash against this one's; where they differ for long
// enough, the node is asked for its digest.
func (m *Machine) receiveSummary(now time.Time, s summary) {
	c := &m.compare
	if s.sender == m.self {
		return
	}
	if s.hash == m.Hash() {
		c.agreedAt, c.differs, c.pause = now, time.Time{}, 0
		return
	}
	if c.differs.IsZero() {
		c.differs = now
	}
	pause := max(c.pause, firstDigestPause)
	if now.Sub(c.gainedAt) < settle {
		if now.Sub(c.differs) < patience {
			return
		}
		pause = busyDigestPause
	}
	if now.Sub(c.pulledAt) >= pause && m.pulls.digest == (Life{}) && m.alive(s.sender) && m.Peer(s.sender) != "" {
		m.pulls.digest = s.sender
		c.pulledAt, c.pause = now, min(max(2*c.pause, firstDigestPause), lastDigestPause)
	}
}

// Digest is what LocalState of gossip carries: which versions this node has of all.
func (m *Machine) Digest() []byte {
	d := digest{sender: m.self}
	if v := m.own.toldVersion(); v > 0 {
		d.list = append(d.list, announcement{m.self, v})
	}
	for l, h := range m.held {
		if h.record != nil && m.alive(l) {
			d.list = append(d.list, announcement{l, h.record.Version})
		}
	}
	slices.SortFunc(d.list, func(a, b announcement) int { return a.life.compare(b.life) })
	return d.encode()
}

// Compare takes in another node's Digest: what is newer there is wanted from it.
func (m *Machine) Compare(now time.Time, b []byte) error {
	k, r := open(b)
	d := digest{sender: r.life(), list: r.announcements(m.bounds.Lives + 1)}
	if k != kindDigest || !r.end() {
		m.counts.Bad++
		return errUnreadable("a digest of applications")
	}
	m.counts.Received[k]++
	for _, a := range d.list {
		if _, over := m.ended[a.life]; !over && a.life != m.self && a.version > m.have(a.life) {
			m.want(now, a, d.sender, 0)
		}
	}
	return nil
}
