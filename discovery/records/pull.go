package records

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"
)

const (
	// askAfter is how long this node waits for the record of a live incarnation before it pulls the record. The pause
	// between further attempts doubles, up to askPause.
	askAfter = 10 * time.Second
	askPause = time.Minute

	maxPulls = 4   // maximum number of pulls in progress
	maxAsked = 512 // records in one question
	// spreadPulls is the upper bound of the delay before a pull of a record. The delay differs between nodes, so that
	// they do not all pull the same record at the same time.
	spreadPulls = 300 * time.Millisecond
	retryPull   = 500 * time.Millisecond
	maxTries    = 3
)

// want describes a version that another node has and this node lacks.
type want struct {
	version uint64
	from    Incarnation // the node to pull from; after a failure, the owner
	due     time.Time
	tries   int
	busy    bool // a pull is in progress
}

// pulls contains the pulls that this node must still do: pulls of records, and at most one pull of another node's
// digest.
type pulls struct {
	wants  map[Incarnation]*want
	digest Incarnation // the node whose digest to pull next; zero = none
	flying int
}

// Pull is a question to send to another node's peer port.
type Pull struct {
	Peer    string // id under which the node is dialled
	Request []byte

	from         Incarnation
	incarnations []Incarnation // none = the digest is requested
}

// What returns the kind of data that p requests: "digest" or "records".
func (p *Pull) What() string {
	if len(p.incarnations) == 0 {
		return "digest"
	}
	return "records"
}

// want schedules a pull of a record after a delay. The announcement a has the incarnation and the version of the
// record, and source is a node that has this version. want does nothing if the incarnation is not alive, or if too many
// pulls are scheduled.
func (m *Machine) want(now time.Time, a announcement, source Incarnation, delay time.Duration) {
	n := m.members[a.incarnation]
	if n == nil || n.State != Alive || len(m.pulls.wants) >= m.bounds.Incarnations {
		return
	}
	w := m.pulls.wants[a.incarnation]
	if w == nil {
		w = &want{due: now.Add(delay)}
		m.pulls.wants[a.incarnation] = w
	}
	if a.version > w.version {
		w.version, w.from, w.tries = a.version, source, 0
	}
}

// got handles the arrival of a version of l's record. It cancels the pull of this record, unless a newer version is
// wanted.
func (p *pulls) got(l Incarnation, version uint64) {
	if w := p.wants[l]; w != nil && w.version <= version {
		delete(p.wants, l)
	}
}

// jitter returns the delay before a pull of l's record. The delay is below spreadPulls and differs between nodes, so
// that not all nodes pull at the same time.
func (m *Machine) jitter(l Incarnation) time.Duration {
	return time.Duration((m.self.hash(1) ^ l.hash(2)) % uint64(spreadPulls))
}

// askSilent schedules pulls of the records that are still missing some time after their incarnations became alive.
func (m *Machine) askSilent(now time.Time) {
	for l, n := range m.members {
		if n.State != Alive || now.Before(n.nextAsk) {
			continue
		}
		if m.have(l) > 0 {
			n.nextAsk = now.Add(askPause)
			continue
		}
		n.pause = min(max(2*n.pause, askAfter), askPause)
		n.nextAsk = now.Add(n.pause)
		if m.pulls.wants[l] == nil {
			m.want(now, announcement{l, 1}, l, m.jitter(l))
		}
	}
}

// Pulls returns the questions to send now. The caller must call Pulled with the result of each question.
func (m *Machine) Pulls(now time.Time) []Pull {
	var out []Pull
	if d := m.pulls.digest; d != (Incarnation{}) && m.pulls.flying < maxPulls {
		m.pulls.digest = Incarnation{}
		if peer := m.Peer(d); peer != "" && m.alive(d) {
			out = append(out, Pull{Peer: peer, Request: (&ask{}).encode(), from: d})
			m.pulls.flying++
		}
	}
	for _, from := range m.sources(now) {
		if m.pulls.flying >= maxPulls {
			break
		}
		out = append(out, m.pull(now, from))
		m.pulls.flying++
	}
	return out
}

// sources returns the nodes from which at least one record must be pulled now, sorted.
func (m *Machine) sources(now time.Time) []Incarnation {
	seen := map[Incarnation]bool{}
	for l, w := range m.pulls.wants {
		if w.busy {
			continue
		}
		if m.source(l, w); m.Peer(w.from) == "" {
			delete(m.pulls.wants, l) // no node has the record any more
		} else if w.ready(now) {
			seen[w.from] = true
		}
	}
	out := make([]Incarnation, 0, len(seen))
	for l := range seen {
		out = append(out, l)
	}
	slices.SortFunc(out, Incarnation.compare)
	return out
}

func (w *want) ready(now time.Time) bool { return !w.busy && !now.Before(w.due) }

// source sets w.from, the node from which the record of l is pulled, to l itself if w.from is not alive or cannot be
// dialled.
func (m *Machine) source(l Incarnation, w *want) {
	if !m.alive(w.from) || m.Peer(w.from) == "" {
		w.from = l
	}
}

func (m *Machine) pull(now time.Time, from Incarnation) Pull {
	var a ask
	for l, w := range m.pulls.wants {
		if w.from == from && w.ready(now) {
			a.list = append(a.list, announcement{l, m.have(l)})
		}
	}
	slices.SortFunc(a.list, func(x, y announcement) int { return cmp.Or(x.incarnation.compare(y.incarnation)) })
	a.list = a.list[:min(len(a.list), maxAsked)]
	p := Pull{Peer: m.Peer(from), from: from, Request: a.encode()}
	for _, x := range a.list {
		p.incarnations = append(p.incarnations, x.incarnation)
		m.pulls.wants[x.incarnation].busy = true
	}
	return p
}

// Pulled processes the result of a pull: the answer of the other node, or the error with which the pull failed. It
// returns this error, or an error if the answer cannot be read.
func (m *Machine) Pulled(now time.Time, p Pull, answer []byte, err error) error {
	m.pulls.flying--
	if err == nil && len(p.incarnations) == 0 {
		return m.Compare(now, answer)
	}
	took := 0
	if err == nil {
		took, err = m.takeAll(now, answer)
	}
	for _, l := range p.incarnations {
		w := m.pulls.wants[l]
		if w == nil {
			continue
		}
		w.busy = false
		if took > 0 && m.have(l) < w.version && w.tries < maxTries {
			continue // the answer was full: request the rest at once
		}
		m.failed(now, l, w)
	}
	return err
}

// failed handles a failed pull of l's record. The next attempt is sent to l itself. After maxTries failures, this node
// gives up.
func (m *Machine) failed(now time.Time, l Incarnation, w *want) {
	w.tries++
	w.from, w.due = l, now.Add(retryPull<<w.tries)
	if w.tries >= maxTries {
		delete(m.pulls.wants, l)
	}
}

func (m *Machine) takeAll(now time.Time, answer []byte) (took int, err error) {
	k, r := open(answer)
	n := r.count(8)
	if k != kindRecords {
		r.bad = true
	}
	for range n {
		u := r.update()
		if r.bad {
			break
		}
		if m.take(now, u) {
			took++
		}
	}
	if !r.end() {
		m.counts.Bad++
		return took, errUnreadable("an answer with records of applications")
	}
	m.counts.Received[k]++
	return took, nil
}

// Answer processes the request of another node that pulls from this node, and returns the answer. If not all requested
// records fit into one answer, the other node requests the rest again. Answer returns fault.Unimplemented if the
// request cannot be read.
func (m *Machine) Answer(request []byte) ([]byte, error) {
	k, r := open(request)
	list := r.announcements(maxAsked)
	if k != kindAsk || !r.end() {
		m.counts.Bad++
		return nil, errUnreadable("a question for records of applications")
	}
	m.counts.Received[k]++
	if len(list) == 0 {
		return m.Digest(), nil
	}
	var body []byte
	n := uint64(0)
	for _, a := range list {
		rec := m.record(a.incarnation)
		if rec == nil || rec.Version <= a.version {
			continue
		}
		if n > 0 && len(body)+2*rec.size+recordOverhead > m.bounds.Answer {
			break
		}
		body = (&update{incarnation: rec.Incarnation, version: rec.Version, put: rec.Entries}).append(body)
		n++
	}
	return append(binary.AppendUvarint(header(kindRecords), n), body...), nil
}

// record returns the record of an incarnation as it is sent to other nodes, or nil if there is none. For this node,
// it is the last announced record.
func (m *Machine) record(l Incarnation) *Record {
	if l == m.self {
		return m.own.announced
	}
	if h := m.held[l]; h != nil {
		return h.record
	}
	return nil
}
