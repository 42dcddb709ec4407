package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/history"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// simHistory is the history of all clients. ledger has the values of the keys that were written once, if the write was
// acknowledged.
type simHistory struct {
	*history.Keys

	mu     sync.Mutex
	ledger map[string]string // guarded by mu
}

func newSimHistory() *simHistory {
	return &simHistory{Keys: history.NewKeys(history.CallClock()), ledger: map[string]string{}}
}

// seenValue is a value as a client has read or written it.
type seenValue struct {
	value    string
	revision uint64
}

// simClient is a client that performs one operation after the other.
type simClient struct {
	s         *sim
	id        int
	origin    uint64
	seq, done uint64
	rnd       *rand.Rand
	seen      map[string]seenValue
	h         *simHistory
}

// live performs operations until stop is closed.
func (c *simClient) live(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(c.rnd.IntN(c.pause())) * time.Millisecond):
			c.one()
		}
	}
}

// pause returns the limit of the time between two operations, in milliseconds.
func (c *simClient) pause() int {
	if c.s.broke.harsh {
		return 20
	}
	return 120
}

func (c *simClient) one() {
	key, change := "k"+strconv.Itoa(c.rnd.IntN(2)), history.Change{Value: fmt.Sprintf("c%d-%d", c.id, c.seq+1)}
	switch c.rnd.IntN(12) {
	case 0, 1, 2, 3:
		c.get(key, 3*time.Second)
		return
	case 4, 5:
	case 6:
		change.Value = ""
	case 7, 8: // a key that only this client writes, once, and that must exist at the end
		key = "once-" + change.Value
	case 9:
		c.eventual()
		return
	default:
		change.Expect = c.seen[key].value
		change.Absent = change.Expect == ""
	}
	c.write(key, change)
}

// pick chooses a server. If leading is true, it mostly chooses one that considers itself the leader. It returns false
// if the chosen server is down.
func (c *simClient) pick(leading bool) (life, bool) {
	if leading && c.rnd.IntN(5) > 0 {
		if id, _ := c.s.leader(); id != "" {
			return c.s.life(id)
		}
	}
	ids := c.s.ids()
	return c.s.life(ids[c.rnd.IntN(len(ids))])
}

func (c *simClient) rest() { after(time.Duration(5+c.rnd.IntN(40)) * time.Millisecond) }

// get reads strongly. It reports whether the read succeeded.
func (c *simClient) get(key string, limit time.Duration) (string, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	begin := c.h.Now()
	for ctx.Err() == nil {
		v, err := c.tryGet(ctx, key)
		if err == nil {
			c.seen[key] = seenValue{string(v.Value), v.Revision}
			c.h.ETag(key, 0, strconv.FormatUint(v.Revision, 10), string(v.Value))
			c.h.Add(c.id, begin, history.KeyCall{Family: key, Read: []int{0}},
				history.KeyAnswer{Values: []string{string(v.Value)}})
			return string(v.Value), true
		}
		c.rest()
	}
	return "", false
}

// tryGet requests a read index from a leader. It reads there, or at another server that has applied the index.
func (c *simClient) tryGet(ctx context.Context, key string) (kv.Value, error) {
	leader, ok := c.pick(true)
	reader := leader
	if c.rnd.IntN(3) == 0 {
		reader, ok = c.pick(false)
	}
	if !ok || leader.group == nil {
		return kv.Value{}, errRefused
	}
	ri, err := leader.group.ReadIndex(ctx)
	if err != nil {
		return kv.Value{}, err
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := reader.group.WaitApplied(short, ri.Index); err != nil {
		return kv.Value{}, err
	}
	if err := reader.group.Trusted(); err != nil {
		return kv.Value{}, err
	}
	v, err := reader.group.Machine().Get(store, key, ri.Now)
	if leader.wire.dead() || reader.wire.dead() {
		return kv.Value{}, errRefused // the answer of a crashed process
	}
	return v, err
}

func (c *simClient) write(key string, change history.Change) bool {
	c.seq++
	op := command.Op{Kind: command.OpSet, Store: store, Key: key, Value: []byte(change.Value)}
	switch {
	case change.Value == "":
		op.Kind, op.Value = command.OpDelete, nil
	case change.Absent:
		op.Cond = command.CondAbsent
	case change.Expect != "":
		op.Cond, op.Revision = command.CondRevision, c.seen[key].revision
	}
	r := &command.Request{Kind: command.KindWrite, ID: command.RequestID{Origin: c.origin, Seq: c.seq, Done: c.done},
		Ops: []command.Op{op}}
	begin := c.h.Now()
	res, known := c.send(r, 1500*time.Millisecond)
	c.done = c.seq // the request is not sent again
	out := history.KeyAnswer{Unknown: !known, Conflict: known && res.Outcome == kv.Conflict}
	switch {
	case !known || out.Conflict:
		delete(c.seen, key)
	case change.Value == "":
		c.seen[key] = seenValue{}
	default:
		c.seen[key] = seenValue{change.Value, res.Revisions[0]}
		c.h.ETag(key, 0, strconv.FormatUint(res.Revisions[0], 10), change.Value)
	}
	c.h.Add(c.id, begin, history.KeyCall{Family: key, Write: []history.Change{change}}, out)
	if known && strings.HasPrefix(key, "once-") {
		c.h.mu.Lock()
		c.h.ledger[key] = change.Value
		c.h.mu.Unlock()
	}
	return known
}

// send repeats a request until its outcome is known, at most for limit.
func (c *simClient) send(r *command.Request, limit time.Duration) (kv.Result, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for ctx.Err() == nil {
		l, ok := c.pick(true)
		if !ok {
			c.rest()
			continue
		}
		try, stop := context.WithTimeout(ctx, 400*time.Millisecond)
		a, err := l.group.ProposeRequest(try, r, Committed)
		stop()
		switch {
		case l.wire.dead(): // the answer of a crashed process reaches no client
			c.rest()
		case err == nil && (a.Result.Outcome == kv.Applied || a.Result.Outcome == kv.Conflict):
			return a.Result, true
		case err == nil:
			c.s.fail("client %d: request %+v was decided as %s", c.id, r.ID, a.Result.Outcome)
			return a.Result, false
		case !fault.Is(err, fault.Indeterminate):
			c.rest()
		}
	}
	return kv.Result{}, false
}

// eventual writes values that may be lost with their leader, so that logs diverge.
func (c *simClient) eventual() {
	l, ok := c.pick(true)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for i := range 1 + c.rnd.IntN(6) {
		if _, err := l.group.ProposeRequest(ctx, setRequest("eventual"+strconv.Itoa(i), "v"), Durable); err != nil {
			return
		}
	}
}

// enrol registers an origin for a client, so that its retries are applied once.
func (s *sim) enrol(name string) (number uint64) {
	s.within(simBound, "registering a client", func() error {
		_, g := s.leader()
		if g == nil {
			return raft.ErrNotLeader
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		a, err := g.ProposeRequest(ctx, &command.Request{Kind: command.KindRegister, Name: name}, Committed)
		if err == nil {
			number = a.Result.Revisions[0]
		}
		return err
	})
	return number
}
