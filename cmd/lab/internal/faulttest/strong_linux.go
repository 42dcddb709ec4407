package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/history"
)

const (
	// answerTime is the timeout of an attempt. A paused node never responds.
	answerTime = 3 * time.Second
	// familyLife is the number of operations after which clients use new families of keys. This keeps the history of a
	// family short, so that it can be checked fast even if many outcomes are unknown.
	familyLife = 150
	// families is the number of families in use at a time.
	families = 2
)

// key returns the key with the number k of the family with the number f.
func key(f, k int) string { return fmt.Sprintf("f%d-%d", f, k) }

// familyName returns the name that the family with the number f has in the history.
func familyName(f int) string { return fmt.Sprintf("family %d", f) }

// StrongLoad has clients that make random reads and writes with strong consistency, through all running nodes.
type StrongLoad struct {
	History *history.Keys

	cluster *Cluster
	pad     int
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu   sync.Mutex
	busy map[int]int // by family, clients with an operation in flight; guarded by mu, as is next
	next int         // families below this were taken out of the history
}

// StartStrong starts clients that read and write with strong consistency. Each value ends with pad additional bytes.
// Stop ends the clients.
func StartStrong(c *Cluster, seed uint64, clients, pad int) *StrongLoad {
	ctx, cancel := context.WithCancel(context.Background())
	l := &StrongLoad{History: history.NewKeys(history.WallClock()), cluster: c, pad: pad, stop: cancel,
		busy: map[int]int{}}
	for id := range clients {
		s := &strongClient{load: l, id: id, rnd: rand.New(rand.NewPCG(seed, uint64(id)+100)),
			seen: map[string]Item{}} //nolint:gosec // chance, not a secret
		l.wg.Go(func() { s.run(ctx) })
	}
	return l
}

// enter begins an operation of a client. It returns the number of the family whose keys the operation must use. The
// argument, a random number below the constant families, selects one of the families in use. The client must call leave
// after the operation.
func (l *StrongLoad) enter(random int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.History.Size()/familyLife*families + random
	l.busy[f]++
	return f
}

func (l *StrongLoad) leave(f int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy[f]--; l.busy[f] == 0 {
		delete(l.busy, f)
	}
}

// done returns the families that can be taken out of the history, as the range of their numbers from first to end-1. A
// family is finished when no operation on it is in progress and no new one can begin. The range ends before the first
// unfinished family.
func (l *StrongLoad) done() (first, end int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end = l.History.Size() / familyLife * families
	for f := range l.busy {
		end = min(end, f)
	}
	return l.next, max(l.next, end)
}

// take removes the families with the numbers from first to end-1 from the history, and returns them.
func (l *StrongLoad) take(first, end int) *history.Keys {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = end
	var names []string
	for f := first; f < end; f++ {
		names = append(names, familyName(f))
	}
	return l.History.Take(names...)
}

// Stop stops the clients. Then it reads the keys of all families that Verify has not returned, through all running
// nodes in turn, so that the history of each family ends with a read.
func (l *StrongLoad) Stop(ctx context.Context) error {
	l.stop()
	l.wg.Wait()
	first, _ := l.done()
	return l.last(ctx, first, (l.History.Size()/familyLife+1)*families)
}

// Verify reads the keys of all finished families once more, and moves these families to a new history. The caller can
// check the new history while the load continues.
func (l *StrongLoad) Verify(ctx context.Context) (*history.Keys, error) {
	first, end := l.done()
	if err := l.last(ctx, first, end); err != nil {
		return nil, err
	}
	return l.take(first, end), nil
}

// last reads the families with the numbers from first to end-1 once more, through all running nodes in turn.
func (l *StrongLoad) last(ctx context.Context, first, end int) error {
	nodes := l.cluster.Running()
	if len(nodes) == 0 {
		return errors.New("the last reads need a running node")
	}
	reader := &strongClient{load: l, id: -1, seen: map[string]Item{}}
	for f := first; f < end; f++ {
		err := Until(ctx, func() error {
			return reader.read(ctx, nodes[f%len(nodes)], f, []int{0, 1, 2}).Err()
		})
		if err != nil {
			return fmt.Errorf("the last read of family %d: %w", f, err)
		}
	}
	return nil
}

// strongClient makes one operation after another, each at a random node. It does not repeat refused operations. About
// half of the writes have a request id. If the outcome of such a write is unknown, the client repeats it at random
// nodes with the same id.
type strongClient struct {
	load  *StrongLoad
	id, n int
	rnd   *rand.Rand
	seen  map[string]Item // as last read
}

func (s *strongClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.load.cluster.pass(ctx, func() { s.one(ctx) })
	}
}

// one makes one operation.
func (s *strongClient) one(ctx context.Context) {
	f := s.load.enter(s.rnd.IntN(families))
	defer s.load.leave(f)
	nodes := s.load.cluster.Running()
	if len(nodes) == 0 {
		pause(ctx, 10*time.Millisecond)
		return
	}
	node := nodes[s.rnd.IntN(len(nodes))]
	var a Answer
	switch s.rnd.IntN(10) {
	case 0, 1, 2:
		a = s.read(ctx, node, f, []int{s.rnd.IntN(history.FamilySize)})
	case 3:
		a = s.read(ctx, node, f, []int{0, 1, 2})
	case 4, 5:
		keys := s.rnd.Perm(history.FamilySize)[:2]
		a = s.write(ctx, node, f, s.change(f, keys[0]), s.change(f, keys[1]))
	default:
		a = s.write(ctx, node, f, s.change(f, s.rnd.IntN(history.FamilySize)))
	}
	if a.Outcome == Refused || a.Outcome == Unknown {
		pause(ctx, 5*time.Millisecond)
	}
}

func pause(ctx context.Context, t time.Duration) {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// app returns the number of the application whose keys are in the family f. The families are distributed evenly over
// the applications.
func (s *strongClient) app(f int) int { return f % (len(s.load.cluster.options.Apps) + 1) }

// change returns a random change of a key.
func (s *strongClient) change(f, k int) history.Change {
	s.n++
	c := history.Change{Key: k, Value: fmt.Sprintf("c%d-%d", s.id, s.n)}
	if s.load.pad > 0 {
		c.Value += fmt.Sprintf("%0*d", s.load.pad, 0)
	}
	known := s.seen[key(f, k)].Value
	switch s.rnd.IntN(6) {
	case 0:
		c.Value = ""
	case 1:
		c.Absent = true
	case 2, 3:
		c.Expect = known
	case 4:
		if known != "" {
			c.Value, c.Expect = "", known
		}
	}
	return c
}

// read reads keys of a family in one request.
func (s *strongClient) read(ctx context.Context, n *Node, f int, keys []int) Answer {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = key(f, k)
	}
	r := Get(names[0], Strong)
	if len(keys) > 1 {
		r = GetAll(names, Strong)
	}
	r.App = s.app(f)
	call := s.load.History.Now()
	a := n.Do(ctx, r)
	if a.Outcome != Done {
		return a
	}
	in, out := history.KeyCall{Family: familyName(f), Read: keys}, history.KeyAnswer{}
	for i, item := range a.Items {
		out.Values = append(out.Values, item.Value)
		s.seen[names[i]] = item
		s.load.History.ETag(familyName(f), keys[i], item.ETag, item.Value)
	}
	s.load.History.Add(s.id, call, in, out)
	return a
}

// write makes changes of a family atomically.
func (s *strongClient) write(ctx context.Context, n *Node, f int, changes ...history.Change) Answer {
	writes := make([]Write, len(changes))
	for i, c := range changes {
		writes[i] = Write{Key: key(f, c.Key), Value: c.Value, Condition: Condition{Absent: c.Absent}}
		if c.Expect != "" {
			writes[i].ETag = s.seen[writes[i].Key].ETag
		}
	}
	r := Transact(writes...)
	if len(writes) == 1 {
		r = One(writes[0], Strong)
	}
	repeats := s.rnd.IntN(2) * 4
	if repeats > 0 {
		r = r.With("Quorate-Request-Id", fmt.Sprintf("c%d-%d", s.id, s.n))
	}
	r.App = s.app(f)
	call := s.load.History.Now()
	a := s.attempts(ctx, n, r, repeats)
	if a.Outcome == Refused {
		return a // it must not have been applied
	}
	in := history.KeyCall{Family: familyName(f), Write: changes}
	out := history.KeyAnswer{Conflict: a.Outcome == Conflict, Unknown: a.Outcome == Unknown}
	s.load.History.Add(s.id, call, in, out)
	if repeats > 0 && a.Outcome != Unknown && s.rnd.IntN(4) == 0 {
		s.again(ctx, n, r, a)
	}
	for i, c := range changes {
		delete(s.seen, writes[i].Key)
		if a.Outcome == Done && c.Value != "" && a.ETag != "" {
			s.seen[writes[i].Key] = Item{Value: c.Value, ETag: a.ETag}
			s.load.History.ETag(familyName(f), c.Key, a.ETag, c.Value)
		}
	}
	return a
}

// again repeats a request that the node has answered, like a client that has lost the response. It records a violation
// if the new response differs from the first one. The check of the history detects whether the store has applied the
// request twice.
func (s *strongClient) again(ctx context.Context, n *Node, r Request, first Answer) {
	a := s.attempts(ctx, n, r, 0)
	if a.Outcome == Refused || a.Outcome == Unknown {
		return
	}
	if a.Outcome != first.Outcome || a.ETag != first.ETag {
		s.load.History.Fault("%s %s with the id %s was answered with %d and ETag %q, and its repetition with %d "+
			"and ETag %q",
			r.Method, r.Path, r.Header["Quorate-Request-Id"], first.Status, first.ETag, a.Status, a.ETag)
	}
}

// attempts sends a request. While the outcome is unknown, it repeats the request at random nodes, up to the given
// number of times. The outcome is Refused only if no attempt can have been applied.
func (s *strongClient) attempts(ctx context.Context, n *Node, r Request, repeats int) Answer {
	refused := true
	for i := 0; ; i++ {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		a := n.Do(attempt, r)
		cancel()
		switch {
		case a.Outcome == Unknown:
			refused = false
		case a.Outcome == Refused && !refused:
			a.Outcome = Unknown // this attempt was not applied, an earlier one may have been
		}
		nodes := s.load.cluster.Running()
		if a.Outcome != Unknown || i >= repeats || ctx.Err() != nil || len(nodes) == 0 {
			return a
		}
		n = nodes[s.rnd.IntN(len(nodes))]
	}
}
