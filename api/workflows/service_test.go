package workflows_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/workflowtest"
	"github.com/quorate/quorate/internal/fault"
)

func newService(t *testing.T, namespace string) (*workflows.Service, *workflowtest.Memory) {
	t.Helper()
	m := workflowtest.NewMemory()
	t.Cleanup(m.Close)
	return workflows.New(workflows.Options{App: api.App{ID: "shop", Namespace: namespace}, Engine: m}), m
}

// Every method of TaskHubSidecarService whose request can name an application refuses the request for another
// application.
func TestService_RefusesInstancesOfOtherApplications(t *testing.T) {
	s, m := newService(t, "")
	ctx := context.Background()
	for app, owner := range map[string]string{"bank": "bank", "bank.eu": "bank.eu"} {
		if err := m.Start(ctx, owner, &protos.CreateInstanceRequest{InstanceId: "a", Name: "order"}); err != nil {
			t.Fatal(err)
		}
		to := &protos.TaskRouter{TargetAppID: proto.String(app)}
		refusesRouter(t, s, to)
		if _, err := m.State(ctx, owner, "a", false); err != nil {
			t.Errorf("the instance of %s: %v", app, err)
		}
	}
	refusesRouter(t, s, &protos.TaskRouter{TargetAppNamespace: proto.String("other")})
	refusesRouter(t, s, &protos.TaskRouter{TargetAppID: proto.String("shop"),
		TargetAppNamespace: proto.String("other")})
}

func refusesRouter(t *testing.T, s *workflows.Service, to *protos.TaskRouter) {
	t.Helper()
	ctx := context.Background()
	purge := func(r *protos.PurgeInstancesRequest) error {
		r.Router, r.Recursive, r.Force = to, true, proto.Bool(true)
		_, _, err := s.PurgeInstances(ctx, r)
		return err
	}
	for method, call := range map[string]func() error{
		"StartInstance": func() error {
			_, err := s.StartInstance(ctx, &protos.CreateInstanceRequest{InstanceId: "b", Name: "order", Router: to})
			return err
		},
		"GetInstance": func() error {
			_, err := s.GetInstance(ctx, &protos.GetInstanceRequest{InstanceId: "a", Router: to})
			return err
		},
		"WaitFor": func() error {
			_, err := s.WaitFor(ctx, &protos.GetInstanceRequest{InstanceId: "a", Router: to}, workflow.Completed)
			return err
		},
		"RaiseEvent": func() error {
			return s.RaiseEvent(ctx, &protos.RaiseEventRequest{InstanceId: "a", Name: "x", Router: to})
		},
		"TerminateInstance": func() error {
			return s.TerminateInstance(ctx, &protos.TerminateRequest{InstanceId: "a", Router: to})
		},
		"SuspendInstance": func() error {
			return s.SuspendInstance(ctx, &protos.SuspendRequest{InstanceId: "a", Router: to})
		},
		"ResumeInstance": func() error {
			return s.ResumeInstance(ctx, &protos.ResumeRequest{InstanceId: "a", Router: to})
		},
		"PurgeInstances of one": func() error {
			return purge(&protos.PurgeInstancesRequest{Request: &protos.PurgeInstancesRequest_InstanceId{
				InstanceId: "a"}})
		},
		"PurgeInstances by filter": func() error {
			return purge(&protos.PurgeInstancesRequest{Request: &protos.PurgeInstancesRequest_PurgeInstanceFilter{
				PurgeInstanceFilter: &protos.PurgeInstanceFilter{}}})
		},
		"Rerun": func() error {
			_, err := s.Rerun(ctx, &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "a", Router: to})
			return err
		},
	} {
		if err := call(); err == nil || api.AsError(err).Kind != api.Denied {
			t.Errorf("%s to %v: error %v, want one of kind denied", method, to, err)
		}
	}
}

func TestService_AcceptsItsOwnName(t *testing.T) {
	for namespace, named := range map[string]string{"": "default", "default": "default", "prod": "prod"} {
		s, m := newService(t, namespace)
		w := workflowtest.Connect(t, m, workflows.Owner(api.App{ID: "shop", Namespace: namespace}))
		r := &protos.CreateInstanceRequest{InstanceId: "a", Name: "order", Router: &protos.TaskRouter{
			SourceAppID: "forged", TargetAppID: proto.String("shop"), TargetAppNamespace: proto.String(named)}}
		done := make(chan error, 1)
		go func() {
			_, err := s.StartInstance(context.Background(), r)
			done <- err
		}()
		turn := w.Turn("a")
		if turn.GetNewEvents()[1].GetRouter() != nil {
			t.Errorf("the start has the router of the client: %v", turn.GetNewEvents()[1])
		}
		turn.Do(workflowtest.Complete(0, ""))
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// longEngine has an instance whose history has events of 1 MiB.
type longEngine struct {
	*workflowtest.Memory
	events int
	reads  chan chan struct{} // nil = reads do not wait
}

func (e *longEngine) History(_ context.Context, _, _ string, first, limit int) ([]*protos.HistoryEvent, bool, error) {
	if e.reads != nil {
		proceed := make(chan struct{})
		e.reads <- proceed
		<-proceed
	}
	var page []*protos.HistoryEvent
	for n := first; n < e.events && len(page) < min(limit, 8); n++ {
		page = append(page, &protos.HistoryEvent{EventId: int32(n), EventType: &protos.HistoryEvent_EventRaised{
			EventRaised: &protos.EventRaisedEvent{Input: wrapperspb.String(strings.Repeat("x", 1<<20-100))}}})
	}
	return page, first+len(page) < e.events, nil
}

func newLong(events int) (*workflows.Service, *longEngine) {
	e := &longEngine{Memory: workflowtest.NewMemory(), events: events}
	return workflows.New(workflows.Options{App: api.App{ID: "shop"}, Engine: e}), e
}

func TestService_HistoryReservesMemoryBeforeItReads(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		events int
		rooms  []int64
		fails  bool
	}{
		{0, []int64{128 << 10}, false},
		{3, []int64{128 << 10, 4 << 20}, false},
		{60, []int64{128 << 10, 4 << 20, 64 << 20}, false},
		{66, []int64{128 << 10, 4 << 20, 64 << 20}, true},
	} {
		s, _ := newLong(c.events)
		var rooms []int64
		out, err := s.GetInstanceHistory(ctx, "a", func(n int64) error {
			rooms = append(rooms, n)
			return nil
		})
		if !slices.Equal(rooms, c.rooms) || (err != nil) != c.fails {
			t.Errorf("%d events: reserved %v, error %v", c.events, rooms, err)
		}
		if c.fails {
			if !strings.Contains(err.Error(), "more than 64 MiB") {
				t.Errorf("error %v", err)
			}
			continue
		}
		raw, err := proto.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		got := &protos.GetInstanceHistoryResponse{}
		if err := proto.Unmarshal(raw, got); err != nil || len(got.GetEvents()) != c.events {
			t.Errorf("%d events, want %d, error %v", len(got.GetEvents()), c.events, err)
		}
		for n, e := range got.GetEvents() {
			if int(e.GetEventId()) != n {
				t.Fatalf("event %d has the id %d", n, e.GetEventId())
			}
		}
	}
	s, _ := newLong(1)
	full := errors.New("full")
	if _, err := s.GetInstanceHistory(ctx, "a", func(int64) error { return full }); !errors.Is(err, full) {
		t.Errorf("without memory: %v", err)
	}
}

func TestService_HistoriesAreReadOneAfterAnother(t *testing.T) {
	s, e := newLong(0)
	e.reads = make(chan chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 3)
	read := func(ctx context.Context) {
		_, err := s.GetInstanceHistory(ctx, "a", func(int64) error { return nil })
		done <- err
	}
	go read(ctx)
	first := <-e.reads
	go read(ctx)
	gone, leave := context.WithCancel(ctx)
	go read(gone)
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was given up: %v", err)
	}
	select {
	case <-e.reads:
		t.Error("two calls read at a time")
	default:
	}
	close(first)
	if err := <-done; err != nil {
		t.Error(err)
	}
	close(<-e.reads)
	if err := <-done; err != nil {
		t.Error(err)
	}
	cancel()
}

// Start and Raise refuse payloads that are not UTF-8, because the engine stores them as protobuf strings.
func TestService_RefusesPayloadsThatAreNoText(t *testing.T) {
	s, _ := newService(t, "")
	ctx, odd := context.Background(), wrapperspb.String("\xff\xfe")
	if _, err := s.Start(ctx, &workflows.StartRequest{ID: "a", Workflow: "order"}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Start(ctx, &workflows.StartRequest{ID: "b", Workflow: "order", Input: odd})
	for what, err := range map[string]error{"start": err, "raise": s.Raise(ctx, "a", "", "x", odd)} {
		if err == nil || api.AsError(err).Kind != api.Malformed || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%s: error %v", what, err)
		}
	}
}

// headless is an engine whose group loses its leader once an instance is created.
type headless struct{ *workflowtest.Memory }

func (headless) Wait(context.Context, string, string, workflow.Until, bool) (*protos.WorkflowState, error) {
	return nil, fault.New(fault.Unavailable, "test", "no leader")
}

func (headless) Rerun(context.Context, string, *protos.RerunWorkflowFromEventRequest) (string, error) {
	return "again", nil
}

// A start succeeds once the instance exists, even if the wait for its first turn fails.
func TestService_StartSucceedsOnceTheInstanceExists(t *testing.T) {
	m := workflowtest.NewMemory()
	t.Cleanup(m.Close)
	s := workflows.New(workflows.Options{App: api.App{ID: "shop"}, Engine: headless{m}})
	id, err := s.StartInstance(t.Context(), &protos.CreateInstanceRequest{InstanceId: "a", Name: "order"})
	if err != nil || id != "a" {
		t.Errorf("the start is answered with %q, %v", id, err)
	}
	if _, err := m.State(t.Context(), "shop", "a", false); err != nil {
		t.Error(err)
	}
	id, err = s.Rerun(t.Context(), &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "a"})
	if err != nil || id != "again" {
		t.Errorf("the rerun is answered with %q, %v", id, err)
	}
}

// A change that is stored may take effect later, even if the wait for its effect fails. So the error must not report
// that the change was not executed.
func TestService_StoredChangeIsIndeterminate(t *testing.T) {
	m := workflowtest.NewMemory()
	t.Cleanup(m.Close)
	s := workflows.New(workflows.Options{App: api.App{ID: "shop"}, Engine: headless{m}})
	ctx := t.Context()
	if err := m.Start(ctx, "shop", &protos.CreateInstanceRequest{InstanceId: "a", Name: "order"}); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"suspend":   s.SuspendInstance(ctx, &protos.SuspendRequest{InstanceId: "a"}),
		"resume":    s.ResumeInstance(ctx, &protos.ResumeRequest{InstanceId: "a"}),
		"terminate": s.TerminateInstance(ctx, &protos.TerminateRequest{InstanceId: "a"}),
	} {
		e := api.AsError(err)
		if err == nil || e.Kind != api.Indeterminate || e.Details.Reason != api.ReasonIndeterminate ||
			!strings.Contains(e.Message, "is stored") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A traceparent is a header, which may have any bytes. One that is malformed is ignored, as W3C Trace Context says.
func TestTrace_IgnoresMalformedParents(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, parent := range []string{"00-" + id + "-\xff\xfef067aa0ba902b-01", "00-" + id + "-00f067aa0ba902b7-\xff1",
		"00-" + id + "-00f067aa0ba902b7-01\xff", "00-" + id + "-0-f067aa0ba902b7-01",
		"x0-" + id + "-00f067aa0ba902b7-01",
		"00-" + id + "-0000000000000000-01", "00-" + id + "-00f067aa0ba902b7-01-more", "", "00-" + id} {
		if c := workflows.Trace(parent); c != nil {
			t.Errorf("%q became %v", parent, c)
		}
	}
	for parent, want := range map[string]string{
		"00-" + id + "-00f067aa0ba902b7-01":      "00-" + id + "-00f067aa0ba902b7-01",
		"cc-" + id + "-00f067aa0ba902b7-01-more": "cc-" + id + "-00f067aa0ba902b7-01-more",
	} {
		//lint:ignore SA1019 older workers read it
		if c := workflows.Trace(parent); c.GetTraceParent() != want || c.GetSpanID() != "00f067aa0ba902b7" {
			t.Errorf("%q became %v", parent, c)
		}
	}
}
