package actors_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/internal/fault"
)

// world is a directory and an application of one node.
type world struct {
	t       *testing.T
	runtime *actors.Runtime

	mu       sync.Mutex
	session  string // the session, unless it has ended
	sessions int
	cut      bool // the directory does not answer
	refused  int  // releases and transfers that it refuses, after which it accepts them
	epoch    uint64
	owned    map[string]uint64
	config   string
	configs  atomic.Int32  // requests for the configuration
	slow     time.Duration // how long the application takes to answer GET /dapr/config
	begun    []string      // turns
	deleted  []string
	given    []string                 // actors transferred to other hosts
	hangs    bool                     // the application does not answer DELETE
	deleting chan struct{}            // the next DELETE is answered when it is closed; nil = at once
	release  map[string]chan struct{} // turns that wait
	headers  []http.Header
	bodies   []string
	contexts []context.Context // of the calls of the application
	located  int               // requests for an owner
	forgets  bool              // the world does not record the turns
	registry *prometheus.Registry
	policy   *resiliency.Policy

	advice actors.Advice            // result of the next renewal
	holds  map[string]chan struct{} // ids of actors whose activation waits until the channel is closed

	elsewhere *actors.Answer // answer of another node, which owns all actors; nil = this node owns them
	fails     []fault.Code   // errors of calls of the other node, one after the other; the last one stays
}

func inWorld(t *testing.T, config string, test func(t *testing.T, w *world)) {
	t.Helper()
	inWorldWithHoldings(t, config, nil, test)
}

// inWorldWithHoldings is inWorld with Holdings.
func inWorldWithHoldings(t *testing.T, config string, holdings actors.Holdings, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, config, holdings)
		w.runtime.Returned("app", w)
		<-time.After(time.Second)
		test(t, w)
		_ = w.runtime.Close(t.Context())
	})
}

// newWorld returns a world in which the application has not been reached yet.
func newWorld(t *testing.T, config string, holdings actors.Holdings) *world {
	w := &world{t: t, owned: map[string]uint64{}, config: config, release: map[string]chan struct{}{},
		registry: prometheus.NewRegistry()}
	w.runtime = actors.NewRuntime(actors.Options{Directories: w, Carrier: w, Node: func() string { return "n" },
		NewID: w.newID, Plan: planTicks, Allow: func(*invoke.Inbound) error { return nil },
		Policy:    func(string) *resiliency.Policy { return w.policy },
		PlaceTime: 10 * time.Second, Metrics: actors.NewMetrics(w.registry),
		MaxAnswer: 100, Holdings: holdings, Reminders: accepting{}, Logger: slog.New(slog.DiscardHandler)})
	w.runtime.Open()
	return w
}

// accepting accepts all reminders.
type accepting struct{ actors.Reminders }

func (accepting) Put(context.Context, string, *actors.Reminder, bool) error { return nil }

func (w *world) newID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions++
	return fmt.Sprint("id", w.sessions)
}

func (w *world) Claim(context.Context, string, string) (actors.Directory, error) { return w, nil }

func (w *world) Find(context.Context, string, string) (api.App, actors.Directory, error) {
	return api.App{ID: "app"}, w, nil
}

func (w *world) Carry(context.Context, actors.Owner, api.App, *actors.Call) (actors.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.fails) > 0 {
		code := w.fails[0]
		w.fails = w.fails[min(1, len(w.fails)-1):]
		return actors.Answer{}, fault.New(code, "test", "the other node")
	}
	if w.elsewhere != nil {
		return *w.elsewhere, nil
	}
	return actors.Answer{}, fault.New(fault.Unavailable, "test", "there is no other node")
}

func (w *world) Register(_ context.Context, r actors.Registration) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.session = r.Session
	return 1, nil
}

func (w *world) Renew(_ context.Context, session string, _ int, _ bool) (actors.Advice, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.cut:
		return actors.Advice{}, fault.New(fault.Unavailable, "test", "no leader")
	case session != w.session:
		return actors.Advice{}, fault.New(fault.NotFound, "test", "the session has ended")
	}
	advice := w.advice
	w.advice = actors.Advice{}
	return advice, nil
}

func (w *world) Leave(context.Context, string) error { return nil }

func (w *world) Activate(_ context.Context, session, _, id string) (actors.Activation, error) {
	w.mu.Lock()
	hold := w.holds[id]
	w.mu.Unlock()
	if hold != nil {
		<-hold
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.owned[id] == 0 {
		w.epoch++
		w.owned[id] = w.epoch
	}
	return actors.Activation{Owner: actors.Owner{Session: session, Node: "n"}, Epoch: w.owned[id], Token: "t"}, nil
}

func (w *world) Locate(context.Context, string, string) (actors.Owner, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.located++
	if w.elsewhere != nil {
		return actors.Owner{Node: "m"}, nil
	}
	return actors.Owner{Node: "n"}, nil
}

func (w *world) Release(_ context.Context, released []actors.Released) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused > 0 {
		w.refused--
		return fault.New(fault.Indeterminate, "test", "no answer")
	}
	for _, r := range released {
		delete(w.owned, r.ID)
	}
	return nil
}

func (w *world) Transfer(_ context.Context, released []actors.Released, to actors.Target) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused > 0 {
		w.refused--
		return fault.New(fault.Indeterminate, "test", "no answer")
	}
	for _, r := range released {
		w.given = append(w.given, r.ID+" to "+to.Session)
	}
	return nil
}

// An application that answers GET /dapr/config with 404, 405 or 501 hosts no actors and gets one request. After other
// errors, the host asks again.
func TestHost_ApplicationWithoutConfigGetsOneRequest(t *testing.T) {
	for status, want := range map[string]int32{"404": 1, "405": 1, "501": 1, "500": 5, "503": 5} {
		inWorld(t, status, func(t *testing.T, w *world) {
			<-time.After(3500 * time.Millisecond)
			if got := w.configs.Load(); got != want {
				t.Errorf("status %s: %d requests, want %d", status, got, want)
			}
		})
	}
}

func (w *world) Healthy() (bool, string) { return true, "" }

// RoundTrip plays the application. It answers a method that begins with "wait" when finish is called with the method.
// It answers a method that begins with "obey" when the context of the request ends.
func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	path := r.URL.Opaque
	method := path[strings.LastIndexByte(path, '/')+1:]
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(
		method))}
	switch {
	case path == "/dapr/config":
		<-time.After(w.slow)
		w.configs.Add(1)
		if status, err := strconv.Atoi(w.config); err == nil {
			answer.StatusCode = status
		}
		answer.Body = io.NopCloser(strings.NewReader(w.config))
		return answer, nil
	case r.Method == http.MethodDelete:
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.hangs {
			return nil, fault.New(fault.Indeterminate, "test", "no answer")
		}
		w.deleted = append(w.deleted, fmt.Sprint(method, " after turn ", len(w.begun)))
		if wait := w.deleting; wait != nil {
			w.deleting = nil
			w.mu.Unlock()
			<-wait
			w.mu.Lock()
		}
		return answer, nil
	}
	w.mu.Lock()
	if w.forgets {
		w.mu.Unlock()
		return answer, nil
	}
	w.contexts = append(w.contexts, r.Context())
	w.begun = append(w.begun, method)
	w.headers = append(w.headers, r.Header)
	w.bodies = append(w.bodies, readAll(r.Body))
	switch method {
	case "cancel":
		answer.Header.Set("X-DaprReminderCancel", "true")
	case "none":
		answer.StatusCode = http.StatusNotFound
	case "short":
		answer.ContentLength, answer.Body = 999, endsEarly("ok")
	case "broken":
		answer.ContentLength, answer.Body = -1, endsEarly("ok")
	}
	var wait chan struct{}
	if strings.HasPrefix(method, "wait") {
		wait = make(chan struct{})
		w.release[method] = wait
	}
	w.mu.Unlock()
	if wait != nil {
		<-wait
	}
	if strings.HasPrefix(method, "obey") {
		<-r.Context().Done()
		return nil, fault.New(fault.Timeout, "test", "canceled")
	}
	return answer, nil
}

func endsEarly(text string) io.ReadCloser {
	return io.NopCloser(io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF)))
}

func (w *world) finish(method string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.release[method])
}

func (w *world) turns() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.begun, " ")
}

// endSession ends the session, as the leader does with a host that does not renew it.
func (w *world) endSession() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.session = ""
	clear(w.owned)
}

func (w *world) setCut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

// call begins a call and returns the channel that receives its error.
func (w *world) call(ctx context.Context, method, chain string) chan error {
	done := make(chan error, 1)
	header := http.Header{}
	if chain != "" {
		header.Set("Dapr-Reentrancy-Id", chain)
	}
	go func() {
		_, err := w.runtime.Do(ctx, &actors.Call{Actor: api.Actor{Type: "T", ID: "1"}, Method: method, Verb: "POST",
			Header: header})
		done <- err
	}()
	synctest.Wait()
	return done
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return api.AsError(err).Details.Reason
}

const plain = `{"entities":["T"],"actorIdleTimeout":"1m"}`

func TestTurns_OneAfterTheOther(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		first := w.call(t.Context(), "wait1", "")
		second, third := w.call(t.Context(), "b", ""), w.call(t.Context(), "c", "")
		if got := w.turns(); got != "wait1" {
			t.Errorf("turns %q while the first one runs", got)
		}
		w.finish("wait1")
		for _, done := range []chan error{first, second, third} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := w.turns(); got != "wait1 b c" {
			t.Errorf("turns %q", got)
		}
	})
}

// A turn continues after its caller has gone, because the application still works on it.
func TestTurns_OutliveTheirCaller(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		ctx, leave := context.WithCancel(t.Context())
		first := w.call(ctx, "wait1", "")
		leave()
		if err := <-first; reason(err) != api.ReasonIndeterminate {
			t.Errorf("the caller that left got %v", err)
		}
		second := w.call(t.Context(), "b", "")
		if got := w.turns(); got != "wait1" {
			t.Errorf("turns %q while the first one runs", got)
		}
		w.finish("wait1")
		if err := <-second; err != nil {
			t.Error(err)
		}
	})
}

// The context of a turn ends with the turn. net/http registers each request at its context, so a longer context would
// keep the memory of the request.
func TestTurns_EndTheirContext(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running, done := w.call(t.Context(), "wait1", ""), w.call(t.Context(), "b", "")
		if w.contexts[0].Err() != nil {
			t.Error("the context has ended while the turn runs")
		}
		w.finish("wait1")
		for _, ended := range []chan error{running, done} {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		for i, ctx := range w.contexts {
			if ctx.Err() == nil {
				t.Errorf("the context of turn %d has not ended", i+1)
			}
		}
	})
}

func TestLease_WithoutItNoTurnAndNoAnswer(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		w.setCut(true)
		<-time.After(time.Second)
		w.finish("wait1")
		if err := <-running; reason(err) != api.ReasonIndeterminate {
			t.Errorf("an answer without a lease was relayed: %v", err)
		}
		waiting := w.call(t.Context(), "b", "")
		<-time.After(time.Second)
		synctest.Wait()
		if got := w.turns(); got != "wait1" {
			t.Errorf("turns %q without a lease", got)
		}
		w.setCut(false) // the session has not ended, so the actor stays active
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	})
}

// An actor is not active again on this node before its earlier turn has ended.
func TestActivation_WaitsForEarlierTurn(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		running := w.call(t.Context(), "wait1", "")
		w.endSession()
		<-time.After(time.Second) // the host has a new session
		next := w.call(t.Context(), "b", "")
		<-time.After(time.Second)
		synctest.Wait()
		if got := w.turns(); got != "wait1" {
			t.Errorf("turns %q while the turn of the ended session runs", got)
		}
		w.finish("wait1")
		if err := <-running; reason(err) != api.ReasonIndeterminate {
			t.Errorf("the answer of an ended session was relayed: %v", err)
		}
		if err := <-next; err != nil {
			t.Error(err)
		}
	})
}

// An application may keep the state of an actor in memory. The application must drop this state before another
// activation begins, because another host may have changed the state in between.
func TestActivation_ApplicationDropsEarlierOne(t *testing.T) {
	hang := func(w *world, hangs bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.hangs = hangs
	}
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		hang(w, true)
		w.endSession()
		<-time.After(time.Second)
		next := w.call(t.Context(), "b", "")
		<-time.After(3 * time.Second)
		synctest.Wait()
		if got := w.turns(); got != "a" {
			t.Errorf("turns %q while the application has the earlier activation", got)
		}
		hang(w, false)
		if err := <-next; err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if fmt.Sprint(w.deleted) != "[1 after turn 1]" {
			t.Errorf("the application was informed: %q", w.deleted)
		}
	})
}

// An application may write the state of an actor while it deactivates the actor. If the session ends meanwhile, the
// actor is not active here again before the application has answered.
func TestActivation_WaitsForEarlierDeactivation(t *testing.T) {
	begin := map[string]func(w *world){
		"idle":  func(*world) { in(time.Minute + 2*time.Second) },
		"moved": func(w *world) { w.handOver(context.Background()) },
		"spread": func(w *world) {
			w.mu.Lock()
			w.advice = actors.Advice{Give: 1, To: "s", Types: []string{"T"}}
			w.mu.Unlock()
			in(time.Second)
		},
		"session ended": func(w *world) {
			w.endSession()
			in(3 * time.Second)
		},
	}
	for name, deactivate := range begin {
		t.Run(name, func(t *testing.T) {
			inWorld(t, plain, func(t *testing.T, w *world) {
				if err := <-w.call(t.Context(), "a", ""); err != nil {
					t.Fatal(err)
				}
				deleting := make(chan struct{})
				w.mu.Lock()
				w.deleting = deleting
				w.mu.Unlock()
				deactivate(w)
				w.endSession()
				in(time.Second) // the host has a new session
				next := w.call(t.Context(), "b", "")
				in(time.Second)
				w.mu.Lock()
				if len(w.deleted) != 1 || len(w.begun) != 1 {
					t.Errorf("deactivated %q, turns %q while the deactivation runs", w.deleted, w.begun)
				}
				w.mu.Unlock()
				close(deleting)
				if err := <-next; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestSession_ApplicationIsInformedOfItsEnd(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		w.endSession()
		<-time.After(3 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if fmt.Sprint(w.deleted) != "[1 after turn 1]" {
			t.Errorf("the application was informed: %q", w.deleted)
		}
	})
}

func TestReentrancy_SameChainPasses(t *testing.T) {
	inWorld(t, `{"entities":["T"],"reentrancy":{"enabled":true,"maxStackDepth":2}}`, func(t *testing.T, w *world) {
		first := w.call(t.Context(), "wait1", "")
		w.mu.Lock()
		chain := w.headers[0].Get("Dapr-Reentrancy-Id")
		w.mu.Unlock()
		if chain == "" {
			t.Fatal("a call has no chain")
		}
		other := w.call(t.Context(), "other", "")
		second := w.call(t.Context(), "wait2", chain)
		if err := <-w.call(t.Context(), "deep", chain); err == nil || api.AsError(err).Code != api.CodeActorStackDepth {
			t.Errorf("a chain that is too deep: %v", err)
		}
		if got := w.turns(); got != "wait1 wait2" {
			t.Errorf("turns %q", got)
		}
		w.finish("wait2")
		w.finish("wait1")
		for _, done := range []chan error{first, second, other} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", "chain"); err != nil {
			t.Fatal(err)
		}
		if got := w.headers[0].Get("Dapr-Reentrancy-Id"); got != "" {
			t.Errorf("without reentrancy the call has the chain %q", got)
		}
	})
}

func TestIdle_ActorIsDeactivatedAndComesBack(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute + 3*time.Second)
		synctest.Wait()
		w.mu.Lock()
		deleted, owned := len(w.deleted), len(w.owned)
		w.mu.Unlock()
		if deleted != 1 || owned != 0 {
			t.Errorf("%d actors were deactivated, %d are owned", deleted, owned)
		}
		if err := <-w.call(t.Context(), "b", ""); err != nil {
			t.Error(err)
		}
	})
}

// A release without an answer may be applied late. If this host activated the actor again before the answer, the
// activation would have the same epoch. The late release would end it, and another host could own the actor at the
// same time.
func TestIdle_ActorWaitsForItsRelease(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		first := w.owned["1"]
		w.refused = 5
		w.mu.Unlock()
		<-time.After(time.Minute + 1500*time.Millisecond)
		synctest.Wait()
		answer := w.call(t.Context(), "b", "")
		synctest.Wait()
		select {
		case err := <-answer:
			t.Errorf("a call was answered before the actor was released: %v", err)
		default:
		}
		if err := <-answer; err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused != 0 || w.owned["1"] <= first {
			t.Errorf("%d releases are left to refuse, and epoch %d came after %d", w.refused, w.owned["1"], first)
		}
	})
}

func TestQueue_IsBounded(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		calls := []chan error{w.call(t.Context(), "wait1", "")}
		for range 1000 {
			calls = append(calls, w.call(t.Context(), "b", ""))
		}
		if err := <-w.call(t.Context(), "c", ""); reason(err) != api.ReasonOverloaded {
			t.Errorf("one call too many: %v", err)
		}
		w.finish("wait1")
		for _, done := range calls {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestParseConfig_ReadsSettings(t *testing.T) {
	c, err := actors.ParseConfig([]byte(`{"entities":["A","B"],"actorIdleTimeout":"1m","drainOngoingCallTimeout":"",
		"drainBalancedActors":true,"entitiesConfig":[{"entities":["B","C"],"actorIdleTimeout":"2m",
		"reentrancy":{"enabled":true}}]}`))
	got, want := map[string]actors.TypeConfig{}, map[string]actors.TypeConfig{
		"A": {IdleTimeout: time.Minute, DrainTimeout: 10 * time.Second, MaxDepth: 32},
		"B": {IdleTimeout: 2 * time.Minute, DrainTimeout: 10 * time.Second, MaxDepth: 32, Reentrancy: true},
	}
	for kind, settings := range c.Types {
		got[kind] = *settings
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := actors.ParseConfig([]byte(`[]`)); !fault.Is(err, fault.Invalid) {
		t.Errorf("not an object: %v", err)
	}
}

func TestWire_KeepsCallsAndAnswers(t *testing.T) {
	in := &actors.Call{Actor: api.Actor{Type: "T", ID: "1"}, Callback: "remind", Method: "m", Verb: "GET",
		Body:   []byte("x"),
		Header: http.Header{"A": {"1", "2"}}, Caller: invoke.Caller{App: api.App{ID: "c", Namespace: "n"}}}
	target, out, err := actors.DecodeCall(actors.EncodeCall(api.App{ID: "app"}, in))
	if err != nil || target.ID != "app" || fmt.Sprint(out) != fmt.Sprint(in) {
		t.Errorf("%v %v %v", target, out, err)
	}
	a := actors.Answer{Status: 201, Header: http.Header{"B": {"3"}}, Body: []byte("y")}
	got, err := actors.DecodeAnswer(actors.EncodeAnswer(&a))
	if err != nil || fmt.Sprint(got) != fmt.Sprint(a) {
		t.Errorf("%v %v", got, err)
	}
	for _, b := range [][]byte{nil, {9}, {1, 200}} {
		if _, _, err := actors.DecodeCall(b); err == nil {
			t.Errorf("%v is a call", b)
		}
	}
}
