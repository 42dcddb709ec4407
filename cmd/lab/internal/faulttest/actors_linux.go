package faulttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/history"
)

const (
	counters = 6 // that clients increment
	// actorPace is how long a client waits after each call of a counter, in addition to Options.Pace of the cluster.
	actorPace = 30 * time.Millisecond
	// fireTime is how long a client waits for the first tick of a reminder or job. After that, the client continues
	// without it.
	fireTime = 3 * time.Second
)

// ActorLoad is a workload of actors, reminders and jobs. Some of its clients increment counters through random nodes.
// Each counter is an actor, and every node hosts some counters. The other clients store reminders and jobs, wait until
// they fire, and delete them. See history.Actors.Check and history.Due.Check for the checks.
//
// The applications of all nodes run in this process. An application continues while its node is paused or dead, and all
// recorded times come from one clock.
type ActorLoad struct {
	History *history.Actors
	Due     *history.Due

	seed    uint64
	slow    atomic.Int64 // see Slow
	cluster *Cluster
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// NewActors returns a load without clients.
func NewActors(seed uint64) *ActorLoad {
	return &ActorLoad{History: history.NewActors(), Due: history.NewDue(), seed: seed}
}

// Application returns the application that hosts the counters at a node. It can be used as Options.Application of a
// cluster.
func (l *ActorLoad) Application(n *Node) http.Handler {
	one := &counterApp{load: l, node: n, memory: map[string]uint64{},
		rnd: rand.New(rand.NewPCG(l.seed, uint64(n.Addr.As4()[3])))} //nolint:gosec // chance, not a secret
	return one.routes()
}

// Start starts the given number of clients that call counters, and as many clients that use reminders and jobs. The
// cluster's Options.Application must return the result of l.Application, or a handler that forwards to it.
func (l *ActorLoad) Start(c *Cluster, clients int) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cluster, l.stop = c, cancel
	for id := range clients {
		add := &actorClient{l, id, 0, rand.New(rand.NewPCG(l.seed, uint64(id)+7000))}   //nolint:gosec // chance
		await := &actorClient{l, id, 0, rand.New(rand.NewPCG(l.seed, uint64(id)+8000))} //nolint:gosec // chance
		l.wg.Go(func() { add.run(ctx, add.increment) })
		l.wg.Go(func() { await.run(ctx, await.await) })
	}
}

// Slow makes every increment of a counter take at least d, so that a fault interrupts many increments.
func (l *ActorLoad) Slow(d time.Duration) { l.slow.Store(int64(d)) }

// actorClient calls one method after the other, each at a random node.
type actorClient struct {
	load  *ActorLoad
	id, n int
	rnd   *rand.Rand
}

func (c *actorClient) run(ctx context.Context, one func(context.Context)) {
	for ctx.Err() == nil {
		c.n++
		c.load.cluster.pass(ctx, func() { one(ctx) })
		pause(ctx, actorPace)
	}
}

// node returns a random running node, or nil if no node is running. If the chosen node is paused, the result is usually
// nil, because a paused node does not respond.
func (c *actorClient) node() *Node {
	nodes := c.load.cluster.Running()
	if len(nodes) == 0 {
		return nil
	}
	n := nodes[c.rnd.IntN(len(nodes))]
	if !n.active() && c.rnd.IntN(8) > 0 {
		return nil
	}
	return n
}

func counterName(i int) string { return fmt.Sprint("counter-", i) }

// methodPath returns the path of a method of an actor.
func methodPath(actor, method string) string {
	return "/v1.0/actors/" + actorType + "/" + actor + "/method/" + method
}

// increment increments a random counter once and records the call. It never repeats a call.
func (c *actorClient) increment(ctx context.Context) {
	n := c.node()
	if n == nil {
		pause(ctx, 10*time.Millisecond)
		return
	}
	h := c.load.History
	call := history.ActorCall{ID: fmt.Sprintf("c%d-%d", c.id, c.n), Actor: counterName(c.rnd.IntN(counters)),
		Node: n.Name, Begin: h.Now()}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	reply, err := n.raw(limit, "POST", methodPath(call.Actor, "add"), call.ID)
	cancel()
	call.End = h.Now()
	switch {
	case err != nil:
	case reply.status == 200:
		call.Answered, _ = strconv.ParseUint(string(reply.body), 10, 64) // 0 would be found as a wrong answer
	default:
		call.Refused = undelivered(reply.body)
	}
	h.AddCall(&call)
	if err != nil || reply.status != 200 {
		pause(ctx, 10*time.Millisecond)
	}
}

// undelivered returns the reason code in the body of an error response, such as "no_host", if the code proves that the
// application did not receive the call. Otherwise it returns "".
func undelivered(body []byte) string {
	var e struct {
		Message string
		Details []struct{ Reason string }
	}
	if err := json.Unmarshal(body, &e); err != nil || len(e.Details) == 0 ||
		strings.Contains(e.Message, "error from actor service") {
		return ""
	}
	switch reason := e.Details[0].Reason; reason {
	case "no_host", "unavailable", "overloaded":
		return reason
	}
	return ""
}

// await stores a reminder or a job under a new name. It chooses one of three cases at random:
//
//   - The reminder or job fires once, and await waits for that.
//   - It fires repeatedly, and await deletes it after the first tick.
//   - await deletes it before the first tick.
func (c *actorClient) await(ctx context.Context) {
	kind := c.rnd.IntN(3)
	due := time.Duration(c.rnd.IntN(800)) * time.Millisecond
	once, early := kind == 0, kind == 1
	if early {
		due = 3 * time.Second
	}
	job := c.rnd.IntN(2) == 0
	name := fmt.Sprintf("due-%d-%d", c.id, c.n)
	path := "/v1.0/actors/" + actorType + "/" + counterName(c.rnd.IntN(counters)) + "/reminders/" + name
	body := map[string]any{"dueTime": due.String(), "overwrite": true}
	switch {
	case job:
		path = "/v1.0/jobs/" + name
		if !once {
			body["schedule"], body["repeats"] = "@every 200ms", 10
		}
	case !once:
		body["period"] = "R10/PT0.2S"
	}
	h := c.load.Due
	h.Change(name, func(w *history.Work) {
		w.Reminder, w.Due, w.Sent = !job, due, h.Now()
		if once {
			w.Ticks = 1
		}
	})
	stored := c.insist(ctx, "POST", path, text(body), func() {
		h.Change(name, func(w *history.Work) { w.Attempts++ })
	})
	if !stored {
		return
	}
	h.Change(name, func(w *history.Work) { w.Stored, w.Kept = h.Now(), !early })
	if !early {
		limit, cancel := context.WithTimeout(ctx, fireTime)
		_ = Until(limit, func() error { // Stop waits for those that have not fired
			if h.Fired(name) == 0 {
				return errors.New("it has not fired")
			}
			return nil
		})
		cancel()
	}
	if !once && (early || h.Fired(name) > 0) && c.insist(ctx, "DELETE", path, "", func() {}) {
		h.Change(name, func(w *history.Work) { w.Removed = h.Now() })
	}
}

// insist sends a request to one random node after another until a node responds with status 204. It calls attempt
// before each request. It returns false if ctx ends first.
func (c *actorClient) insist(ctx context.Context, method, path, body string, attempt func()) bool {
	for ctx.Err() == nil {
		if n := c.node(); n != nil {
			attempt()
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
			reply, err := n.raw(limit, method, path, body)
			cancel()
			if err == nil && reply.status == 204 {
				return true
			}
		}
		pause(ctx, 50*time.Millisecond)
	}
	return false
}

// Stop stops the clients and returns the violations: those of actors, and those of reminders and jobs. If whole is
// true, it first waits until every reminder and job that was stored and not deleted has fired, and reads all counters.
// If the cluster does not serve requests, whole must be false; Stop then checks only what is already recorded.
func (l *ActorLoad) Stop(ctx context.Context, whole bool) (actors, due []string) {
	l.stop()
	l.wg.Wait()
	if whole {
		err := Until(ctx, func() error {
			if names := l.Due.Missing(); len(names) > 0 {
				return fmt.Errorf("%d reminders and jobs were stored, not deleted, and have not fired: %v", len(names),
					names)
			}
			return nil
		})
		if err != nil {
			due = append(due, err.Error())
		}
		for i := range counters {
			if err := l.final(ctx, counterName(i)); err != nil {
				actors = append(actors, err.Error())
			}
		}
		if l.History.Acknowledged() == 0 || l.Due.Size() == 0 {
			actors = append(actors, "no increment was acknowledged, or nothing has fired")
		}
	}
	return append(actors, l.History.Check()...), append(due, l.Due.Check()...)
}

// final reads a counter after the clients have stopped, and records its value in the history.
func (l *ActorLoad) final(ctx context.Context, actor string) error {
	return Until(ctx, func() error {
		nodes := l.cluster.Running()
		if len(nodes) == 0 {
			return errors.New("no node runs")
		}
		limit, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		reply, err := nodes[0].raw(limit, "POST", methodPath(actor, "get"), "")
		if err != nil || reply.status != 200 {
			return fmt.Errorf("actor %s does not answer: %d %s, %w", actor, reply.status, reply.body, err)
		}
		value, err := strconv.ParseUint(string(reply.body), 10, 64)
		if err == nil {
			l.History.Ended(actor, value)
		}
		return err
	})
}
