package actors_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/internal/fault"
)

// town is a cluster of nodes with an application each, whose actors run turns of random length. The directory gives
// advice to spread the actors. The town checks that turns of an actor do not overlap, that no turn is canceled, and
// that each call is executed once.
type town struct {
	t     *testing.T
	nodes []*townNode

	mu       sync.Mutex
	rnd      *rand.Rand
	sessions map[string]*townNode
	counts   map[string]int // actors, by session
	owners   map[string]actors.Owner
	epochs   map[string]uint64
	epoch    uint64
	moved    int             // transfers
	running  map[string]bool // actors with a turn
	executed map[string]int  // calls
	ticks    map[string]int  // ticks of timers
	slow     time.Duration   // duration of each turn; 0 = random
}

// transfers returns how often an actor has moved.
func (w *town) transfers() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.moved
}

type townNode struct {
	*town
	name    string
	runtime *actors.Runtime
	begun   int         // turns
	taken   []api.Actor // actors transferred to the node, not reported yet
}

func newTown(t *testing.T, seed uint64) *town {
	return &town{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), sessions: map[string]*townNode{}, counts: map[string]int{},
		owners: map[string]actors.Owner{}, epochs: map[string]uint64{}, running: map[string]bool{},
		executed: map[string]int{}, ticks: map[string]int{}}
}

// join starts a node. The function set changes its options.
func (w *town) join(set func(*actors.Options)) *townNode {
	n := &townNode{town: w, name: fmt.Sprint("n", len(w.nodes))}
	ids := 0
	o := actors.Options{Directories: n, Carrier: n, Node: func() string { return n.name }, Plan: planTicks,
		NewID: func() string {
			w.mu.Lock()
			defer w.mu.Unlock()
			ids++
			return fmt.Sprint(n.name, "-", ids)
		},
		Allow:     func(*invoke.Inbound) error { return nil },
		Policy:    func(string) *resiliency.Policy { return nil },
		PlaceTime: 10 * time.Second, Metrics: actors.NewMetrics(prometheus.NewRegistry()), MaxAnswer: 100,
		Logger: slog.New(slog.DiscardHandler)}
	if set != nil {
		set(&o)
	}
	n.runtime = actors.NewRuntime(o)
	n.runtime.Open()
	n.runtime.Returned("app", n)
	w.mu.Lock()
	w.nodes = append(w.nodes, n)
	w.mu.Unlock()
	in(time.Second)
	return n
}

// node returns one of the nodes.
func (w *town) node(i int) *townNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[i%len(w.nodes)]
}

func (w *town) close() {
	for _, n := range w.nodes {
		_ = n.runtime.Close(context.Background())
	}
}

func (n *townNode) Claim(context.Context, string, string) (actors.Directory, error) { return n, nil }

func (n *townNode) Find(context.Context, string, string) (api.App, actors.Directory, error) {
	return api.App{ID: "app"}, n, nil
}

func (n *townNode) Carry(ctx context.Context, to actors.Owner, target api.App, c *actors.Call) (actors.Answer, error) {
	w := n.town
	w.mu.Lock()
	host := w.sessions[to.Session]
	w.mu.Unlock()
	if host == nil {
		return actors.Answer{}, fault.New(fault.Unavailable, "test", "the node has left")
	}
	_, c, err := actors.DecodeCall(actors.EncodeCall(target, c))
	if err != nil {
		return actors.Answer{}, err
	}
	return host.runtime.Take(ctx, target, c)
}

func (n *townNode) Register(_ context.Context, r actors.Registration) (uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !r.Draining {
		n.sessions[r.Session], n.counts[r.Session] = n, 0
	}
	return 1, nil
}

func (n *townNode) Renew(_ context.Context, session string, count int, gives bool) (a actors.Advice, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counts[session] = count
	a.Take, n.taken = n.taken, nil
	for other, c := range n.counts {
		if gives && count-c > 1 && (a.Give == 0 || c < n.counts[a.To]) {
			a.Give, a.To, a.Types = (count-c)/2, other, []string{"T"}
		}
	}
	return a, nil
}

func (n *townNode) Leave(_ context.Context, session string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sessions, session)
	delete(n.counts, session)
	return nil
}

func (n *townNode) Activate(_ context.Context, session, _, id string) (actors.Activation, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, owned := n.owners[id]; !owned {
		n.ownLocked(id, session)
	}
	return actors.Activation{Owner: n.owners[id], Epoch: n.epochs[id], Token: "t"}, nil
}

func (w *town) ownLocked(id, session string) {
	w.epoch++
	w.owners[id], w.epochs[id] = actors.Owner{Session: session, Node: w.sessions[session].name}, w.epoch
}

// Locate places new actors on the first node.
func (n *townNode) Locate(_ context.Context, _, id string) (actors.Owner, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o, owned := n.owners[id]; owned {
		return o, nil
	}
	for session, host := range n.sessions {
		if host == n.nodes[0] {
			return actors.Owner{Session: session, Node: host.name}, nil
		}
	}
	return actors.Owner{}, fault.New(fault.NotFound, "test", "no host")
}

func (n *townNode) Release(_ context.Context, released []actors.Released) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range released {
		if n.epochs[r.ID] == r.Epoch {
			delete(n.owners, r.ID)
			delete(n.epochs, r.ID)
		}
	}
	return nil
}

func (n *townNode) Transfer(_ context.Context, released []actors.Released, to actors.Target) error {
	<-time.After(5 * time.Millisecond) // calls arrive meanwhile
	n.mu.Lock()
	defer n.mu.Unlock()
	host := n.sessions[to.Session]
	if host == nil {
		return fault.New(fault.NotFound, "test", "the session has ended")
	}
	for _, r := range released {
		if n.running[r.ID] {
			n.t.Errorf("actor %s is transferred while a turn runs", r.ID)
		}
		if n.epochs[r.ID] == r.Epoch {
			n.moved++
			n.ownLocked(r.ID, to.Session)
			host.taken = append(host.taken, api.Actor{Type: "T", ID: r.ID})
		}
	}
	return nil
}

func (n *townNode) Healthy() (bool, string) { return true, "" }

// RoundTrip plays the application.
func (n *townNode) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(r.URL.Opaque, "/")
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}
	if len(parts) < 4 {
		answer.Body = io.NopCloser(strings.NewReader(`{"entities":["T"],"drainOngoingCallTimeout":"1s"}`))
		return answer, nil
	}
	id := parts[3]
	n.mu.Lock()
	if n.running[id] {
		n.t.Errorf("%s %s on %s while a turn of actor %s runs", r.Method, r.URL.Opaque, n.name, id)
	}
	if r.Method == http.MethodDelete {
		n.mu.Unlock()
		return answer, nil
	}
	n.running[id] = true
	n.begun++
	if parts[5] == actors.CallbackTimer {
		n.ticks[parts[6]]++
	} else {
		n.executed[parts[5]]++
	}
	took := n.slow
	if took == 0 {
		took = time.Duration(n.rnd.IntN(20_000)) * time.Microsecond
	}
	n.mu.Unlock()
	<-time.After(took)
	if r.Context().Err() != nil {
		n.t.Errorf("a turn of actor %s was canceled", id)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.running, id)
	return answer, nil
}

// call calls an actor from a node. The call must succeed.
func (n *townNode) call(actor, method string) {
	_, err := n.runtime.Do(context.Background(), &actors.Call{Actor: api.Actor{Type: "T", ID: actor}, Method: method,
		Verb: http.MethodPost, Header: http.Header{}})
	if err != nil {
		n.t.Errorf("call %s of actor %s from %s: %v", method, actor, n.name, err)
	}
}

// load returns how many actors each node has.
func (w *town) load() (out []int) {
	for _, n := range w.nodes {
		out = append(out, n.runtime.Active("app")["T"])
	}
	return out
}

// While nodes join, idle and busy actors move to them. No call fails, and none is executed twice.
func TestSpread_LosesAndDoublesNoTurn(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			w := newTown(t, seed)
			defer w.close()
			first := w.join(nil)
			const all = 60 // ten have a queue at all times, ten are called now and then, the others are idle
			for i := range all {
				first.call(fmt.Sprint(i), fmt.Sprint("first-", i))
			}
			stop := make(chan struct{})
			var callers sync.WaitGroup
			begun := map[string]bool{}
			var mu sync.Mutex
			for caller := range 40 {
				rnd := rand.New(rand.NewPCG(seed, uint64(caller)+10))
				callers.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						actor, method := fmt.Sprint(caller%10), fmt.Sprintf("c%d-%d", caller, i)
						if caller >= 30 {
							actor = fmt.Sprint(10 + rnd.IntN(10))
							<-time.After(time.Duration(rnd.IntN(3000)) * time.Millisecond)
						}
						mu.Lock()
						begun[method] = true
						mu.Unlock()
						w.node(caller).call(actor, method)
					}
				})
			}
			in(time.Second)
			w.join(nil)
			in(10 * time.Second)
			w.join(nil)
			in(10 * time.Second)
			close(stop)
			callers.Wait()
			for method := range begun {
				if w.executed[method] != 1 {
					t.Errorf("call %s was executed %d times", method, w.executed[method])
				}
			}
			busy := map[string]bool{}
			for i := range 10 {
				busy[w.owners[fmt.Sprint(i)].Node] = true
			}
			for i, n := range w.load() {
				if n < all/3-2 || n > all/3+2 {
					t.Errorf("seed %d: node %d has %d of %d actors", seed, i, n, all)
				}
			}
			if len(busy) < 2 {
				t.Errorf("seed %d: no busy actor has moved", seed)
			}
		})
	}
}

func TestSpread_OffKeepsActors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1)
		defer w.close()
		first := w.join(func(o *actors.Options) { o.KeepActors = true })
		for i := range 10 {
			first.call(fmt.Sprint(i), fmt.Sprint("m", i))
		}
		w.join(nil)
		in(time.Minute)
		if got := fmt.Sprint(w.load()); got != "[10 0]" {
			t.Errorf("the nodes have %s actors", got)
		}
	})
}

func TestSpread_KeepsActorsWithTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1)
		defer w.close()
		first := w.join(nil)
		for i := range 10 {
			first.call(fmt.Sprint(i), fmt.Sprint("m", i))
			if i < 8 {
				timer := &actors.Reminder{Actor: api.Actor{Type: "T", ID: fmt.Sprint(i)}, Name: "t", Period: "1h",
					TTL: "."}
				service := actors.NewService(api.App{ID: "app"}, first.runtime)
				if err := service.SetTimer(t.Context(), timer); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.join(nil)
		in(time.Minute)
		if got := fmt.Sprint(w.load()); got != "[8 2]" {
			t.Errorf("the nodes have %s actors, want 8 with timers on the first one", got)
		}
	})
}

// An actor with a long turn stays on its node until the turn has ended.
func TestSpread_WaitsForLongTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1)
		defer w.close()
		w.slow = time.Minute
		first := w.join(nil)
		var calls sync.WaitGroup
		for i := range 4 {
			calls.Go(func() { first.call(fmt.Sprint(i), fmt.Sprint("m", i)) })
		}
		w.join(nil)
		in(50 * time.Second)
		if n := w.transfers(); n > 0 {
			t.Errorf("%d actors have moved while turns run", n)
		}
		calls.Wait()
		in(20 * time.Second)
		if got := fmt.Sprint(w.load()); got != "[2 2]" {
			t.Errorf("the nodes have %s actors", got)
		}
	})
}

// When an actor moves, its waiting calls continue at the new owner, even if they have waited longer than PlaceTime.
func TestSpread_MovesCallsThatHaveWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1)
		defer w.close()
		w.slow = 4 * time.Second
		first := w.join(nil)
		var calls sync.WaitGroup
		for i := range 16 {
			calls.Go(func() { first.call(fmt.Sprint(i%2), fmt.Sprint("m", i)) })
		}
		in(15 * time.Second) // PlaceTime is 10 s
		w.join(nil)
		in(10 * time.Second)
		if n := w.transfers(); n != 1 {
			t.Errorf("%d actors have moved, want 1", n)
		}
		calls.Wait()
	})
}

// A timer that is set or removed at another node is set or removed at the owner of the actor.
func TestTimer_OfAnotherNodeIsForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1)
		defer w.close()
		first, second := w.join(nil), w.join(nil)
		app := actors.NewService(api.App{ID: "app"}, second.runtime)
		key := api.Actor{Type: "T", ID: "1"}
		if err := app.RemoveTimer(t.Context(), key, "absent"); err != nil {
			t.Errorf("the actor is not active: %v", err)
		}
		for _, active := range []bool{false, true} {
			timer := &actors.Reminder{Actor: key, Name: fmt.Sprint("t-", active), Period: "10s", TTL: "...",
				DueTime: "x", Callback: "cb", Data: []byte("1")}
			if err := app.SetTimer(t.Context(), timer); err != nil {
				t.Fatal(err)
			}
			in(15 * time.Second)
			if err := app.RemoveTimer(t.Context(), key, timer.Name); err != nil {
				t.Error(err)
			}
			in(time.Minute)
			if n := w.ticks[timer.Name]; n != 1 {
				t.Errorf("the timer %s had %d ticks, want one before it was removed", timer.Name, n)
			}
		}
		if got := fmt.Sprint(w.load()); got != "[1 0]" || first.begun != 2 {
			t.Errorf("the nodes have %s actors, and the first one had %d turns", got, first.begun)
		}
		stranger := actors.NewService(api.App{ID: "stranger"}, second.runtime)
		err := stranger.SetTimer(t.Context(), &actors.Reminder{Actor: key, Name: "t", Period: "1s", TTL: "."})
		if err == nil || api.AsError(err).Details.Reason != api.ReasonDenied {
			t.Errorf("another application sets a timer: %v", err)
		}
		if err := stranger.RemoveTimer(t.Context(), key, "t"); err == nil {
			t.Error("another application removes a timer")
		}
	})
}

// A timer that is set while its actor moves runs at the new owner.
func TestTimer_IsSetWhileTheActorMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1)
		defer w.close()
		first, second := w.join(nil), w.join(nil)
		for i := range 20 {
			first.call(fmt.Sprint(i), fmt.Sprint("m", i))
			timer := &actors.Reminder{Actor: api.Actor{Type: "T", ID: fmt.Sprint(i)}, Name: fmt.Sprint("t", i),
				Period: "1s", TTL: "."}
			go func() {
				<-time.After(time.Duration(i) * 50 * time.Millisecond)
				service := actors.NewService(api.App{ID: "app"}, second.runtime)
				if err := service.SetTimer(t.Context(), timer); err != nil {
					t.Error(err)
				}
			}()
		}
		in(time.Minute)
		for i := range 20 {
			if n := w.ticks[fmt.Sprint("t", i)]; n != 1 {
				t.Errorf("timer %d had %d ticks", i, n)
			}
		}
	})
}

// A transferred actor may get a call before the host activates the actor on the advice of the leader. Then the
// application has the actor, and must be informed when the actor is deactivated.
func TestAdopt_KeepsThatApplicationHasActor(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		hold := make(chan struct{})
		w.mu.Lock()
		w.holds = map[string]chan struct{}{}
		for n := range 32 { // as many as are activated at the same time
			id := fmt.Sprint("held", n)
			w.holds[id] = hold
			w.advice.Take = append(w.advice.Take, api.Actor{Type: "T", ID: id})
		}
		w.advice.Take = append(w.advice.Take, api.Actor{Type: "T", ID: "1"})
		w.mu.Unlock()
		in(time.Second)
		if err := <-w.call(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		close(hold)
		in(2 * time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		if fmt.Sprint(w.deleted) != "[1 after turn 1]" {
			t.Errorf("the application was informed: %q", w.deleted)
		}
	})
}
