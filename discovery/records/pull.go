package records

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"
)

const (
	// askAfter is how long a life may be alive before it is asked for a record that nobody
	// brought; the pause doubles up to askPause.
	askAfter = 10 * time.Second
	askPause = time.Minute

	maxPulls    = 4                      // under way at a time
	maxAsked    = 512                    // records in one question
	spreadPulls = 300 * time.Millisecond // over which nodes that hear of a long record at the same time ask for it
	retryPull   = 500 * time.Millisecond
	maxTries    = 3
)

// want is a version that somebody has and this node lacks.
type want struct {
	version uint64
	from    Life // who has it; its owner is tried next
	due     time.Time
	tries   int
	busy    bool // it is being pulled
}

// pulls are what this node lacks.
type pulls struct {
	wants  map[Life]*want
	digest Life // whose digest to pull next; zero = nobody's
	flying int
}

// Pull is a question to another node, to be sent to its peer port.
type Pull struct {
	Peer    string // id under which it is dialled
	Request []byte

	from  Life
	lives []Life // none = its digest is asked for
}

// What names what is pulled: "digest" or "records".
func (p *Pull) What() string {
	if len(p.lives) == 0 {
		return "digest"
	}
	return "records"
}

// want notes that from has a version of a record.
func (m *Machine) want(now time.Time, a announcement, from Life, after time.Duration) {
	n := m.members[a.life]
	if n == nil || n.State != Alive || len(m.pulls.wants) >= m.bounds.Lives {
		return
	}
	w := m.pulls.wants[a.life]
	if w == nil {
		w = &want{due: now.Add(after)}
		m.pulls.wants[a.life] = w
	}
	if a.version > w.version {
		w.version, w.from, w.tries = a.version, from, 0
	}
}

// got ends the wish for a version that came.
func (p *pulls) got(l Life, version uint64) {
	if w := p.wants[l]; w != nil && w.version <= version {
		delete(p.wants, l)
	}
}

// jitter spreads what many nodes do at once; it is the same for the same two.
func (m *Machine) jitter(l Life) time.Duration {
	return time.Duration((m.self.hash(1) ^ l.hash(2)) % uint64(spreadPulls))
}

// askSilent wants a record of each life that has been alive for a while without one.
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

// Pulls returns the questions to send now. Each must be ended by Pulled.
func (m *Machine) Pulls(now time.Time) []Pull {
	var out []Pull
	if d := m.pulls.digest; d != (Life{}) && m.pulls.flying < maxPulls {
		m.pulls.digest = Life{}
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

// sources are the lives to ask, in order, of which a wish is due.
func (m *Machine) sources(now time.Time) []Life {
	seen := map[Life]bool{}
	for l, w := range m.pulls.wants {
		if w.busy {
			continue
		}
		if m.source(l, w); m.Peer(w.from) == "" {
			delete(m.pulls.wants, l) // nobody can be asked
		} else if w.ready(now) {
			seen[w.from] = true
		}
	}
	out := make([]Life, 0, len(seen))
	for l := range seen {
		out = append(out, l)
	}
	slices.SortFunc(out, Life.compare)
	return out
}

func (w *want) ready(now time.Time) bool { return !w.busy && !now.Before(w.due) }

// source turns to the owner where whoever had the record is gone.
func (m *Machine) source(l Life, w *want) {
	if !m.alive(w.from) || m.Peer(w.from) == "" {
		w.from = l
	}
}

func (m *Machine) pull(now time.Time, from Life) Pull {
	var a ask
	for l, w := range m.pulls.wants {
		if w.from == from && w.ready(now) {
			a.list = append(a.list, announcement{l, m.have(l)})
		}
	}
	slices.SortFunc(a.list, func(x, y announcement) int { return cmp.Or(x.life.compare(y.life)) })
	a.list = a.list[:min(len(a.list), maxAsked)]
	p := Pull{Peer: m.Peer(from), from: from, Request: a.encode()}
	for _, x := range a.list {
		p.lives = append(p.lives, x.life)
		m.pulls.wants[x.life].busy = true
	}
	return p
}

// Pulled takes in the answer to a question, or that there was none.
func (m *Machine) Pulled(now time.Time, p Pull, answer []byte, err error) error {
	m.pulls.flying--
	if err == nil && len(p.lives) == 0 {
		return m.Compare(now, answer)
	}
	took := 0
	if err == nil {
		took, err = m.takeAll(now, answer)
	}
	for _, l := range p.lives {
		w := m.pulls.wants[l]
		if w == nil {
			continue
		}
		w.busy = false
		if took > 0 && m.have(l) < w.version && w.tries < maxTries {
			continue // the answer was full: ask for the rest at once
		}
		m.failed(now, l, w)
	}
	return err
}

// failed tries the owner next, and gives up in the end: comparing digests finds it again.
func (m *Machine) failed(now time.Time, l Life, w *want) {
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

// Answer serves a pull of another node.
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
		rec := m.record(a.life)
		if rec == nil || rec.Version <= a.version {
			continue
		}
		if n > 0 && len(body)+2*rec.size+recordOverhead > m.bounds.Answer {
			break
		}
		body = (&update{life: rec.Life, version: rec.Version, put: rec.Entries}).append(body)
		n++
	}
	return append(binary.AppendUvarint(header(kindRecords), n), body...), nil
}

// record is the record of a life, this node's own included, as others may have it.
func (m *Machine) record(l Life) *Record {
	if l == m.self {
		return m.own.told
	}
	if h := m.held[l]; h != nil {
		return h.record
	}
	return nil
}
