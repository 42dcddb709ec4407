package faulttest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// actorType is the type of the counters.
	actorType = "Counter"
	// actorConfig is the answer to GET /dapr/config. The idle timeout is short, so that actors move often.
	actorConfig = `{"entities":["` + actorType + `"],"actorIdleTimeout":"2s","drainOngoingCallTimeout":"5s"}`
)

// counterApp is the application at one node. It hosts counters, which are actors. It also receives their reminders,
// and the jobs of the application. Half of the counters keep their number in memory between turns, until the node
// deactivates the actor or its process ends.
type counterApp struct {
	load *ActorLoad
	node *Node

	mu     sync.Mutex
	rnd    *rand.Rand        // guarded by mu, as are the fields below
	memory map[string]uint64 // counters of the process life
	life   int
}

// routes returns the endpoints of the application.
func (a *counterApp) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /dapr/config", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, actorConfig)
	})
	m.HandleFunc("PUT /actors/"+actorType+"/{id}/method/add", a.add)
	m.HandleFunc("PUT /actors/"+actorType+"/{id}/method/get", a.get)
	m.HandleFunc("PUT /actors/"+actorType+"/{id}/method/remind/{name}", a.remind)
	m.HandleFunc("DELETE /actors/"+actorType+"/{id}", a.deactivate)
	m.HandleFunc("POST /job/{name}", a.job)
	return m
}

// begin begins a turn.
func (a *counterApp) begin(r *http.Request, what string) *actorTurn {
	t := &actorTurn{actor: r.PathValue("id"), node: a.node.Name, life: a.node.Pid(), what: what,
		begin: a.load.History.now(), paused: a.node.pausedWithin(time.Second)}
	t.epoch, _ = strconv.ParseUint(r.Header.Get("Quorate-Actor-Epoch"), 10, 64) // always a number
	return t
}

func (a *counterApp) end(t *actorTurn) {
	t.end = a.load.History.now()
	a.load.History.addTurn(t)
}

// chance reports true once in n times.
func (a *counterApp) chance(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rnd.IntN(n) == 0
}

// add increments a counter. The body is the id of the call, and the answer is the new number.
func (a *counterApp) add(w http.ResponseWriter, r *http.Request) {
	id, err := io.ReadAll(r.Body)
	t := a.begin(r, string(id))
	if err == nil {
		err = a.increment(r.Context(), t)
	}
	a.end(t)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(w, t.read+1)
}

func (a *counterApp) increment(ctx context.Context, t *actorTurn) (err error) {
	var kept bool
	if t.read, kept = a.remembered(t); !kept {
		if t.read, err = a.read(ctx, t.actor); err != nil {
			return err
		}
	}
	if long := time.Duration(a.load.slow.Load()); long > 0 {
		pause(ctx, long)
	} else if a.chance(20) {
		pause(ctx, 150*time.Millisecond)
	}
	body := text([]any{map[string]any{"operation": "upsert",
		"request": map[string]any{"key": "n", "value": t.read + 1}}})
	t.sent = a.load.History.now()
	reply, err := a.node.raw(ctx, "PUT", a.path(t.actor), body)
	switch {
	case err != nil:
		t.result = lost(Request{}, err).Outcome
	case reply.status == 204:
		t.result = Done
	case reply.status == 400: // the actor is not active
		t.result = Refused
	default:
		t.result = failure(Request{}, reply.status, reply.body).Outcome
	}
	a.remember(t)
	if t.result != Done {
		return fmt.Errorf("the write is answered with %d %s %w", reply.status, reply.body, err)
	}
	return nil
}

// path returns the path of the state of an actor.
func (a *counterApp) path(actor string) string {
	return "/v1.0/actors/" + actorType + "/" + actor + "/state"
}

// read reads a counter; 0 = there is none.
func (a *counterApp) read(ctx context.Context, actor string) (n uint64, err error) {
	reply, err := a.node.raw(ctx, "GET", a.path(actor)+"/n", "")
	switch {
	case err != nil:
		return 0, err
	case reply.status == 204:
		return 0, nil
	case reply.status != 200:
		return 0, fmt.Errorf("the read is answered with %d %s", reply.status, reply.body)
	}
	err = json.Unmarshal(reply.body, &n)
	return n, err
}

// remembered returns the counter that is in memory.
func (a *counterApp) remembered(t *actorTurn) (n uint64, kept bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.life != t.life {
		a.life = t.life
		clear(a.memory)
	}
	n, kept = a.memory[t.actor]
	return n, kept
}

// remember keeps the counter in memory, or forgets it if it is not known.
func (a *counterApp) remember(t *actorTurn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := t.actor[len(t.actor)-1]; t.result == Done && a.life == t.life && last%2 == 0 {
		a.memory[t.actor] = t.read + 1
	} else {
		delete(a.memory, t.actor)
	}
}

func (a *counterApp) deactivate(_ http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.memory, r.PathValue("id"))
}

// get answers a counter. It is a turn that writes nothing.
func (a *counterApp) get(w http.ResponseWriter, r *http.Request) {
	t := a.begin(r, "get")
	n, err := a.read(r.Context(), t.actor)
	a.end(t)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(w, n)
}

// remind takes a tick of a reminder.
func (a *counterApp) remind(_ http.ResponseWriter, r *http.Request) {
	t := a.begin(r, r.PathValue("name"))
	defer a.end(t)
	a.tick(r, "Quorate-Reminder-Tick")
	if a.chance(10) {
		pause(r.Context(), 50*time.Millisecond)
	}
}

// job takes a tick of a job.
func (a *counterApp) job(_ http.ResponseWriter, r *http.Request) { a.tick(r, "Quorate-Job-Tick") }

// tick records the begin of a tick.
func (a *counterApp) tick(r *http.Request, header string) {
	a.load.Due.addTick(dueTick{name: r.PathValue("name"), id: r.Header.Get(header), node: a.node.Name,
		begin: a.load.Due.now()})
}
