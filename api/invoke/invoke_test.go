package invoke_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

// cluster is an application on several nodes. Some of them cannot be reached.
type cluster struct {
	nodes []string
	down  []string

	mu          sync.Mutex // guards what follows
	picks       int
	outstanding int
	called      []string
	checks      int // calls of Settling
	settles     int // number of calls for which Settling returns true
	arrives     int // the call of Settling at which an instance becomes known
}

func (c *cluster) Pick(app api.App, tried []discovery.Instance) (*discovery.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range c.nodes {
		if slices.ContainsFunc(tried, func(i discovery.Instance) bool { return i.Node == node }) {
			continue
		}
		c.picks++
		c.outstanding++
		return discovery.NewLease(discovery.Instance{App: app, Node: node}, func(discovery.Outcome) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.outstanding--
		}), nil
	}
	return nil, fault.New(fault.Unavailable, "test", "no other instance")
}

func (c *cluster) Settling(api.App) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks++
	if c.checks == c.arrives {
		c.nodes = append(c.nodes, "late")
	}
	return c.checks < c.settles
}

func (c *cluster) Carry(at *discovery.Instance, in *invoke.Inbound) (invoke.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.called = append(c.called, at.Node)
	if slices.Contains(c.down, at.Node) {
		return invoke.Answer{}, fault.New(fault.Unavailable, "test", "node "+at.Node+" cannot be reached")
	}
	return invoke.Answer{Response: &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody,
		Request: in.Request}}, nil
}

// caller returns the invocation service of an application without routes.
func caller(t *testing.T) (*invoke.Service, *invoke.Routes) {
	t.Helper()
	return callerWith(t, resiliency.NewPolicies())
}

func callerWith(t *testing.T, policies *resiliency.Policies) (*invoke.Service, *invoke.Routes) {
	t.Helper()
	metrics, err := invoke.NewMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	sessions, routes := api.NewSessions(nil), &invoke.Routes{}
	return invoke.New(api.App{ID: "shop"}, invoke.Parts{
		Routes: routes, Here: invoke.NewCallee(sessions, metrics, apitest.Untraced{}), Sessions: sessions,
		Policies: policies, Tracer: apitest.Untraced{}, Metrics: metrics,
		Logger: slog.New(slog.DiscardHandler),
	}), routes
}

func call(ctx context.Context, i *invoke.Service) error {
	_, err := i.Do(ctx, &invoke.Call{
		Target: "web", Verb: http.MethodPost, Path: "/x", Header: http.Header{},
		Body: io.NopCloser(strings.NewReader("text")), Length: 4,
	})
	return err
}

func (c *cluster) call(ctx context.Context, t *testing.T) error {
	t.Helper()
	invoke, routes := caller(t)
	routes.Open(c, c)
	return call(ctx, invoke)
}

func TestInvoke_RetryPicksOneInstanceOnce(t *testing.T) {
	c := &cluster{nodes: []string{"n1", "n2", "n3"}, down: []string{"n1", "n2"}}
	if err := c.call(t.Context(), t); err != nil {
		t.Fatal(err)
	}
	if c.picks != 3 || c.outstanding != 0 || !slices.Equal(c.called, []string{"n1", "n2", "n3"}) {
		t.Errorf("%d picks, %d not given back, called %v", c.picks, c.outstanding, c.called)
	}
}

func TestInvoke_WaitsForAnApplicationThatIsNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			cluster *cluster
			calls   int
		}{
			"it becomes known":       {&cluster{settles: 10, arrives: 5}, 1},
			"it does not":            {&cluster{settles: 10}, 0},
			"nothing is on its way":  {&cluster{}, 0},
			"it is known at once":    {&cluster{nodes: []string{"n1"}, settles: 10}, 1},
			"it comes at the end of": {&cluster{settles: 3, arrives: 2}, 1},
		} {
			err := c.cluster.call(t.Context(), t)
			if (err == nil) != (c.calls == 1) || len(c.cluster.called) != c.calls || c.cluster.outstanding != 0 {
				t.Errorf("%s: %v, called %v", name, err, c.cluster.called)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		forever := &cluster{settles: 1 << 30}
		if err := forever.call(ctx, t); err == nil || forever.checks > 1 {
			t.Errorf("the caller has gone: %v, %d checks", err, forever.checks)
		}
	})
}

func TestInvoke_GivesBackEveryInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]*cluster{
			"one down": {nodes: []string{"n1"}, down: []string{"n1"}},
			"two down": {nodes: []string{"n1", "n2"}, down: []string{"n1", "n2"}},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.call(ctx, t) }()
			synctest.Wait() // until the call pauses before a retry
			cancel()
			if err := <-ended; err == nil || c.outstanding != 0 || len(c.called) == 0 {
				t.Errorf("%s: %v, %d not given back of %v", name, err, c.outstanding, c.called)
			}
			if err := c.call(t.Context(), t); err == nil || c.outstanding != 0 {
				t.Errorf("%s, all retries: %v, %d not given back", name, err, c.outstanding)
			}
		}
	})
}

// unsteady is an application for which the n-th attempt fails with the n-th code. An empty code stands for an answer
// with the status 500.
type unsteady struct {
	*cluster
	codes []fault.Code
}

func (u *unsteady) Carry(_ *discovery.Instance, in *invoke.Inbound) (invoke.Answer, error) {
	code := u.codes[0]
	if u.codes = u.codes[1:]; code != "" {
		return invoke.Answer{}, fault.New(code, "test", "attempt")
	}
	return invoke.Answer{Response: &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{},
		Body: http.NoBody, Request: in.Request}}, nil
}

// If an earlier attempt may have reached the application, the error must not claim that the call was not executed.
func TestInvoke_EarlierAttemptMayHaveBeenExecuted(t *testing.T) {
	for name, c := range map[string]struct {
		codes []fault.Code
		pause time.Duration
		want  api.Kind
	}{
		"unreachable twice":               {[]fault.Code{fault.Unavailable, fault.Unavailable}, 1, api.Unavailable},
		"unreachable, then unanswered":    {[]fault.Code{fault.Unavailable, fault.Indeterminate}, 1, api.Indeterminate},
		"unanswered, then unreachable":    {[]fault.Code{fault.Indeterminate, fault.Unavailable}, 1, api.Indeterminate},
		"unanswered, then in the queue":   {[]fault.Code{fault.Indeterminate, fault.Timeout}, 1, api.Indeterminate},
		"refused, then unreachable":       {[]fault.Code{fault.Corrupt, fault.Unavailable}, 1, api.Indeterminate},
		"answered, then unreachable":      {[]fault.Code{"", fault.Unavailable}, 1, api.Indeterminate},
		"answered, then the caller goes":  {[]fault.Code{""}, time.Hour, api.Indeterminate},
		"unreachable, then forbidden":     {[]fault.Code{fault.Unavailable, fault.Denied}, 1, api.Denied},
		"unanswered, then not answerable": {[]fault.Code{fault.Indeterminate, fault.Corrupt}, 1, api.BadAnswer},
	} {
		synctest.Test(t, func(t *testing.T) {
			policies := resiliency.NewPolicies()
			policies.Set(nil, &resiliency.Policy{Retry: &resiliency.Retry{Max: 1, Pause: c.pause}})
			service, routes := callerWith(t, policies)
			u := &unsteady{cluster: &cluster{nodes: []string{"n1"}}, codes: c.codes}
			routes.Open(u, u)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := call(ctx, service)
			if err == nil || api.AsError(err).Kind != c.want || len(u.codes) > 0 || u.outstanding != 0 {
				t.Errorf("%s: %v of kind %v, want %v", name, err, api.AsError(err).Kind, c.want)
			}
		})
	}
}

func TestRoutes_UnavailableBeforeOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		invoke, routes := caller(t)
		if err := call(t.Context(), invoke); api.AsError(err).Kind != api.Unavailable ||
			!strings.Contains(err.Error(), "the node is starting") {
			t.Error(err)
		}
		c := &cluster{nodes: []string{"n1"}}
		routes.Open(c, c)
		if err := call(t.Context(), invoke); err != nil {
			t.Error(err)
		}
	})
}
