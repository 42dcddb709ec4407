package api_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// bindingSet is a BindingSource.
type bindingSet struct {
	list   []*bindings.Instance
	loaded bool
}

func (s *bindingSet) Binding(name string) (*bindings.Instance, bool) {
	i := slices.IndexFunc(s.list, func(b *bindings.Instance) bool { return b.Name == name })
	if i < 0 {
		return nil, false
	}
	return s.list[i], true
}

func (s *bindingSet) Loaded() bool { return s.loaded }

// echo is a binding that answers with its request, or fails if the data request it.
type echo struct{}

func (echo) Operations() []string { return []string{"create", "get"} }

func (echo) Invoke(_ context.Context, r bindings.Request) (*bindings.Response, error) {
	switch string(r.Data) {
	case "bare":
		return nil, errors.New("a secret of the system")
	case "down":
		return &bindings.Response{Metadata: map[string]string{"statusCode": "502"}},
			fault.New(fault.Unavailable, "echo", "it is down")
	case "none":
		return nil, nil
	}
	return &bindings.Response{Data: r.Data}, nil
}

func TestInvokeBinding_ErrorsNameBindingAndFix(t *testing.T) {
	both := bindings.Binding{Output: echo{}, Input: &source{}}
	set := &bindingSet{loaded: true, list: []*bindings.Instance{
		{Name: "out", Binding: both}, {Name: "in", Direction: bindings.Direction{Input: true}, Binding: both},
		{Name: "other", Scopes: []string{"billing"}, Binding: both},
	}}
	service := api.NewBindings(api.App{ID: "shop"}, set, nil)
	for _, row := range []struct {
		name, operation, data, want string
	}{
		{"out", "", "", `"operation" is missing`},
		{"absent", "create", "", "couldn't find output binding absent"},
		{"in", "create", "", "only receives"},
		{"other", "create", "", "couldn't find output binding other"},
		{"out", "erase", "", "supported operations: create, get"},
		{"out", "create", "down", "it is down"},
		{"out", "create", "bare", "the node's log has the details"},
	} {
		_, err := service.Invoke(t.Context(), row.name,
			bindings.Request{Operation: row.operation, Data: []byte(row.data)})
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != "ERR_INVOKE_OUTPUT_BINDING" || e.Kind != api.Failed ||
			!strings.HasPrefix(e.Message, "error invoking output binding "+row.name+": ") ||
			!strings.Contains(e.Message, row.want) || strings.Contains(e.Message, "secret") {
			t.Errorf("%v: %v", row, err)
		}
	}
	if r, err := service.Invoke(t.Context(), "out",
		bindings.Request{Operation: "create", Data: []byte("down")}); err == nil || r.Metadata["statusCode"] != "502" {
		t.Errorf("the system's answer is lost: %v, %v", r, err)
	}
	if r, err := service.Invoke(t.Context(), "out",
		bindings.Request{Operation: "CREATE", Data: []byte("1")}); err != nil || string(r.Data) != "1" {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := service.Invoke(t.Context(), "out",
		bindings.Request{Operation: "create", Data: []byte("none")}); err != nil || r != nil {
		t.Errorf("%v, %v", r, err)
	}
	set.loaded = false
	if _, err := service.Invoke(t.Context(), "absent", bindings.Request{Operation: "create"}); err == nil ||
		!strings.Contains(err.Error(), "being loaded") {
		t.Errorf("%v", err)
	}
}

// failing is a binding that fails with one error after the other.
type failing struct {
	echo
	errs []error
}

func (f *failing) Invoke(context.Context, bindings.Request) (*bindings.Response, error) {
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, err
}

// An attempt that may have been executed makes the whole request indeterminate, unless a later one succeeds.
func TestInvokeBinding_KeepsTheUnknownOutcomeOfAnEarlierAttempt(t *testing.T) {
	unknown := fault.New(fault.Indeterminate, "test", "no answer")
	refused := fault.New(fault.Unavailable, "test", "it is down")
	for _, row := range []struct {
		errs []error
		want fault.Code
		text string
	}{
		{[]error{unknown, refused}, fault.Indeterminate, "may have been executed"},
		{[]error{unknown, errors.New("a secret of the system")}, fault.Indeterminate, "may have been executed"},
		{[]error{refused, unknown}, fault.Indeterminate, "no answer"},
		{[]error{refused, refused}, fault.Unavailable, "it is down"},
		{[]error{unknown, nil}, "", ""},
	} {
		set := &bindingSet{loaded: true, list: []*bindings.Instance{
			{Name: "out", Binding: bindings.Binding{Output: &failing{errs: row.errs}}}}}
		policy := &resiliency.Policy{Retry: &resiliency.Retry{Pause: time.Nanosecond, Max: 1}}
		service := api.NewBindings(api.App{ID: "shop"}, set, func(string) *resiliency.Policy { return policy })
		_, err := service.Invoke(t.Context(), "out", bindings.Request{Operation: "create"})
		if row.want == "" {
			if err != nil {
				t.Errorf("%v: %v", row.errs, err)
			}
			continue
		}
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Details.Reason != string(row.want) || !strings.Contains(e.Message, row.text) ||
			strings.Contains(e.Message, "secret") {
			t.Errorf("%v: %v", row.errs, err)
		}
	}
}

// source is an input binding whose start can fail.
type source struct {
	mu       sync.Mutex
	failures int
	sink     bindings.Sink
}

func (s *source) Start(_ context.Context, to bindings.Sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 {
		s.failures--
		return fault.New(fault.Unavailable, "source", "it is down")
	}
	s.sink = to
	return nil
}

func (s *source) started() bindings.Sink {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink
}

// application is an EventReceiver with settable answers.
type application struct {
	mu      sync.Mutex
	healthy bool
	takes   bool
	asked   int
	failing int
	taken   []string
}

func (a *application) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func (a *application) Healthy() (bool, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.healthy, "its port is closed"
}

func (a *application) Takes(context.Context, string, string) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	return a.takes, nil
}

func (a *application) Take(_ context.Context, binding, path string, e bindings.Event) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failing > 0 {
		a.failing--
		return nil, fault.New(fault.Internal, "app", "it answered 500")
	}
	a.taken = append(a.taken, binding+" "+path+" "+string(e.Data))
	return []byte("ok"), nil
}

func inputs(a *application, retry func(context.Context, string, func(context.Context) error) error,
	list ...*bindings.Instance) *api.Inputs {
	return api.NewInputs(api.InputsConfig{App: api.App{ID: "shop"}, Receiver: a, Bindings: list, Retry: retry,
		Logger: slog.New(slog.DiscardHandler)})
}

func TestInputs_StartWhenAppIsHealthyAndAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &application{takes: true}
		s := &source{failures: 2}
		in := inputs(a, nil, &bindings.Instance{Name: "events", Route: "take/this",
			Binding: bindings.Binding{Input: s}},
			&bindings.Instance{Name: "output only", Binding: bindings.Binding{Output: echo{}}},
			&bindings.Instance{Name: "of another", Scopes: []string{"billing"},
				Binding: bindings.Binding{Input: &source{}}})
		go in.Run(t.Context())
		<-time.After(time.Hour)
		if s.started() != nil || len(in.Statuses()) != 1 || in.Statuses()[0].State != api.InputWaiting {
			t.Errorf("before the application is healthy: %v", in.Statuses())
		}
		a.set(func() { a.healthy = true })
		<-time.After(10 * time.Second)
		if got := in.Statuses()[0]; got.State != api.InputRunning {
			t.Fatalf("%v", got)
		}
		answer, err := s.started().Deliver(t.Context(), bindings.Event{Data: []byte("e")})
		if err != nil || string(answer) != "ok" || !slices.Equal(a.taken, []string{"events take/this e"}) {
			t.Errorf("%q, %v, %v", answer, err, a.taken)
		}
	})
}

func TestInputs_NotStartedIfAppDeclines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &application{healthy: true}
		s, forced := &source{}, &source{}
		in := inputs(a, nil, &bindings.Instance{Name: "events", Binding: bindings.Binding{Input: s}},
			&bindings.Instance{Name: "forced", Direction: bindings.Direction{Input: true},
				Binding: bindings.Binding{Input: forced}})
		in.Run(t.Context())
		if s.started() != nil || in.Statuses()[0].State != api.InputUnwanted {
			t.Errorf("%v", in.Statuses())
		}
		if forced.started() == nil || a.asked != 1 {
			t.Errorf("a binding with direction input must be started without a probe (%d probes)", a.asked)
		}
	})
}

func TestInputs_NoDeliveryIfAppUnhealthyOrNodeStopping(t *testing.T) {
	a := &application{healthy: true, takes: true}
	s := &source{}
	in := inputs(a, nil, &bindings.Instance{Name: "events", Binding: bindings.Binding{Input: s}})
	in.Run(t.Context())
	deliver := func(want fault.Code, text string) {
		t.Helper()
		_, err := s.started().Deliver(t.Context(), bindings.Event{})
		if fault.CodeOf(err) != want || err != nil && !strings.Contains(err.Error(), text) ||
			s.started().Ready() != (err == nil) {
			t.Errorf("%v, ready %v", err, s.started().Ready())
		}
	}
	deliver("", "")
	a.set(func() { a.healthy = false })
	deliver(fault.Unavailable, "its port is closed")
	a.set(func() { a.healthy = true })
	deliver("", "")
	in.Stop()
	deliver(fault.Unavailable, "stopping")
	claimed := bindings.Event{Claimed: true}
	if _, err := s.started().Deliver(t.Context(), claimed); err != nil {
		t.Errorf("a claimed event at a stopping node: %v", err)
	}
	a.set(func() { a.healthy = false })
	if _, err := s.started().Deliver(t.Context(), claimed); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a claimed event at an unhealthy application: %v", err)
	}
}

func TestInputs_PolicyRetriesDelivery(t *testing.T) {
	a := &application{healthy: true, takes: true, failing: 2}
	s := &source{}
	thrice := func(ctx context.Context, _ string, attempt func(context.Context) error) (err error) {
		for range 3 {
			if err = attempt(ctx); err == nil {
				return nil
			}
		}
		return err
	}
	in := inputs(a, thrice, &bindings.Instance{Name: "events", Binding: bindings.Binding{Input: s}})
	in.Run(t.Context())
	if answer, err := s.started().Deliver(t.Context(), bindings.Event{}); err != nil || string(answer) != "ok" {
		t.Errorf("%q, %v", answer, err)
	}
	a.set(func() { a.failing = 3 })
	if _, err := s.started().Deliver(t.Context(), bindings.Event{}); !fault.Is(err, fault.Internal) {
		t.Errorf("%v", err)
	}
}
