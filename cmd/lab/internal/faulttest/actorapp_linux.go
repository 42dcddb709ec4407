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

	"github.com/quorate/quorate/internal/history"
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
	memory map[string]uint64 // counters that the current process of the node has written
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

// begin returns the record of a turn that begins now. what says what the turn does.
func (a *counterApp) begin(r *http.Request, what string) *history.Turn {
	t := &history.Turn{Actor: r.PathValue("id"), Node: a.node.Name, Life: a.node.Pid(), What: what,
		Begin: a.load.History.Now(), Paused: a.node.pausedWithin(time.Second)}
	t.Epoch, _ = strconv.ParseUint(r.Header.Get("Quorate-Actor-Epoch"), 10, 64) // always a number
	return t
}

func (a *counterApp) end(t *history.Turn) {
	t.End = a.load.History.Now()
	a.load.History.AddTurn(t)
}

// chance returns true at random, on average once in n calls.
func (a *counterApp) chance(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rnd.IntN(n) == 0
}

// add handles a call that increments a counter. The request body is the id of the call. The response body is the new
// value of the counter.
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
	_, _ = fmt.Fprint(w, t.Read+1)
}

func (a *counterApp) increment(ctx context.Context, t *history.Turn) (err error) {
	var kept bool
	if t.Read, kept = a.remembered(t); !kept {
		if t.Read, err = a.read(ctx, t.Actor); err != nil {
			return err
		}
	}
	if long := time.Duration(a.load.slow.Load()); long > 0 {
		pause(ctx, long)
	} else if a.chance(20) {
		pause(ctx, 150*time.Millisecond)
	}
	body := text([]any{map[string]any{"operation": "upsert",
		"request": map[string]any{"key": "n", "value": t.Read + 1}}})
	t.Sent = a.load.History.Now()
	reply, err := a.node.raw(ctx, "PUT", a.path(t.Actor), body)
	switch {
	case err != nil:
		t.Result = written(lost(Request{}, err).Outcome)
	case reply.status == 204:
		t.Result = history.Written
	case reply.status == 400: // the actor is not active
		t.Result = history.Refused
	default:
		t.Result = written(failure(Request{}, reply.status, reply.body).Outcome)
	}
	a.remember(t)
	switch {
	case err != nil:
		return fmt.Errorf("the write has no answer: %w", err)
	case t.Result != history.Written:
		return fmt.Errorf("the write is answered with %d %s", reply.status, reply.body)
	}
	return nil
}

// written converts the outcome of a write to a result of the history.
func written(o Outcome) history.Result {
	switch o {
	case Done:
		return history.Written
	case Conflict, Refused:
		return history.Refused
	case Unknown:
	}
	return history.Unknown
}

// path returns the path of the state of an actor.
func (a *counterApp) path(actor string) string {
	return "/v1.0/actors/" + actorType + "/" + actor + "/state"
}

// read returns the stored number of a counter, or 0 if the counter does not exist.
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

// remembered returns the value of a turn's counter from the application's memory. kept is false if the memory has no
// value. The first call after a restart of the node's process clears the memory.
func (a *counterApp) remembered(t *history.Turn) (n uint64, kept bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.life != t.Life {
		a.life = t.Life
		clear(a.memory)
	}
	n, kept = a.memory[t.Actor]
	return n, kept
}

// remember stores the value that a turn has written to its counter in the application's memory. The value is stored
// only for half of the counters, and only if the write was acknowledged and the memory was not cleared during the turn.
// Otherwise remember removes the counter from memory, so that the next turn reads the store.
func (a *counterApp) remember(t *history.Turn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := t.Actor[len(t.Actor)-1]; t.Result == history.Written && a.life == t.Life && last%2 == 0 {
		a.memory[t.Actor] = t.Read + 1
	} else {
		delete(a.memory, t.Actor)
	}
}

func (a *counterApp) deactivate(_ http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.memory, r.PathValue("id"))
}

// get answers with the number of a counter. This turn writes nothing.
func (a *counterApp) get(w http.ResponseWriter, r *http.Request) {
	t := a.begin(r, "get")
	n, err := a.read(r.Context(), t.Actor)
	a.end(t)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(w, n)
}

// remind handles a tick of a reminder, which is a turn of the actor.
func (a *counterApp) remind(_ http.ResponseWriter, r *http.Request) {
	t := a.begin(r, r.PathValue("name"))
	defer a.end(t)
	a.tick(r, "Quorate-Reminder-Tick")
	if a.chance(10) {
		pause(r.Context(), 50*time.Millisecond)
	}
}

// job handles a tick of a job.
func (a *counterApp) job(_ http.ResponseWriter, r *http.Request) { a.tick(r, "Quorate-Job-Tick") }

// tick records the arrival of a tick of a reminder or job. The request header with the given name contains the id of
// the tick.
func (a *counterApp) tick(r *http.Request, header string) {
	a.load.Due.AddTick(history.Tick{Name: r.PathValue("name"), ID: r.Header.Get(header), Node: a.node.Name,
		Begin: a.load.Due.Now()})
}
