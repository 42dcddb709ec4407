package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// The model of one key. Every written value is unique, so a condition on the revision of a value is a condition
// on the value.
type opKind uint8

const (
	opGet opKind = iota
	opSet
	opCAS // sets the value if it equals expect; an empty expect means absent
	opDelete
)

type opInput struct {
	kind   opKind
	key    string
	value  string
	expect string
}

type opOutput struct {
	value    string // opGet
	conflict bool
	unknown  bool // may have happened at any time after the operation began
}

func registerModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[string][]porcupine.Operation{}
			for _, op := range history {
				k := op.Input.(opInput).key
				byKey[k] = append(byKey[k], op)
			}
			var out [][]porcupine.Operation
			for _, ops := range byKey {
				out = append(out, ops)
			}
			return out
		},
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			have, in, out := state.(string), input.(opInput), output.(opOutput)
			switch in.kind {
			case opGet:
				return out.value == have, have
			case opSet:
				return true, in.value
			case opDelete:
				return true, ""
			default: // opCAS
				holds := have == in.expect
				if out.unknown {
					if holds {
						return true, in.value
					}
					return true, have
				}
				if holds {
					return !out.conflict, in.value
				}
				return out.conflict, have
			}
		},
		DescribeOperation: func(input, output any) string {
			in, out := input.(opInput), output.(opOutput)
			name := [...]string{"get", "set", "cas", "delete"}[in.kind]
			return fmt.Sprintf("%s(%s expect %q value %q) -> %+v", name, in.key, in.expect, in.value, out)
		},
	}
}

// history collects operations of many clients.
type history struct {
	start time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

const forever = int64(1) << 62

// add records an operation; begin comes from now().
func (h *history) add(client int, begin int64, in opInput, out opOutput) {
	end := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.unknown {
		if in.kind == opGet {
			return // the result reached no client
		}
		end = forever
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: begin, Output: out, Return: end})
}

func (h *history) now() int64 { return int64(time.Since(h.start)) }

// check fails the test if the operations are not linearizable.
func (h *history) check(t *testing.T, seed uint64) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	unknown := 0
	for i := range h.ops {
		if h.ops[i].Output.(opOutput).unknown {
			h.ops[i].ClientId = 1000 + i // the client continued as a new one
			unknown++
		}
	}
	t.Logf("seed %d: %d operations, %d of unknown outcome", seed, len(h.ops), unknown)
	result, info := porcupine.CheckOperationsVerbose(registerModel(), h.ops, 5*time.Minute)
	if result == porcupine.Ok {
		return
	}
	path := fmt.Sprintf("%s/history-%d.html", os.TempDir(), seed)
	if f, err := os.Create(path); err == nil {
		_ = porcupine.Visualize(registerModel(), info, f)
		_ = f.Close()
	}
	t.Fatalf("seed %d: the history is not linearizable (%s); see %s", seed, result, path)
}

// client performs random operations with retries, each at most once.
type client struct {
	c      *cluster
	id     int
	origin uint64
	seq    uint64
	done   uint64
	rnd    *rand.Rand
	seen   map[string]seenValue // newest value read, by key
	h      *history
}

type seenValue struct {
	value    string
	revision uint64
}

// one performs one operation.
func (c *client) one(keys int) {
	in := opInput{key: "k" + strconv.Itoa(c.rnd.IntN(keys)), value: fmt.Sprintf("c%d-%d", c.id, c.seq+1)}
	switch c.rnd.IntN(10) {
	case 0, 1, 2, 3:
		c.get(in.key)
		return
	case 4, 5:
		in.kind = opSet
	case 6:
		in.kind, in.value = opDelete, ""
	default:
		in.kind, in.expect = opCAS, c.seen[in.key].value
	}
	c.write(in)
}

func (c *client) get(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	begin := c.h.now()
	for ctx.Err() == nil {
		v, err := c.tryGet(ctx, key)
		if err == nil {
			c.seen[key] = seenValue{string(v.Value), v.Revision}
			c.h.add(c.id, begin, opInput{kind: opGet, key: key}, opOutput{value: string(v.Value)})
			return
		}
		c.c.pause(ctx)
	}
}

// tryGet requests a read index from a random server that claims to lead. It reads there, or at another server
// that has applied the index.
func (c *client) tryGet(ctx context.Context, key string) (kv.Value, error) {
	asked := c.c.group(testIDs[c.rnd.IntN(3)])
	reader := c.c.group(testIDs[c.rnd.IntN(3)])
	if asked == nil || reader == nil {
		return kv.Value{}, errCut
	}
	ri, err := asked.ReadIndex(ctx)
	if err != nil {
		return kv.Value{}, err
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := reader.WaitApplied(short, ri.Index); err != nil {
		return kv.Value{}, err
	}
	return reader.Machine().Get(store, key, ri.Now)
}

func (c *client) write(in opInput) {
	c.seq++
	op := command.Op{Kind: command.OpSet, Store: store, Key: in.key, Value: []byte(in.value)}
	switch {
	case in.kind == opDelete:
		op.Kind, op.Value = command.OpDelete, nil
	case in.kind == opCAS && in.expect == "":
		op.Cond = command.CondAbsent
	case in.kind == opCAS:
		op.Cond, op.Revision = command.CondRevision, c.seen[in.key].revision
	}
	r := &command.Request{Kind: command.KindWrite, ID: command.RequestID{Origin: c.origin, Seq: c.seq, Done: c.done},
		Ops: []command.Op{op}}
	begin := c.h.now()
	res, known := c.send(r)
	c.done = c.seq // the request is not sent again
	out := opOutput{unknown: !known, conflict: known && res.Outcome == kv.Conflict}
	switch {
	case !known || out.conflict:
		delete(c.seen, in.key)
	case in.kind == opDelete:
		c.seen[in.key] = seenValue{}
	default:
		c.seen[in.key] = seenValue{in.value, res.Revisions[0]}
	}
	if in.kind == opCAS && !known {
		delete(c.seen, in.key)
	}
	c.h.add(c.id, begin, in, out)
}

// send tries a request at all servers until its outcome is known or the time is up.
func (c *client) send(r *command.Request) (kv.Result, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	for ctx.Err() == nil {
		g := c.c.group(testIDs[c.rnd.IntN(3)])
		if g == nil {
			c.c.pause(ctx)
			continue
		}
		try, stop := context.WithTimeout(ctx, 400*time.Millisecond)
		a, err := g.ProposeRequest(try, r, Committed)
		stop()
		switch {
		case err == nil && (a.Result.Outcome == kv.Applied || a.Result.Outcome == kv.Conflict):
			return a.Result, true
		case err == nil:
			c.c.t.Errorf("client %d: request %+v was decided as %s", c.id, r.ID, a.Result.Outcome)
			return a.Result, false
		case fault.Is(err, fault.NotLeader):
			c.c.pause(ctx)
		}
	}
	return kv.Result{}, false
}

// pause waits a moment before the next server is tried.
func (c *cluster) pause(ctx context.Context) {
	t := time.NewTimer(5 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// troubles injects faults until stop is closed, and then restores the cluster.
func (c *cluster) troubles(rnd *rand.Rand, stop <-chan struct{}) {
	rest := func(d time.Duration) bool {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-stop:
			return false
		}
	}
	for rest(time.Duration(100+rnd.IntN(200)) * time.Millisecond) {
		victim := testIDs[rnd.IntN(3)]
		for _, id := range testIDs { // mostly the leader
			if g := c.group(id); g.Leading() && rnd.IntN(3) > 0 {
				victim = id
			}
		}
		switch rnd.IntN(5) {
		case 0:
			c.stop(victim)
			rest(time.Duration(rnd.IntN(300)) * time.Millisecond)
			c.start(victim)
		case 1: // one way only
			c.set(link{victim, others(victim)[0]}, true)
			c.set(link{victim, others(victim)[1]}, true)
		case 2:
			_ = c.group(victim).raft.LeadershipTransfer().Error()
		case 3: // a bridge: two servers cannot reach each other, and the third reaches both
			c.set(link{victim, others(victim)[0]}, true)
			c.set(link{others(victim)[0], victim}, true)
		default:
			c.isolate(victim)
		}
		rest(time.Duration(200+rnd.IntN(700)) * time.Millisecond)
		c.heal()
	}
	c.heal()
}

func TestHistory_LinearizableUnderFailovers(t *testing.T) {
	if testing.Short() {
		t.Skip("runs many schedules")
	}
	rounds := map[raftlog.Engine]time.Duration{raftlog.BoltDB: 4 * time.Second, raftlog.WAL: 4 * time.Second}
	if s := os.Getenv("QUORATE_HISTORY_SECONDS"); s != "" {
		n, err := strconv.Atoi(s)
		must(t, err)
		for e := range rounds {
			rounds[e] = time.Duration(n) * time.Second
		}
	}
	engines(t, func(t *testing.T, e raftlog.Engine) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		c := newCluster(t, func(_ raft.ServerID, o *Options) {
			o.Engine = e
			// includes snapshot installs and restarts from snapshots
			o.Bounds.SnapshotEntries, o.Bounds.TrailingEntries = 60, 20
			// causes many elections
			o.Timing.Heartbeat, o.Timing.Election, o.Timing.Lease = 250*time.Millisecond, 250*time.Millisecond,
				200*time.Millisecond
		})
		h := &history{start: time.Now()}
		rnd := rand.New(rand.NewPCG(seed, 0))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 6 {
			cl := &client{c: c, id: i, origin: c.register(fmt.Sprint("client ", i)),
				rnd: rand.New(rand.NewPCG(seed, uint64(i+1))), seen: map[string]seenValue{}, h: h}
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						cl.one(3)
					}
				}
			})
		}
		done := make(chan struct{})
		wg.Go(func() { c.troubles(rnd, done) })
		timer := time.NewTimer(rounds[e])
		<-timer.C
		close(done)
		close(stop)
		wg.Wait()
		for i := range 3 { // the final value of each key was written by a client
			cl := &client{c: c, id: 100 + i, rnd: rnd, seen: map[string]seenValue{}, h: h}
			cl.get("k" + strconv.Itoa(i))
		}
		h.check(t, seed)
		c.put("last", "v")
		c.converge()
		for id, g := range c.running() {
			t.Logf("%s: term %d, applied %d, snapshot at %d", id, g.Term(), g.Machine().Applied(), g.disk.snaps.Index())
		}
	})
}

func TestHistoryChecker_RefusesStaleRead(t *testing.T) {
	op := func(client int, call, ret int64, in opInput, out opOutput) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret}
	}
	write := func(v string) opInput { return opInput{kind: opSet, key: "k", value: v} }
	get := opInput{kind: opGet, key: "k"}
	for name, c := range map[string]struct {
		ok  bool
		ops []porcupine.Operation
	}{
		"stale": {false, []porcupine.Operation{op(0, 0, 1, write("a"), opOutput{}), op(0, 2, 3, write("b"), opOutput{}),
			op(1, 4, 5, get, opOutput{value: "a"})}},
		"late effect of an unknown write": {true, []porcupine.Operation{
			op(0, 0, forever, write("a"), opOutput{unknown: true}), op(1, 2, 3, get, opOutput{}),
			op(1, 4, 5, get, opOutput{value: "a"})}},
		"an effect undone": {false, []porcupine.Operation{
			op(0, 0, forever, write("a"), opOutput{unknown: true}), op(1, 2, 3, get, opOutput{value: "a"}),
			op(1, 4, 5, get, opOutput{})}},
		"conflict that was none": {false, []porcupine.Operation{
			op(0, 0, 1, write("a"), opOutput{}), op(1, 2, 3, opInput{kind: opCAS, key: "k", expect: "a", value: "b"},
				opOutput{conflict: true})}},
	} {
		if got := porcupine.CheckOperations(registerModel(), c.ops); got != c.ok {
			t.Errorf("%s: %v", name, got)
		}
	}
}
