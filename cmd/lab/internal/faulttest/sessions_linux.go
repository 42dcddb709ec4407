package faulttest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/child"
)

// Sessions has clients that check the session guarantees. Each client writes growing numbers to its own keys, and reads
// keys of all clients with eventual consistency. A response must reflect everything that its session has already
// written and read, unless the response is marked stale.
//
// Half of the clients move between nodes and send a session token. The other clients stay on one node, send no token,
// and share the session of their application.
type Sessions struct {
	cluster *Cluster
	clients []*sessionClient
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu sync.Mutex
	// open has, by key, the numbers whose write has an unknown outcome and may still be applied. mu guards it and the
	// fields below.
	open  map[int]map[int]bool
	bad   []string
	marks []span    // responses marked stale
	loose []suspect // responses that are only right if a write was lost
	reads int
	stale int
	lost  int // stale responses that informed a session of a possibly lost write
}

// ownKeys is the number of keys that each client writes. Client i has the keys from ownKeys*i. With two keys, a client
// can lose a write of one key, write the other key, and then read the first key again.
const ownKeys = 2

// span is the time of a call at a node.
type span struct {
	node       *Node
	begin, end time.Time
}

// suspect is a read without a session token that does not return an earlier eventual write of its session. The node may
// lose such a write if it reports the loss. The read is a violation unless the node marked a response as stale between
// the write and the read.
type suspect struct {
	span // from the write to the response
	text string
}

// StartSessions starts clients. Half of them move between nodes.
func StartSessions(c *Cluster, seed uint64, clients int) *Sessions {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Sessions{cluster: c, stop: cancel, open: map[int]map[int]bool{}}
	for key := range clients * ownKeys {
		s.open[key] = map[int]bool{}
	}
	for id := range clients {
		rnd := rand.New(rand.NewPCG(seed, uint64(id)+2000)) //nolint:gosec // chance, not a secret
		one := &sessionClient{all: s, id: id, rnd: rnd, seen: map[int]int{}}
		if nodes := c.Running(); id%2 == 1 {
			one.home = nodes[id/2%len(nodes)]
		}
		s.clients = append(s.clients, one)
	}
	for _, one := range s.clients {
		s.wg.Go(func() { one.run(ctx) })
	}
	return s
}

// Stop stops the clients and returns the violations.
func (s *Sessions) Stop() []string {
	s.stop()
	s.wg.Wait()
	bad := s.bad
	for _, l := range s.loose {
		told := slices.ContainsFunc(s.marks, func(m span) bool {
			return m.node == l.node && m.end.After(l.begin) && m.begin.Before(l.end)
		})
		if !told {
			bad = append(bad, l.text)
		}
	}
	return bad
}

// Settle checks that nodes report the loss of a write once, and not with every later response. It repeats its requests
// until every client can read its keys at all of its nodes, and no response is marked stale. If ctx ends first, Settle
// returns an error. The clients must be stopped, and all nodes must be running.
func (s *Sessions) Settle(ctx context.Context) error {
	return Until(ctx, func() error {
		for _, c := range s.clients {
			nodes := s.cluster.Running()
			if c.home != nil {
				nodes = slices.DeleteFunc(nodes, func(n *Node) bool { return n != c.home })
			}
			for _, n := range nodes {
				for i := range ownKeys {
					a := c.do(ctx, n, Get(sessionKey(c.id*ownKeys+i), Eventual))
					if a.Outcome != Done || a.Stale() {
						return fmt.Errorf("client %d (%s) cannot read at level session at %s: status %d, level %q; "+
							"its calls:\n%s", c.id, c.kind(), n.Name, a.Status, a.Level, strings.Join(c.trace, "\n"))
					}
				}
				c.write(ctx, n, Eventual)
			}
		}
		return nil
	})
}

// Bad returns the violations that were found so far. It does not include those that only Stop can find.
func (s *Sessions) Bad() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bad)
}

// Reads returns the number of checked reads.
func (s *Sessions) Reads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// String returns a summary.
func (s *Sessions) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d eventual reads, %d marked stale, %d of those after a write that was perhaps lost", s.reads,
		s.stale, s.lost)
}

type sessionClient struct {
	all   *Sessions
	id    int
	rnd   *rand.Rand
	home  *Node // of a client that stays on one node; nil = moves
	life  *child.Process
	token string

	own   [ownKeys]ownKey
	seen  map[int]int // by key, the greatest number in a response not marked stale
	trace []string    // the latest calls
}

// ownKey is what a client knows about one of its keys.
type ownKey struct {
	n       int       // last number that was sent
	durable int       // greatest number that cannot be lost, because it was acknowledged as strong
	since   time.Time // when the newest acknowledged number was sent
	written int       // greatest acknowledged number since the last response marked stale
}

// traced is the number of calls that a violation lists.
const traced = 12

func (c *sessionClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.all.cluster.pass(ctx, func() { c.one(ctx) })
	}
}

// one makes one request.
func (c *sessionClient) one(ctx context.Context) {
	n := c.home
	nodes := c.all.cluster.Running()
	if len(nodes) == 0 {
		pause(ctx, 10*time.Millisecond)
		return
	}
	if n != nil && !slices.Contains(c.all.cluster.Nodes(), n) {
		// Its node is no longer a member: it starts a new session on another node.
		n = nodes[c.rnd.IntN(len(nodes))]
		c.home, c.life, c.seen = n, nil, map[int]int{}
	}
	if n == nil {
		n = nodes[c.rnd.IntN(len(nodes))]
	}
	if life := n.current(); c.home != nil && life != c.life {
		// Without a token, a session lasts as long as the node's process.
		c.life = life
		c.expectLoss()
	}
	var a Answer
	switch c.rnd.IntN(6) {
	case 0:
		a = c.write(ctx, n, Strong)
	case 1, 2:
		a = c.write(ctx, n, Eventual)
	case 3, 4:
		a = c.read(ctx, n, c.id*ownKeys+c.rnd.IntN(ownKeys))
	default:
		a = c.read(ctx, n, c.rnd.IntN(len(c.all.clients)*ownKeys))
	}
	if a.Outcome != Done {
		pause(ctx, 10*time.Millisecond)
	}
}

func (c *sessionClient) do(ctx context.Context, n *Node, r Request) Answer {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	if c.home == nil {
		r = r.With("Quorate-Session", c.token)
	}
	begin := time.Now()
	a := n.Do(ctx, r)
	c.trace = append(c.trace[max(0, len(c.trace)-traced+1):],
		fmt.Sprintf("%s +%s %s %s %s -> %d %v %s %s", begin.Format("15:04:05.000"),
			time.Since(begin).Round(time.Millisecond),
			n.Name, r.Method, cmp.Or(r.Body, r.Path), a.Status, a.Items, a.Level, cmp.Or(a.Session, a.Text)))
	if a.Session != "" {
		c.token = a.Session
	}
	return a
}

func sessionKey(key int) string { return "s" + strconv.Itoa(key) }

// expectLoss records that acknowledged eventual writes of the session may be lost.
func (c *sessionClient) expectLoss() {
	for i := range c.own {
		c.own[i].written = c.own[i].durable
	}
}

func (c *sessionClient) write(ctx context.Context, n *Node, level Level) Answer {
	i := c.rnd.IntN(ownKeys)
	own, key := &c.own[i], c.id*ownKeys+i
	own.n++
	begin := time.Now()
	a := c.do(ctx, n, Set(sessionKey(key), strconv.Itoa(own.n), level))
	if a.Outcome == Unknown {
		c.all.mu.Lock()
		c.all.open[key][own.n] = true
		c.all.mu.Unlock()
	}
	if a.Outcome != Done {
		return a
	}
	own.written, own.since = own.n, begin
	if level == Strong {
		own.durable = own.n
	}
	return a
}

// read reads a number and checks it against what the session knows.
func (c *sessionClient) read(ctx context.Context, n *Node, key int) Answer {
	life, begin := n.current(), time.Now()
	a := c.do(ctx, n, Get(sessionKey(key), Eventual))
	if a.Outcome != Done {
		return a
	}
	if c.home != nil && life != c.life {
		return a // the node was restarted, which starts a new session
	}
	got, _ := strconv.Atoi(a.Items[0].Value) // 0 if absent
	var own ownKey
	if key/ownKeys == c.id {
		own = c.own[key%ownKeys]
	}
	sure, floor := max(c.seen[key], own.durable), max(c.seen[key], own.written)
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.all.reads++
	if a.Stale() {
		c.all.stale++
		if slices.ContainsFunc(c.own[:], func(o ownKey) bool { return o.written > o.durable }) {
			c.all.lost++
		}
		c.all.marks = append(c.all.marks, span{n, begin, time.Now()})
		c.expectLoss()
		return a
	}
	if got < floor && !c.all.open[key][got] {
		text := fmt.Sprintf("client %d (%s) read %d of key %s at %s at %s, level %q, after it had seen %d; "+
			"written %d, durable %d; its calls:\n%s",
			c.id, c.kind(), got, sessionKey(key), n.Name, time.Now().Format(time.RFC3339Nano), a.Level, c.seen[key],
			own.written, own.durable, strings.Join(c.trace, "\n"))
		if c.home != nil && got >= sure {
			c.all.loose = append(c.all.loose, suspect{span{n, own.since, time.Now()}, text})
		} else {
			c.all.bad = append(c.all.bad, text)
		}
	}
	c.seen[key] = max(c.seen[key], got)
	return a
}

func (c *sessionClient) kind() string {
	if c.home == nil {
		return "travels with its token"
	}
	return "stays without a token"
}
