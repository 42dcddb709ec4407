package discovery_test

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

// clock is set by tests.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.at }

func (c *clock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.at = c.at.Add(d) }

// site is one node's catalogue in a test. The test passes messages between catalogues.
type site struct {
	*discovery.Catalogue
	*prometheus.Registry
	incarnation discovery.Incarnation
	clock       *clock
}

func newSite(t testing.TB, node string) *site {
	t.Helper()
	s := &site{Registry: prometheus.NewRegistry(), incarnation: discovery.Incarnation{Node: node, Boot: "b1"},
		clock: &clock{at: time.Unix(1_000_000, 0)}}
	c, err := discovery.New(discovery.Options{Self: s.incarnation, Server: node + ".d1",
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
		Registerer: s.Registry, Now: s.clock.now, Chance: func(int) int { return 1 }})
	must(t, err)
	s.Catalogue = c
	return s
}

// knows passes to s the records of nodes. Applications are written as "orders" or "orders:unhealthy".
func (s *site) knows(t testing.TB, nodes map[string]string) {
	t.Helper()
	var list []discovery.Member
	for node := range nodes {
		list = append(list, discovery.Member{Incarnation: discovery.Incarnation{Node: node, Boot: "b1"}, Peer: node +
			".d1", State: records.Alive})
	}
	s.Members(list)
	for node, apps := range nodes {
		m := records.New(records.Options{Self: discovery.Incarnation{Node: node, Boot: "b1"}})
		must(t, m.Serve(entries(apps)))
		m.Tick(s.clock.now())
		for _, msg := range m.Broadcasts(0, 1400) {
			s.Notify(msg)
		}
	}
}

func entries(apps string) []records.Entry {
	var out []records.Entry
	for _, text := range strings.Fields(apps) {
		name, how, _ := strings.Cut(text, ":")
		e := records.Entry{App: discovery.ParseApp(name, ""), Protocol: records.HTTP, Healthy: how != "unhealthy"}
		if how == "uncalled" {
			e.Protocol = records.NotCalled
		}
		if how == "busy" {
			e.Load = 5
		}
		out = append(out, e)
	}
	return out
}

var orders = discovery.App{ID: "orders"}

// picks returns the nodes of n consecutive picks. Each call is left outstanding.
func (s *site) picks(t testing.TB, app string, n int) string {
	t.Helper()
	var out []string
	for range n {
		l, err := s.Pick(discovery.ParseApp(app, ""), nil)
		must(t, err)
		out = append(out, l.Instance.Node)
	}
	return strings.Join(out, " ")
}

func TestPick_PrefersLocalInstance(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders"})
	must(t, s.Serve([]discovery.Record{{App: orders, Protocol: "http", Healthy: true}}))
	if got := s.picks(t, "orders", 5); got != "n1 n1 n1 n1 n1" {
		t.Errorf("picked %s", got)
	}
	l, err := s.Pick(orders, nil)
	must(t, err)
	if i := l.Instance; !i.Local || i.Server != "n1.d1" || i.Protocol != "http" {
		t.Errorf("%+v", i)
	}
	s.SetHealth(orders, false)
	if got := s.picks(t, "orders", 1); got != "n2" {
		t.Errorf("with an unhealthy one here picked %s", got)
	}
	s.SetHealth(orders, true)
	if got := s.picks(t, "orders", 1); got != "n1" {
		t.Errorf("with a healthy one here again picked %s", got)
	}
}

func TestPick_PrefersFewestOutstandingCalls(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders", "n3": "orders:busy", "n4": "orders"})
	if got := s.picks(t, "orders", 7); got != "n2 n4 n3 n2 n4 n3 n2" {
		t.Errorf("picked %s", got)
	}
	l, err := s.Pick(orders, nil)
	must(t, err)
	l.Done(discovery.OK)
	l.Done(discovery.OK)
	if again, err := s.Pick(orders, nil); err != nil || again.Instance.Node != l.Instance.Node {
		t.Errorf("after %s was done %v was picked (%v)", l.Instance.Node, again, err)
	}
}

func TestPickInTurn(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders", "n3": "orders:busy", "n4": "orders:unhealthy", "n5": "orders"})
	must(t, s.Serve([]discovery.Record{{App: orders, Protocol: "http", Healthy: true}}))
	turns := func(from, to uint64, not ...discovery.Instance) string {
		var out []string
		for turn := from; turn < to; turn++ {
			l, err := s.PickInTurn(orders, turn, not)
			must(t, err)
			defer l.Done(discovery.Failed)
			out = append(out, l.Instance.Node)
		}
		return strings.Join(out, " ")
	}
	if got := turns(0, 9); got != "n1 n2 n3 n5 n1 n2 n3 n5 n1" {
		t.Errorf("picked %s", got)
	}
	instances := s.View().Instances(orders)
	if got := turns(0, 4, instances[1]); got != "n1 n3 n5 n1" {
		t.Errorf("without n2 picked %s", got)
	}
	l, err := s.PickInTurn(orders, 2, nil)
	must(t, err)
	l.Done(discovery.Unreachable)
	if got := turns(0, 4); l.Instance.Node != "n3" || got != "n1 n2 n5 n1" {
		t.Errorf("%s was not reached, then picked %s", l.Instance.Node, got)
	}
	s.SetHealth(orders, false)
	if got := turns(2, 3, instances[1], instances[4]); got != "n3" { // the last resort
		t.Errorf("with all demoted picked %s", got)
	}
	if _, err := s.PickInTurn(orders, 0, instances); !fault.Is(err, fault.Unavailable) {
		t.Errorf("with all tried: %v", err)
	}
}

func TestPick_DemotesUnreachableInstance(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders", "n3": "orders"})
	first, err := s.Pick(orders, nil)
	must(t, err)
	first.Done(discovery.Unreachable)
	other := map[string]string{"n2": "n3", "n3": "n2"}[first.Instance.Node]
	if got := s.picks(t, "orders", 3); got != strings.TrimSpace(strings.Repeat(other+" ", 3)) {
		t.Errorf("%s was not reached, then picked %s", first.Instance.Node, got)
	}
	s.clock.add(1100 * time.Millisecond)
	if got := s.picks(t, "orders", 3); strings.Count(got, first.Instance.Node) != 1 {
		t.Errorf("after a second one call tries it; picked %s", got)
	}
}

func TestDemotion_EndsWithSuccessAndGrowsWithFailure(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders", "n3": "orders"})
	lease := func(not ...discovery.Instance) *discovery.Lease {
		t.Helper()
		l, err := s.Pick(orders, not)
		must(t, err)
		return l
	}
	n3 := s.View().Instances(orders)[1]
	for range 3 {
		lease(n3).Done(discovery.Unreachable) // n2, the last resort
	}
	s.clock.add(3900 * time.Millisecond)
	if got := lease(); got.Instance.Node != "n3" {
		t.Errorf("after 3.9 s of 4 s %s was picked", got.Instance.Node)
	}
	s.clock.add(200 * time.Millisecond)
	probe := lease()
	if probe.Instance.Node != "n2" {
		t.Errorf("after its time it is tried, not %s", probe.Instance.Node)
	}
	probe.Done(discovery.OK)
	if got := lease(); got.Instance.Node != "n2" {
		t.Errorf("after success it is picked freely, not %s", got.Instance.Node)
	}
}

func TestDemotion_EndsDespiteLongCall(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders", "n3": "orders"})
	n2, n3 := s.View().Instances(orders)[0], s.View().Instances(orders)[1]
	lease := func(not ...discovery.Instance) *discovery.Lease {
		t.Helper()
		l, err := s.Pick(orders, not)
		must(t, err)
		return l
	}
	long := lease(n3) // a stream to n2, which stays open
	defer long.Done(discovery.OK)
	lease(n3).Done(discovery.Unreachable)
	for range 3 {
		defer lease(n2).Done(discovery.OK)
	}
	s.clock.add(1100 * time.Millisecond)
	trial := lease()
	if trial.Instance.Node != "n2" {
		t.Fatalf("after a second one call tries n2, not %s", trial.Instance.Node)
	}
	other := lease()
	defer other.Done(discovery.OK)
	if other.Instance.Node != "n3" {
		t.Errorf("a second call tries %s at the same time", other.Instance.Node)
	}
	trial.Done(discovery.OK)
	if got := lease(); got.Instance.Node != "n2" {
		t.Errorf("after success it is picked freely, not %s", got.Instance.Node)
	}
}

func TestDemotion_EndsWhenNodeComesBack(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders"})
	l, err := s.Pick(orders, nil)
	must(t, err)
	l.Done(discovery.Unreachable)
	n2 := discovery.Member{Incarnation: discovery.Incarnation{Node: "n2", Boot: "b1"}, Peer: "n2.d1",
		State: records.Failed}
	s.Members([]discovery.Member{n2})
	if _, err := s.Pick(orders, nil); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Text(err), "is gone") {
		t.Errorf("a failed node's instance: %v", err)
	}
	n2.State = records.Alive
	s.Members([]discovery.Member{n2})
	l, err = s.Pick(orders, nil)
	must(t, err)
	if n := metric(t, s, "quorate_catalogue_instances", "demoted"); n != 0 || l.Instance.Node != "n2" {
		t.Errorf("%v are demoted still", n)
	}
}

func TestPick_ErrorNamesReasons(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders:unhealthy pay:uncalled", "n3": "orders ship.prod"})
	n3 := s.View().Instances(orders)[1]
	for _, c := range []struct {
		app   string
		tried []discovery.Instance
		code  fault.Code
		words []string
	}{
		{"nobody", nil, fault.NotFound, []string{"nobody", "--app-id"}},
		{"orders", []discovery.Instance{n3}, fault.Unavailable,
			[]string{"node n2 it is not healthy", "node n3 it did not answer"}},
		{"pay", nil, fault.Unavailable, []string{"node n2 has no --app-port"}},
		{"ship", nil, fault.NotFound, []string{"ship"}},
	} {
		_, err := s.Pick(discovery.ParseApp(c.app, ""), c.tried)
		if !fault.Is(err, c.code) {
			t.Errorf("%s: %v", c.app, err)
		}
		for _, w := range c.words {
			if !strings.Contains(fault.Text(err), w) {
				t.Errorf("%s: %q does not say %q", c.app, fault.Text(err), w)
			}
		}
	}
	if _, err := s.Pick(discovery.ParseApp("ship", "prod"), nil); err != nil {
		t.Errorf("in its namespace: %v", err)
	}
}

func TestPick_NamespacesSeparateApplications(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders.prod", "n3": "orders"})
	for name, want := range map[string]string{"orders": "n3", "orders.prod": "n2", "orders.default": "n3"} {
		if got := s.picks(t, name, 1); got != want {
			t.Errorf("%s is on %s, picked %s", name, want, got)
		}
	}
}

func TestView_WatcherSeesLastChange(t *testing.T) {
	s := newSite(t, "n1")
	seen := make(chan int, 1)
	go func() {
		for v := s.View(); ; v = s.View() {
			if n := len(v.All()); n == 50 {
				seen <- n
				return
			}
			<-v.Changed()
		}
	}()
	var all []discovery.Record
	for i := range 50 {
		all = append(all, discovery.Record{App: discovery.App{ID: fmt.Sprint("a", i)}, Healthy: true})
		must(t, s.Serve(all))
	}
	select {
	case <-seen:
	case <-time.After(time.Minute):
		t.Fatal("the watcher stopped before the last change")
	}
}

// Calls are counted while the catalogue changes. The test is meant for the race detector.
func TestPick_CountsCallsDuringChanges(t *testing.T) {
	s := newSite(t, "n1")
	s.knows(t, map[string]string{"n2": "orders", "n3": "orders"})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				l, err := s.Pick(orders, nil)
				if err != nil {
					t.Error(err)
					return
				}
				l.Done(discovery.Outcome(i % 3))
				s.SetLoad(orders, i)
			}
		})
	}
	wg.Go(func() {
		for i := range 200 {
			s.SetHealth(orders, i%2 == 0)
			_ = s.Serve([]discovery.Record{{App: discovery.App{ID: fmt.Sprint("a", i)}}})
		}
	})
	wg.Wait()
	s.clock.add(time.Minute)
	if got := s.picks(t, "orders", 2); got != "n2 n3" && got != "n3 n2" {
		t.Errorf("calls are still counted: picked %s", got)
	}
}

func metric(t testing.TB, s *site, name string, labels ...string) float64 {
	t.Helper()
	families, err := s.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			have := ""
			for _, l := range m.GetLabel() {
				have += l.GetValue() + " "
			}
			if f.GetName() == name && have == strings.Join(append(labels, ""), " ") {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no metric %s %q", name, labels)
	return 0
}

func TestPick_ErrorWhileNodeHasMetNoOther(t *testing.T) {
	web := discovery.App{ID: "web"}
	for name, c := range map[string]struct {
		arrival, passed time.Duration
		members         []string
		alone           bool
	}{
		"it expects no others":     {},
		"it has just started":      {arrival: 2 * time.Second, alone: true},
		"it has met itself":        {arrival: 2 * time.Second, members: []string{"n1"}, alone: true},
		"it has met another":       {arrival: 2 * time.Second, members: []string{"n1", "n2"}},
		"its time to arrive ended": {arrival: 2 * time.Second, passed: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			at := &clock{at: time.Unix(1_000_000, 0)}
			d, err := discovery.New(discovery.Options{
				Self: discovery.Incarnation{Node: "n1", Boot: "b1"}, Arrival: c.arrival, Now: at.now,
				Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
			})
			must(t, err)
			defer func() { must(t, d.Close()) }()
			var list []discovery.Member
			for _, node := range c.members {
				list = append(list, discovery.Member{Incarnation: discovery.Incarnation{Node: node, Boot: "b1"},
					State: records.Alive})
			}
			d.Members(list)
			at.add(c.passed)
			_, err = d.Pick(web, nil)
			alone := fault.Is(err, fault.Unavailable) && strings.Contains(err.Error(), "has not met another node yet")
			if err == nil || alone != c.alone {
				t.Errorf("%v", err)
			}
			young := c.passed < 3*time.Second
			if want := young && (c.arrival > 0 || len(c.members) > 0); d.Settling(web) != want {
				t.Errorf("settling %v, want %v", !want, want)
			}
		})
	}
}
