package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

// appWord makes this test binary an application: appWord name.
const appWord = "application"

// application responds with its name. With ?slow=name, the instance of that name delays its
// response.
func application(name string) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("slow") == name {
			select {
			case <-time.After(2 * time.Second):
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, name)
	})
	s := http.Server{Addr: "127.0.0.1:" + os.Getenv("APP_PORT"), Handler: handler, ReadHeaderTimeout: time.Minute}
	fmt.Fprintln(os.Stderr, s.ListenAndServe())
	os.Exit(1)
}

// serving returns the flags of a node beside an application.
func serving(t testing.TB, id, name string) []string {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	return []string{"--app-id", id, "--app-port", "8080", "--voters", "1", "--", self, appWord, name}
}

// callers returns a cluster with three nodes: at, through which tests call the application b, and second and third,
// each with an instance of b.
func callers(t *testing.T) (c *faulttest.Cluster, at, second, third *faulttest.Node) {
	t.Helper()
	c = cluster(t, faulttest.Options{})
	var nodes []*faulttest.Node
	for i, flags := range [][]string{{"--app-id", "a", "--voters", "1"}, serving(t, "b", "n2"), serving(t, "b", "n3")} {
		n, err := c.Add(0, flags...)
		must(t, err)
		must(t, n.Start())
		nodes = append(nodes, n)
		if i == 0 {
			must(t, c.Ready(within(t, time.Minute)))
		}
	}
	must(t, c.Ready(within(t, time.Minute)))
	for _, name := range []string{"n2", "n3"} {
		must(t, faulttest.Until(within(t, time.Minute), func() error {
			if got, err := nodes[0].Invoke(t.Context(), "b", "x"); got != name {
				return fmt.Errorf("not called yet: %s; %s answers, %w", name, got, err)
			}
			return nil
		}))
	}
	return c, nodes[0], nodes[1], nodes[2]
}

// called is the result of one call.
type called struct {
	begun, ended time.Time
	by           string // the instance that responded
	err          error
}

// load calls an application continuously through one node.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	calls []called // guarded by mu
}

const workers = 8

func startLoad(t *testing.T, at *faulttest.Node, method string) *load {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop}
	t.Cleanup(l.end)
	for range workers {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				one := called{begun: time.Now()}
				limit, cancel := context.WithTimeout(context.Background(), time.Minute)
				one.by, one.err = at.Invoke(limit, "b", method)
				cancel()
				one.ended = time.Now()
				l.mu.Lock()
				l.calls = append(l.calls, one)
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// since returns the calls that ended after from.
func (l *load) since(from time.Time) []called {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []called
	for _, c := range l.calls {
		if c.ended.After(from) {
			out = append(out, c)
		}
	}
	return out
}

// by counts the calls that an instance served.
func by(calls []called, name string) (n int) {
	for _, c := range calls {
		if c.err == nil && c.by == name {
			n++
		}
	}
	return n
}

// answers waits until an instance has served this many more calls.
func (l *load) answers(t *testing.T, name string, want int, limit time.Duration) time.Duration {
	t.Helper()
	from := time.Now()
	must(t, faulttest.Until(within(t, limit), func() error {
		if n := by(l.since(from), name); n < want {
			return fmt.Errorf("%s has answered %d calls of %d", name, n, want)
		}
		return nil
	}))
	return time.Since(from)
}

// wireTime is how long the end of a connection may take to reach the caller on a busy machine. A call that begins
// within this time may still fail as in flight.
const wireTime = time.Second

// onlyInFlight fails the test if a call failed that was not in flight at the time gone. At most one call per worker
// can be in flight.
func (l *load) onlyInFlight(t *testing.T, gone time.Time) {
	t.Helper()
	failed := 0
	all := l.since(time.Time{})
	for _, c := range all {
		if c.err == nil {
			continue
		}
		failed++
		if c.begun.After(gone.Add(wireTime)) || !strings.Contains(c.err.Error(), "indeterminate") {
			t.Errorf("a call that began %s after the end of the instance failed: %v", c.begun.Sub(gone), c.err)
		}
	}
	if failed > workers {
		t.Errorf("%d calls failed, and %d at most were in flight", failed, workers)
	}
	t.Logf("%d calls, %d failed in flight", len(all), failed)
}

// A killed instance fails only the calls that it was serving. After a restart it gets calls again.
func TestInvoke_KilledInstanceFailsOnlyCallsInFlight(t *testing.T) {
	t.Parallel()
	_, at, second, _ := callers(t)
	for range rounds(t, 2) {
		l := startLoad(t, at, "x")
		l.answers(t, "n2", 100, time.Minute)
		l.answers(t, "n3", 100, time.Minute)
		must(t, second.Kill())
		gone := time.Now()
		l.answers(t, "n3", 500, time.Minute)
		must(t, second.Start())
		t.Logf("called %s after it was started again", l.answers(t, "n2", 1, 20*time.Second).Round(time.Millisecond))
		l.end()
		l.onlyInFlight(t, gone)
	}
}

// An instance that is added under load gets calls within 20 seconds after it is ready, and no call fails.
func TestInvoke_NewInstanceGetsCallsImmediately(t *testing.T) {
	t.Parallel()
	c, at, _, _ := callers(t)
	l := startLoad(t, at, "x")
	for i := range rounds(t, 2) {
		name := fmt.Sprint("n", 4+i)
		n, err := c.Add(0, serving(t, "b", name)...)
		must(t, err)
		begin := time.Now()
		must(t, n.Start())
		must(t, faulttest.Until(within(t, time.Minute), func() error { return n.Healthy(t.Context()) }))
		ready := time.Since(begin)
		took := l.answers(t, name, 1, 20*time.Second)
		t.Logf("ready %s after its start, called %s later", ready.Round(time.Millisecond), took.Round(time.Millisecond))
	}
	l.end()
	for _, c := range l.since(time.Time{}) {
		if c.err != nil {
			t.Error(c.err)
		}
	}
}

// The check of the catalogue, which campaigns use, must fail in these cases.
func TestCatalogue_ListsExactlyTheRunningNodes(t *testing.T) {
	t.Parallel()
	c := cluster(t, faulttest.Options{Flags: []string{"--app-id", "a", "--voters", "1"}})
	for range 2 {
		n, err := c.Add(0)
		must(t, err)
		must(t, n.Start())
		must(t, c.Ready(within(t, time.Minute)))
	}
	must(t, c.Catalogued(within(t, time.Minute), "a"))
	nodes := c.Nodes()
	c.Cut(nodes[0], nodes[1]) // n2 starts again, and n1 does not learn it
	must(t, nodes[1].Kill())
	must(t, c.Catalogued(within(t, time.Minute), "a")) // once n1 knows that it has ended
	must(t, nodes[1].Start())
	if err := c.Catalogued(within(t, 2*time.Second), "a"); err == nil {
		t.Error("a node that is cut off counts as known")
	}
	c.Net.Heal()
	must(t, c.Catalogued(within(t, time.Minute), "a"))
}

// Calls that hang on a partitioned node end when gossip declares it failed.
func TestInvoke_AvoidsAPartitionedNode(t *testing.T) {
	t.Parallel()
	c, at, second, third := callers(t)
	around(t, c, at, func() { c.Cut(at, second); c.Cut(third, second) })
}

// Hanging calls end if only the link between caller and node is cut, although gossip about the node still arrives
// through a third node.
func TestInvoke_AvoidsANodeUnreachableByTheCallerOnly(t *testing.T) {
	t.Parallel()
	c, at, second, _ := callers(t)
	around(t, c, at, func() { c.Cut(at, second) })
}

// around disconnects n2 with away, and later heals the network. Hanging calls must end, and no call may fail while n2
// is known to be unreachable. After the network is healed, n2 must get calls again.
func around(t *testing.T, c *faulttest.Cluster, at *faulttest.Node, away func()) {
	t.Helper()
	l := startLoad(t, at, "x")
	l.answers(t, "n2", 50, time.Minute)
	away()
	cut := time.Now()
	must(t, faulttest.Until(within(t, 30*time.Second), func() error {
		for _, one := range l.since(cut.Add(time.Second)) {
			if one.err != nil {
				return nil
			}
		}
		return errors.New("the calls in flight hang")
	}))
	t.Logf("the calls that hung ended after %s", time.Since(cut).Round(time.Millisecond))
	l.answers(t, "n3", 100, time.Minute)
	calm := time.Now()
	l.answers(t, "n3", 500, time.Minute)
	while := l.since(calm)
	c.Net.Heal()
	t.Logf("called again %s after the link was healed", l.answers(t, "n2", 10, time.Minute).Round(time.Millisecond))
	l.end()
	for _, one := range while {
		if one.begun.After(calm) && one.err != nil {
			t.Errorf("a call while the node was known to be away failed after %s: %v", one.ended.Sub(one.begun),
				one.err)
		}
	}
	failed := 0
	for _, one := range l.since(cut) {
		if one.err != nil {
			failed++
		}
	}
	t.Logf("%d of %d calls failed", failed, len(l.since(cut)))
	if failed > 4*workers { // on a busy machine the node may count as alive once more in between
		t.Errorf("%d calls failed; those of %d workers hung", failed, workers)
	}
}

// A slow instance holds no more calls than the fast one, and does not slow down other calls.
func TestInvoke_SlowInstanceGetsFewerCalls(t *testing.T) {
	t.Parallel()
	_, at, _, _ := callers(t)
	begin := time.Now()
	l := startLoad(t, at, "x?slow=n2")
	l.answers(t, "n2", workers/2, time.Minute)
	l.end()
	all := l.since(begin)
	slow, fast := by(all, "n2"), by(all, "n3")
	if slow+fast != len(all) || slow > 2*workers || fast < 20*slow {
		t.Errorf("%d calls: the slow instance answered %d, the other %d", len(all), slow, fast)
	}
	t.Logf("%d calls: the slow instance answered %d, the other %d", len(all), slow, fast)
}

// Applications with the same id in two namespaces are separate: they share neither calls nor state.
func TestInvoke_NamespacesAreIsolated(t *testing.T) {
	t.Parallel()
	c := cluster(t, faulttest.Options{})
	var nodes []*faulttest.Node
	for i, space := range []string{"red", "red", "blue"} {
		flags := []string{"--app-id", "a", "--voters", "1"}
		if i > 0 {
			flags = serving(t, "b", space)
		}
		n, err := c.Add(0, append([]string{"--namespace", space}, flags...)...)
		must(t, err)
		must(t, n.Start())
		must(t, c.Ready(within(t, time.Minute)))
		nodes = append(nodes, n)
	}
	ctx := within(t, time.Minute)
	for target, want := range map[string]string{"b": "red", "b.red": "red", "b.blue": "blue"} {
		for range 50 {
			var got string
			must(t, faulttest.Until(ctx, func() (err error) {
				got,
					err = nodes[0].Invoke(ctx, target, "x")
				return err
			}))
			if got != want {
				t.Fatalf("a call of %s reached the one in %s", target, got)
			}
		}
	}
	red, blue := nodes[1], nodes[2]
	must(t, red.Do(ctx, faulttest.Set("k", "red", faulttest.Strong)).Err())
	if a := blue.Do(ctx, faulttest.Get("k", faulttest.Strong)); a.Err() != nil || a.Items[0].Value != "" {
		t.Errorf("blue sees %+v", a)
	}
	must(t, blue.Do(ctx, faulttest.Set("k", "blue", faulttest.Strong)).Err())
	for n, want := range map[*faulttest.Node]string{red: "red", blue: "blue"} {
		if a := n.Do(ctx, faulttest.Get("k", faulttest.Strong)); a.Err() != nil || a.Items[0].Value != want {
			t.Errorf("%s sees %+v", want, a)
		}
	}
}
