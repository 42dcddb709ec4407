package records

import (
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// summaryPause is how often each node sends a hash of all its records to a few others.
const summaryPause = 500 * time.Millisecond

// settle is the time after the arrival of a new record during which this node ignores hashes of other nodes that differ
// from its Hash. While changes are being broadcast, such differences are normal.
const settle = time.Second

// patience is the maximum time for which this node ignores such differences, even if new records keep arriving. See
// settle.
const patience = 3 * time.Second

// Pauses between two pulls of a digest. The first pause is minDigestPause. Each further pause is twice as long, up to
// maxDigestPause. After a new record, the pause is minDigestPause again.
const (
	minDigestPause  = time.Second
	maxDigestPause  = 30 * time.Second
	busyDigestPause = 3 * time.Second // during changes
)

// maxQueued bounds the queued broadcasts.
const maxQueued = 4096

// comparison is the state of comparing this catalogue with those of other nodes.
type comparison struct {
	hash  uint64
	fresh bool // hash is that of the current records

	summaries int       // hashes left to send in this round
	sentAt    time.Time // time of the last round
	gainedAt  time.Time // when something new was last applied
	agreedAt  time.Time // when another node last had the same hash
	differs   time.Time // since when received hashes differ; zero = the last one was equal

	pulledAt time.Time // when a pull of a digest was last scheduled
	pause    time.Duration
}

func (c *comparison) gained(now time.Time) { c.gainedAt, c.pause = now, 0 }

// Hash returns a hash of the records of all live incarnations. If two nodes have the same versions of the same records,
// their hashes are equal.
func (m *Machine) Hash() uint64 {
	if m.compare.fresh {
		return m.compare.hash
	}
	hash := uint64(0)
	if m.own.announced != nil {
		hash = m.own.announced.hash
	}
	for l, h := range m.held {
		if h.record != nil && m.alive(l) {
			hash ^= h.record.hash
		}
	}
	m.compare.hash, m.compare.fresh = hash, true
	return hash
}

// Agreed returns the time at which another node last reported the same Hash as this node. It returns the zero time if
// none has done so yet.
func (m *Machine) Agreed() time.Time { return m.compare.agreedAt }

// broadcast is one queued message. A newer one about the same incarnation replaces it.
type broadcast struct {
	incarnation Incarnation
	msg         []byte
}

// Invalidates implements memberlist.Broadcast.
func (b broadcast) Invalidates(o memberlist.Broadcast) bool {
	other, ok := o.(broadcast)
	return ok && other.incarnation == b.incarnation
}

// Name implements memberlist.NamedBroadcast.
func (b broadcast) Name() string { return b.incarnation.String() }

// Message implements memberlist.Broadcast.
func (b broadcast) Message() []byte { return b.msg }

// Finished implements memberlist.Broadcast.
func (b broadcast) Finished() {}

// spread queues a message about an incarnation.
func (m *Machine) spread(l Incarnation, msg []byte) {
	if l == m.self {
		m.compare.fresh = false // the announced version is part of the hash
	}
	m.queue.QueueBroadcast(broadcast{l, msg})
	if m.queue.NumQueued() > maxQueued {
		m.queue.Prune(maxQueued * 3 / 4)
	}
}

// relay queues a message about a version of a record, unless this version or a newer one was relayed already.
func (m *Machine) relay(now time.Time, l Incarnation, version uint64, msg []byte) {
	h := m.held[l]
	if h == nil {
		if len(m.held) >= m.bounds.Incarnations || m.members[l] == nil && m.strays >= maxStrays {
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

// gap handles a message about a new version of a record. The message does not contain enough to build this version. So
// gap schedules a pull of the record, and relays the message.
func (m *Machine) gap(now time.Time, a announcement, msg []byte) {
	switch _, over := m.ended[a.incarnation]; {
	case a.incarnation == m.self, a.version <= m.have(a.incarnation):
		m.counts.Old++
		return
	case over:
		m.counts.Ended++
		return
	}
	m.counts.Gaps++
	m.want(now, a, a.incarnation, m.jitter(a.incarnation))
	m.relay(now, a.incarnation, a.version, msg)
}

// Broadcasts returns messages for the next gossip packet. Each message takes its length plus overhead bytes, and all
// together take at most limit bytes.
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

// Queued returns the number of queued broadcasts.
func (m *Machine) Queued() int { return m.queue.NumQueued() }

// summarise makes Broadcasts send the Hash of this node once per summaryPause. Broadcasts adds the hash to as many
// packets as a round of gossip has receivers.
func (m *Machine) summarise(now time.Time) {
	if now.Sub(m.compare.sentAt) >= summaryPause && m.own.announced != nil {
		m.compare.sentAt, m.compare.summaries = now, m.fanout
	}
}

// receiveSummary compares the Hash of another node with that of this node. If the two hashes differ, receiveSummary
// schedules a pull of the other node's digest. It schedules no pull if the last pull was too recent, or while the
// difference may be due to changes that are being broadcast. See settle and patience.
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
	pause := max(c.pause, minDigestPause)
	if now.Sub(c.gainedAt) < settle {
		if now.Sub(c.differs) < patience {
			return
		}
		pause = busyDigestPause
	}
	if now.Sub(c.pulledAt) >= pause && m.pulls.digest == (Incarnation{}) && m.alive(s.sender) &&
		m.Peer(s.sender) != "" {
		m.pulls.digest = s.sender
		c.pulledAt, c.pause = now, min(max(2*c.pause, minDigestPause), maxDigestPause)
	}
}

// Digest returns an encoded list of the versions of all records of live incarnations. It is the LocalState of the
// gossip channel.
func (m *Machine) Digest() []byte {
	d := digest{sender: m.self}
	if v := m.own.announcedVersion(); v > 0 {
		d.list = append(d.list, announcement{m.self, v})
	}
	for l, h := range m.held {
		if h.record != nil && m.alive(l) {
			d.list = append(d.list, announcement{l, h.record.Version})
		}
	}
	slices.SortFunc(d.list, func(a, b announcement) int { return a.incarnation.compare(b.incarnation) })
	return d.encode()
}

// Compare reads the Digest of another node. It schedules a pull of each record of which the other node has a newer
// version. Compare returns fault.Unimplemented if the digest cannot be read.
func (m *Machine) Compare(now time.Time, b []byte) error {
	k, r := open(b)
	d := digest{sender: r.incarnation(), list: r.announcements(m.bounds.Incarnations + 1)}
	if k != kindDigest || !r.end() {
		m.counts.Bad++
		return errUnreadable("a digest of applications")
	}
	m.counts.Received[k]++
	for _, a := range d.list {
		if _, over := m.ended[a.incarnation]; !over && a.incarnation != m.self && a.version > m.have(a.incarnation) {
			m.want(now, a, d.sender, 0)
		}
	}
	return nil
}
