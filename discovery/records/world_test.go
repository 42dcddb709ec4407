package records_test

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/testutil"
)

// world is a virtual network of machines that gossip as membership does. Every 200 ms each machine sends its
// messages to three others, in packets of at most 1,400 bytes, and occasionally exchanges digests with one. Time is
// virtual and random numbers are seeded, so a run is repeatable.
type world struct {
	t     testing.TB
	rng   *rand.Rand
	now   time.Time
	seq   int
	queue events
	nodes []*site
	live  []*site // possible receivers
	loss  float64 // share of the packets that get lost
	cut   func(a, b *site) bool
	bytes int // sent by all nodes
	pulls int
}

// site is a node of the world.
type site struct {
	*records.Machine
	incarnation records.Incarnation
	number      int
	dead        bool
	sent        int // bytes
}

type event struct {
	at  time.Time
	seq int
	run func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return x
}

const (
	gossipInterval = 200 * time.Millisecond
	fanout         = 3
	packet         = 1400
	pushPull       = 15 * time.Second
	packetCost     = 28 + 2 // IP, UDP, and the frame of a compound message
	messageCost    = 3 + 1  // bytes of each message in a packet, besides its text
	streamCost     = 300    // of a TCP exchange on an open connection, more than its headers
)

// newWorld starts n nodes that see each other as alive.
func newWorld(t testing.TB, seed uint64, n int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_000_000, 0),
		cut: func(_, _ *site) bool { return false }}
	for i := range n {
		w.add(fmt.Sprintf("n%03d", i), 1)
	}
	w.tellMembers()
	return w
}

// add starts a node.
func (w *world) add(node string, boot int) *site {
	s := &site{incarnation: records.Incarnation{Node: node, Boot: fmt.Sprintf("0193b2c4d5e%08x", boot)},
		number: len(w.nodes)}
	s.Machine = records.New(records.Options{Self: s.incarnation})
	w.nodes = append(w.nodes, s)
	w.live = append(w.live, s)
	w.every(s, records.TickInterval, func() { s.Tick(w.now); w.pull(s) })
	w.every(s, gossipInterval, func() { w.gossip(s) })
	w.every(s, w.exchangeInterval(), func() { w.exchange(s) })
	return s
}

// exchangeInterval returns the interval of exchanges, for at least 500 nodes. As in memberlist, it grows with the
// cluster.
func (w *world) exchangeInterval() time.Duration {
	n := max(len(w.live), 500)
	return time.Duration(math.Ceil(math.Log2(float64(n))-5)+1) * pushPull
}

func (w *world) after(d time.Duration, action func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now.Add(d), w.seq, action})
}

// every calls action at intervals until the node is dead, starting at a random time.
func (w *world) every(s *site, d time.Duration, action func()) {
	var again func()
	again = func() {
		if s.dead {
			return
		}
		action()
		w.after(d, again)
	}
	w.after(time.Duration(w.rng.Int64N(int64(d))), again)
}

// run advances time.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.queue) > 0 && !w.queue[0].at.After(end) {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.run()
	}
	w.now = end
}

// until advances time until cond is true. It returns how long that took.
func (w *world) until(limit time.Duration, what string, cond func() bool) time.Duration {
	w.t.Helper()
	begun := w.now
	for !cond() {
		if w.now.Sub(begun) > limit {
			w.t.Fatalf("%s: not within %s", what, limit)
		}
		w.run(20 * time.Millisecond)
	}
	return w.now.Sub(begun)
}

func (w *world) spend(s *site, n int) {
	s.sent += n
	w.bytes += n
}

// latency returns a random latency of one way, at least 1 ms and below 5 ms.
func (w *world) latency() time.Duration { return time.Millisecond + time.Duration(w.rng.Int64N(4e6)) }

func (w *world) gossip(s *site) {
	for range fanout {
		to := w.live[w.rng.IntN(len(w.live))]
		msgs := s.Broadcasts(messageCost, packet-2)
		if len(msgs) == 0 {
			return
		}
		n := packetCost
		for _, m := range msgs {
			n += len(m) + messageCost
		}
		w.spend(s, n)
		if to == s || w.cut(s, to) || w.rng.Float64() < w.loss {
			continue
		}
		w.after(w.latency(), func() {
			for _, m := range msgs {
				if !to.dead {
					to.Receive(w.now, m)
				}
			}
			w.pull(to)
		})
	}
}

// exchange exchanges digests between s and a random node, as a push/pull of gossip does.
func (w *world) exchange(s *site) {
	to := w.live[w.rng.IntN(len(w.live))]
	if to == s || w.cut(s, to) || w.cut(to, s) {
		return
	}
	mine, theirs := s.Digest(), to.Digest()
	w.spend(s, len(mine))
	w.spend(to, len(theirs))
	w.after(2*w.latency(), func() {
		for dst, d := range map[*site][]byte{to: mine, s: theirs} {
			if err := dst.Compare(w.now, d); err != nil {
				w.t.Error(err)
			}
		}
		w.pull(s)
		w.pull(to)
	})
}

// pull sends the questions that are due.
func (w *world) pull(s *site) {
	if s.dead {
		return
	}
	for _, p := range s.Pulls(w.now) {
		w.pulls++
		w.spend(s, len(p.Request)+streamCost)
		to := w.at(p.Peer)
		if to == nil || to.dead || w.cut(s, to) || w.cut(to, s) {
			w.after(time.Second, func() { _ = s.Pulled(w.now, p, nil, fmt.Errorf("unreachable")) })
			continue
		}
		w.after(w.latency(), func() {
			answer, err := to.Answer(p.Request)
			w.spend(to, len(answer)+streamCost)
			w.after(w.latency(), func() {
				if err := s.Pulled(w.now, p, answer, err); err != nil {
					w.t.Error(err)
				}
				w.pull(s)
			})
		})
	}
}

func (w *world) at(peer string) *site {
	for _, s := range w.live {
		if peer == peerOf(s) {
			return s
		}
	}
	return nil
}

func peerOf(s *site) string { return s.incarnation.String() }

// members returns what gossip reports to s: nodes that it can reach are alive.
func (w *world) members(s *site) []records.Member {
	var out []records.Member
	for _, o := range w.live {
		m := records.Member{Incarnation: o.incarnation, Peer: peerOf(o), State: records.Alive}
		if w.cut(s, o) || w.cut(o, s) {
			m.State = records.Failed
		}
		out = append(out, m)
	}
	return out
}

// tellMembers calls Members on all nodes at once.
func (w *world) tellMembers() {
	for _, s := range w.live {
		s.Members(w.now, w.members(s))
	}
}

// tellMembersWithin calls Members on each node at a random time within d, as gossip does.
func (w *world) tellMembersWithin(d time.Duration) {
	for _, s := range w.live {
		w.after(time.Duration(w.rng.Int64N(int64(d))), func() {
			if !s.dead {
				s.Members(w.now, w.members(s))
			}
		})
	}
}

// kill ends a node.
func (w *world) kill(s *site) {
	s.dead = true
	for i, o := range w.live {
		if o == s {
			w.live = append(w.live[:i], w.live[i+1:]...)
			return
		}
	}
}

// restart starts a new incarnation of a node.
func (w *world) restart(s *site, boot int) *site {
	w.kill(s)
	n := w.add(s.incarnation.Node, boot)
	n.Members(w.now, w.members(n))
	return n
}

// serves makes a node serve some applications. version determines which of them are healthy.
func (s *site) serves(t testing.TB, apps, version int) {
	t.Helper()
	var list []records.Entry
	for i := range apps {
		list = append(list, records.Entry{App: records.App{ID: fmt.Sprintf("app-%d", (s.number*7+i*131)%(apps*250))},
			Protocol: records.HTTP, Healthy: (version+i)%2 == 0})
	}
	must(t, s.Serve(list))
}

// agree reports whether all live nodes hold the same records.
func (w *world) agree() bool {
	for _, s := range w.live[1:] {
		if s.Hash() != w.live[0].Hash() {
			return false
		}
	}
	return true
}

// complete reports whether all nodes hold the newest record of all nodes.
func (w *world) complete() bool {
	for _, s := range w.live {
		if n, _ := s.Size(); n < len(w.live)-1 {
			return false
		}
	}
	return w.agree()
}

// rate returns how many bytes per second a node has sent since the last call, which was d ago: the mean and the
// maximum.
func (w *world) rate(d time.Duration) (mean, most float64) {
	for _, s := range w.live {
		most = max(most, float64(s.sent)/d.Seconds())
		mean += float64(s.sent) / d.Seconds() / float64(len(w.live))
	}
	for _, s := range w.nodes {
		s.sent = 0
	}
	w.bytes = 0
	return mean, most
}

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }
