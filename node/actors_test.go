package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/codes"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// counters is an application whose actors count their calls. It keeps the count in the state of the actor.
type counters struct {
	t       *testing.T
	server  *httptest.Server
	sidecar atomic.Pointer[string] // address of the API of its node
	hosts   *atomic.Bool           // whether the application answers with its actor types; nil = always

	mu          sync.Mutex
	running     map[string]bool
	turns       int
	ticks       map[string]int // number of ticks, by timer
	deactivated []string
	overlap     bool
}

func newCounters(t *testing.T) *counters {
	c := &counters{t: t, running: map[string]bool{}, ticks: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /dapr/config", func(w http.ResponseWriter, _ *http.Request) {
		if c.hosts != nil && !c.hosts.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{"entities":["Counter"],"actorIdleTimeout":"1h","drainOngoingCallTimeout":"5s",
			"entitiesConfig":[{"entities":["Brief"],"actorIdleTimeout":"1s"}]}`)
	})
	mux.HandleFunc("PUT /actors/Counter/{id}/method/{method}", c.call)
	mux.HandleFunc("PUT /actors/Counter/{id}/method/timer/{name}", func(_ http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ticks[r.PathValue("name")]++
	})
	mux.HandleFunc("DELETE /actors/Counter/{id}", func(_ http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.deactivated = append(c.deactivated, r.PathValue("id"))
	})
	c.server = httptest.NewServer(mux)
	t.Cleanup(c.server.Close)
	return c
}

func (c *counters) port() int {
	u, err := url.Parse(c.server.URL)
	if err != nil {
		c.t.Fatal(err)
	}
	n, err := strconv.Atoi(u.Port())
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// call serves a turn of an actor.
func (c *counters) call(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	c.mu.Lock()
	c.overlap = c.overlap || c.running[id]
	c.running[id] = true
	c.turns++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.running[id] = false
		c.mu.Unlock()
	}()
	switch r.PathValue("method") {
	case "add":
		c.add(w, id)
	case "fail":
		http.Error(w, "no such book", http.StatusTeapot)
	case "epoch":
		_, _ = io.WriteString(w, r.Header.Get("Quorate-Actor-Epoch"))
	default:
		http.NotFound(w, r)
	}
}

func (c *counters) add(w http.ResponseWriter, id string) {
	state := "/v1.0/actors/Counter/" + id + "/state"
	code, text, _ := nodetest.AskAt(c.t, *c.sidecar.Load(), http.MethodGet, state+"/n", "", "")
	if code != http.StatusOK && code != http.StatusNoContent {
		http.Error(w, text, http.StatusInternalServerError)
		return
	}
	n, _ := strconv.Atoi(text)
	code, text, _ = nodetest.AskAt(c.t, *c.sidecar.Load(), http.MethodPut, state,
		fmt.Sprintf(`[{"operation":"upsert","request":{"key":"n","value":%d}}]`, n+1), "")
	if code != http.StatusNoContent {
		http.Error(w, text, http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(w, n+1)
}

// threeCounters starts three nodes, each with an instance of the application. Tests that use it do not run in
// parallel, because calls fail if a host renews its lease too late.
func threeCounters(t *testing.T, set ...func(*node.Config)) ([]*node.Node, []*counters) {
	t.Helper()
	return countersOf(t, func(int, *counters) {}, 3, set...)
}

// countersOf is threeCounters, but first passes each application to change. It waits until the given number of hosts
// have registered.
func countersOf(t *testing.T, change func(i int, app *counters), hosts int,
	set ...func(*node.Config)) ([]*node.Node, []*counters) {
	t.Helper()
	var apps []*counters
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) {
		app := newCounters(t)
		change(len(apps), app)
		c.App.ID, c.App.Port = "bank", app.port()
		apps = append(apps, app)
		for _, f := range set {
			f(c)
		}
	})
	for i, n := range nodes {
		apps[i].sidecar.Store(&n.Addresses().API[0])
	}
	for _, n := range nodes[:hosts] {
		nodetest.Poll(t, func() error {
			_, text, _ := nodetest.Ask(t, n, http.MethodGet, "/v1.0/metadata", "")
			if !strings.Contains(text, `"type":"Counter"`) {
				return fmt.Errorf("no actors are registered: %s", text)
			}
			return nil
		})
	}
	return nodes, apps
}

func add(t *testing.T, n *node.Node, id string) (int, string) {
	t.Helper()
	code, text, _ := nodetest.Ask(t, n, http.MethodPost, "/v1.0/actors/Counter/"+id+"/method/add", "")
	return code, text
}

// tally counts calls. The outcome of a call is unknown if the host has lost its lease during the call. On a busy
// machine, this can happen.
type tally struct{ done, unknown int }

// fits reports whether text can be the count of an actor after the calls in c.
func (c *tally) fits(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= c.done && n <= c.done+c.unknown
}

// add calls an actor, and counts the call. It returns the answer, and whether the outcome is known. A failed call fails
// the test.
func (c *tally) add(t *testing.T, n *node.Node, id string) (text string, known bool) {
	t.Helper()
	code, text := add(t, n, id)
	switch {
	case code == http.StatusOK:
		c.done++
		return text, true
	case strings.Contains(text, "the host lost its lease"):
		c.unknown++
	default:
		t.Errorf("a call failed: %d %s", code, text)
	}
	return text, false
}

// known calls an actor until the outcome of a call is known, and returns the answer.
func (c *tally) known(t *testing.T, n *node.Node, id string) string {
	t.Helper()
	for {
		text, known := c.add(t, n, id)
		if known {
			return text
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

// include counts the calls of other.
func (c *tally) include(other tally) {
	c.done += other.done
	c.unknown += other.unknown
}

// adding calls an actor again and again. The returned function ends this, and returns the tally of the calls. A failed
// call fails the test.
func adding(t *testing.T, n *node.Node, id string) (stop func() tally) {
	end, count := make(chan struct{}), make(chan tally, 1)
	go func() {
		var calls tally
		for {
			select {
			case <-end:
				count <- calls
				return
			default:
			}
			calls.add(t, n, id)
		}
	}()
	return func() tally {
		close(end)
		return <-count
	}
}

func TestActors_CountFromEveryNode(t *testing.T) {
	nodes, apps := threeCounters(t)
	var calls tally
	for i := range 30 {
		if text := calls.known(t, nodes[i%3], "a"); !calls.fits(text) {
			t.Fatalf("after %+v the counter is %s", calls, text)
		}
	}
	var all sync.WaitGroup
	var mu sync.Mutex // guards calls
	for i := range 30 {
		all.Go(func() {
			var call tally
			call.add(t, nodes[i%3], "a")
			mu.Lock()
			defer mu.Unlock()
			calls.include(call)
		})
	}
	all.Wait()
	if text := calls.known(t, nodes[0], "a"); !calls.fits(text) {
		t.Errorf("after %+v the counter is %s", calls, text)
	}
	turns := 0
	for _, a := range apps {
		turns += a.turns
		if a.overlap {
			t.Error("turns of one actor overlap")
		}
	}
	if turns != calls.done+calls.unknown {
		t.Errorf("%d turns for %+v", turns, calls)
	}
}

func TestActors_ErrorsOfCalls(t *testing.T) {
	nodes, _ := threeCounters(t, func(c *node.Config) { c.API.HostWait = 100 * time.Millisecond })
	for path, want := range map[string]string{
		"/v1.0/actors/Counter/a/method/fail": "error from actor service: (418) no such book",
		"/v1.0/actors/Counter/a/method/none": "actor method not found",
		"/v1.0/actors/Absent/a/method/x":     "did not find address for actor 'Absent/a'",
	} {
		code, text, _ := nodetest.Ask(t, nodes[1], http.MethodPut, path, "")
		var e struct{ ErrorCode, Message string }
		if err := json.Unmarshal([]byte(text), &e); err != nil || code != http.StatusInternalServerError ||
			e.ErrorCode != "ERR_ACTOR_INVOKE_METHOD" || !strings.Contains(e.Message, want) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	code, text, _ := nodetest.Ask(t, nodes[0], http.MethodPut, "/v1.0/actors/Counter/inactive/state", "[]")
	if code != http.StatusBadRequest || !strings.Contains(text, "ERR_ACTOR_INSTANCE_MISSING") {
		t.Errorf("a write of an inactive actor: %d %s", code, text)
	}
	c := runtimev1.NewDaprClient(connect(t, nodes[0].Addresses().GRPC[0]))
	_, err := c.ExecuteActorStateTransaction(t.Context(), &runtimev1.ExecuteActorStateTransactionRequest{
		ActorType: "Counter", ActorId: "inactive"})
	wantStatus(t, err, codes.InvalidArgument)
}

// A node reads the state of an actor that is not active on it with strong consistency, even if the client requests
// eventual consistency.
func TestActors_StateOfInactiveOnesIsReadStrongly(t *testing.T) {
	nodes, _ := threeCounters(t)
	var calls tally
	for range 20 {
		count := calls.known(t, nodes[0], "a")
		if !calls.fits(count) {
			t.Fatalf("after %+v the count is %s", calls, count)
		}
		for _, n := range nodes {
			code, text, header := nodetest.Ask(t, n, http.MethodGet,
				"/v1.0/actors/Counter/a/state/n?consistency=eventual&metadata.maxStaleness=1m", "")
			if code != http.StatusOK || text != count {
				t.Fatalf("after the count %s: %d %s %v", count, code, text, header)
			}
			got, err := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0])).GetActorState(t.Context(),
				&runtimev1.GetActorStateRequest{ActorType: "Counter", ActorId: "a", Key: "n"})
			if err != nil || string(got.GetData()) != count {
				t.Fatalf("after the count %s over gRPC: %v, %v", count, got, err)
			}
		}
	}
	code, text, header := nodetest.Ask(t, nodes[1], http.MethodGet, "/v1.0/actors/Counter/none/state/n", "")
	if code != http.StatusNoContent || header.Get("Quorate-Consistency") != "linearizable" {
		t.Errorf("an actor without state: %d %s %v", code, text, header)
	}
}

// A node that stops gives its actors to other nodes. No call fails, and the count continues.
func TestActors_NodeThatStopsHandsThemOver(t *testing.T) {
	nodes, apps := threeCounters(t)
	var calls tally
	calls.known(t, nodes[2], "a")
	owner := slices.IndexFunc(apps, func(a *counters) bool { return a.turns > 0 })
	first, second := (owner+1)%3, (owner+2)%3
	stop := adding(t, nodes[first], "a")
	nodetest.Close(t, nodes[owner])
	nodetest.Poll(t, func() error {
		for _, a := range []*counters{apps[first], apps[second]} {
			a.mu.Lock()
			turns := a.turns
			a.mu.Unlock()
			if turns > 3 {
				return nil
			}
		}
		return fmt.Errorf("no other node serves the actor")
	})
	calls.include(stop())
	if text := calls.known(t, nodes[second], "a"); !calls.fits(text) {
		t.Errorf("after %+v the count is %s", calls, text)
	}
	apps[owner].mu.Lock()
	defer apps[owner].mu.Unlock()
	if d := apps[owner].deactivated; len(d) != 1 || d[0] != "a" {
		t.Errorf("the application was informed of the deactivation of %q", d)
	}
}

// An application that is a child process ends when Wait has returned. By then its turns have ended and other nodes
// have its actors.
func TestActors_AreHandedOverBeforeTheirProgramEnds(t *testing.T) {
	nodes, apps := threeCounters(t, func(c *node.Config) { c.App.Command = []string{"bank"} }) // no node starts it
	new(tally).known(t, nodes[2], "a")
	stop := adding(t, nodes[0], "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := nodes[2].Wait(ctx); err != nil {
		t.Fatal(err)
	}
	apps[2].mu.Lock()
	turns, deactivated := apps[2].turns, fmt.Sprint(apps[2].deactivated)
	apps[2].mu.Unlock()
	if deactivated != "[a]" {
		t.Errorf("the actors %s are deactivated when the program ends, want a", deactivated)
	}
	for _, n := range nodes {
		new(tally).known(t, n, "a")
	}
	stop()
	apps[2].mu.Lock()
	defer apps[2].mu.Unlock()
	if apps[2].turns != turns {
		t.Errorf("%d turns begin after the program may have ended", apps[2].turns-turns)
	}
}

// An operator moves an actor while it is called. No call fails, and the count continues at the new owner.
func TestActors_MoveAndRebalance(t *testing.T) {
	nodes, apps := threeCounters(t, func(c *node.Config) { c.API.KeepActors = true }) // only operators move actors

	var calls tally // of actor 0
	calls.known(t, nodes[0], "0")
	for i := range 8 {
		new(tally).known(t, nodes[0], fmt.Sprint(i+1))
	}
	target := 0
	for ownerOf(t, nodes[0], "0") == nodetest.Status(t, nodes[target]).Node.ID {
		target++
	}
	to := nodetest.Status(t, nodes[target]).Node.ID
	stop := adding(t, nodes[2], "0")
	admin := nodes[2].Admin()
	apps[target].mu.Lock()
	before := apps[target].turns
	apps[target].mu.Unlock()
	if err := admin.MoveActor(t.Context(), schema.ActorMove{Type: "Counter", ID: "0", Node: to}); err != nil {
		t.Fatal(err)
	}
	nodetest.Poll(t, func() error {
		apps[target].mu.Lock()
		defer apps[target].mu.Unlock()
		if n := apps[target].turns - before; n < 3 {
			return fmt.Errorf("%d turns at the new owner", n)
		}
		return nil
	})
	calls.include(stop())
	if apps[0].overlap || apps[1].overlap || apps[2].overlap {
		t.Errorf("turns overlap in %+v", calls)
	} else if text := calls.known(t, nodes[0], "0"); !calls.fits(text) {
		t.Errorf("after %+v the count is %s", calls, text)
	}
	for _, wrong := range []schema.ActorMove{
		{Type: "Counter", ID: "0", Node: to}, {Type: "Counter", ID: "0", Node: "nosuch"},
		{Type: "Counter", ID: "nosuch", Node: to}, {Type: "Nosuch", ID: "0", Node: to},
	} {
		if err := admin.MoveActor(t.Context(), wrong); err == nil {
			t.Errorf("%+v succeeded", wrong)
		}
	}
	for i := range 6 {
		move := schema.ActorMove{Type: "Counter", ID: fmt.Sprint(i), Node: to}
		if err := admin.MoveActor(t.Context(), move); err != nil && !fault.Is(err, fault.Conflict) { // already there
			t.Fatal(err)
		}
	}
	moved, err := admin.RebalanceActors(t.Context(), "Counter")
	if err != nil || moved.Moved < 3 { // one host has at least 6 of 9
		t.Errorf("%+v, %v", moved, err)
	}
	list, err := admin.ListActors(t.Context(), 100)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	count := map[string]int{}
	for _, a := range list[0].Actors {
		count[a.Node]++
	}
	for node, n := range count {
		if n != 3 {
			t.Errorf("node %s has %d of 9 actors", node, n)
		}
	}
}

// A timer can be set and removed at every node. It runs where the actor is.
func TestActors_TimersAreForwarded(t *testing.T) {
	nodes, apps := threeCounters(t)
	new(tally).known(t, nodes[0], "a")
	owner := ownerOf(t, nodes[0], "a")
	for i, n := range nodes {
		path := fmt.Sprint("/v1.0/actors/Counter/a/timers/t", i)
		code, text, _ := nodetest.Ask(t, n, http.MethodPost, path, `{"dueTime":"10ms","period":"100ms"}`)
		if code != http.StatusNoContent {
			t.Fatalf("node %d: %d %s", i, code, text)
		}
		at := slices.IndexFunc(nodes, func(n *node.Node) bool { return nodetest.Status(t, n).Node.ID == owner })
		nodetest.Poll(t, func() error {
			apps[at].mu.Lock()
			defer apps[at].mu.Unlock()
			if apps[at].ticks[fmt.Sprint("t", i)] < 2 {
				return fmt.Errorf("ticks at the owner: %v", apps[at].ticks)
			}
			return nil
		})
		if code, text, _ := nodetest.Ask(t, nodes[(i+1)%3], http.MethodDelete, path, ""); code != http.StatusNoContent {
			t.Errorf("node %d: %d %s", i, code, text)
		}
	}
	code, text, _ := nodetest.Ask(t, nodes[1], http.MethodPost, "/v1.0/actors/Counter/new/timers/t",
		`{"dueTime":"1h"}`)
	if code != http.StatusNoContent || ownerOf(t, nodes[0], "new") == "" {
		t.Errorf("a timer of an actor that is not active: %d %s", code, text)
	}
}

// ownerOf returns the node id of the owner of an actor.
func ownerOf(t *testing.T, n *node.Node, id string) string {
	t.Helper()
	list, err := n.Admin().ListActors(t.Context(), 100)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	for _, a := range list[0].Actors {
		if a.ID == id {
			return a.Node
		}
	}
	return ""
}

// When a host joins, active actors move to it without a request of an operator. Actors that are called all the time
// move too. No call fails, and every count continues.
func TestActors_SpreadWhenAHostJoins(t *testing.T) {
	var joins atomic.Bool
	nodes, apps := countersOf(t, func(i int, app *counters) {
		if i == 2 {
			app.hosts = &joins
		}
	}, 2)
	const all = 24
	var calls [all]tally // by actor
	for i := range all {
		calls[i].known(t, nodes[i%2], fmt.Sprint(i))
	}
	var stop []func() tally
	for i := range 6 { // the others are idle
		stop = append(stop, adding(t, nodes[i%3], fmt.Sprint(i)))
	}
	joins.Store(true)
	nodetest.Poll(t, func() error {
		list, err := nodes[0].Admin().ListActors(t.Context(), 100)
		if err != nil || len(list) != 1 || len(list[0].Hosts) != 3 {
			return fmt.Errorf("hosts: %+v %w", list, err)
		}
		for _, h := range list[0].Hosts {
			if h.Actors < all/3-1 || h.Actors > all/3+1 {
				return fmt.Errorf("hosts: %+v", list[0].Hosts)
			}
		}
		return nil
	})
	for i := range all {
		if i < len(stop) {
			calls[i].include(stop[i]())
		}
		if text := calls[i].known(t, nodes[2], fmt.Sprint(i)); !calls[i].fits(text) {
			t.Errorf("after %+v of actor %d the count is %s", calls[i], i, text)
		}
	}
	for i, a := range apps {
		if a.overlap {
			t.Errorf("turns of one actor overlap on node %d", i)
		}
	}
	if apps[2].turns == 0 {
		t.Error("no call has reached an actor on the host that joined")
	}
}

// The health check fails until the actor types of an application are registered. So a client that waits for the health
// check finds the actors. The metadata reports the same in runtimeStatus and hostReady.
func TestActors_HealthWaitsForTheirTypes(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dapr/config" {
			close(asked)
			<-answer
			_, _ = io.WriteString(w, `{"entities":["Counter"]}`)
		}
	}))
	t.Cleanup(app.Close)
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	c := config(t)
	c.App.Port = app.Listener.Addr().(*net.TCPAddr).Port
	n := open(t, c)
	<-asked
	code, text, _ := ask(t, n, http.MethodGet, "/v1.0/healthz", "")
	if code != http.StatusInternalServerError || !strings.Contains(text, "its actor types are not registered yet") {
		t.Errorf("healthz: %d %s", code, text)
	}
	_, text, _ = ask(t, n, http.MethodGet, "/v1.0/metadata", "")
	if !strings.Contains(text, `"runtimeStatus":"INITIALIZING","hostReady":false`) {
		t.Errorf("metadata: %s", text)
	}
	if code, text, _ := ask(t, n, http.MethodGet, "/v1.0/healthz/outbound", ""); code != http.StatusNoContent {
		t.Errorf("outbound: %d %s", code, text)
	}
	release()
	ready(t, n)
	_, text, _ = ask(t, n, http.MethodGet, "/v1.0/metadata", "")
	if !strings.Contains(text, `"type":"Counter"`) || !strings.Contains(text, `"RUNNING","hostReady":true`) {
		t.Errorf("metadata: %s", text)
	}
}

// An application that answers the request for its actor types with an error does not keep its node unready.
func TestActors_HealthDoesNotWaitForWrongConfiguration(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "broken", http.StatusInternalServerError)
	}))
	t.Cleanup(app.Close)
	c := config(t)
	c.App.Port = app.Listener.Addr().(*net.TCPAddr).Port
	ready(t, open(t, c))
}
