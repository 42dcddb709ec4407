package node_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// streamed is an application that hosts actors over a stream. It answers a call of the method m with "m of id".
type streamed struct {
	out runtimev1.Dapr_SubscribeActorEventsAlpha1Client

	mu   sync.Mutex
	seen []string
	err  error // the error that ended the stream
}

func newStreamed(t *testing.T, n *node.Node, types ...string) *streamed {
	t.Helper()
	out, err := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0])).SubscribeActorEventsAlpha1(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &streamed{out: out}
	s.send(&runtimev1.SubscribeActorEventsRequestAlpha1{
		RequestType: &runtimev1.SubscribeActorEventsRequestAlpha1_InitialRequest{
			InitialRequest: &runtimev1.SubscribeActorEventsRequestInitialAlpha1{Entities: types,
				ActorIdleTimeout: durationpb.New(time.Hour)}}})
	first, err := out.Recv()
	if err != nil || first.GetInitialResponse() == nil {
		t.Fatal(first, err)
	}
	go s.run()
	return s
}

func (s *streamed) send(m *runtimev1.SubscribeActorEventsRequestAlpha1) { _ = s.out.Send(m) }

func (s *streamed) run() {
	for {
		m, err := s.out.Recv()
		if err != nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
			return
		}
		switch {
		case m.GetInvokeRequest() != nil:
			s.invoke(m.GetInvokeRequest())
		case m.GetReminderRequest() != nil:
			r := m.GetReminderRequest()
			s.note("reminder", r.GetActorId(), r.GetName(), r.GetDueTime(), r.GetPeriod(), r.GetData().String())
			s.send(&runtimev1.SubscribeActorEventsRequestAlpha1{
				RequestType: &runtimev1.SubscribeActorEventsRequestAlpha1_ReminderResponse{
					ReminderResponse: &runtimev1.SubscribeActorEventsRequestReminderResponseAlpha1{Id: r.GetId(),
						Cancel: r.GetName() == "cancel"}}})
		case m.GetTimerRequest() != nil:
			r := m.GetTimerRequest()
			s.note("timer", r.GetActorId(), r.GetName(), r.GetDueTime(), r.GetPeriod(), r.GetCallback())
			s.send(&runtimev1.SubscribeActorEventsRequestAlpha1{
				RequestType: &runtimev1.SubscribeActorEventsRequestAlpha1_TimerResponse{
					TimerResponse: &runtimev1.SubscribeActorEventsRequestReminderResponseAlpha1{Id: r.GetId()}}})
		case m.GetDeactivateRequest() != nil:
			r := m.GetDeactivateRequest()
			s.note("deactivate", r.GetActorId())
			s.send(&runtimev1.SubscribeActorEventsRequestAlpha1{
				RequestType: &runtimev1.SubscribeActorEventsRequestAlpha1_DeactivateResponse{
					DeactivateResponse: &runtimev1.SubscribeActorEventsRequestDeactivateResponseAlpha1{Id: r.GetId()}}})
		}
	}
}

func (s *streamed) invoke(r *runtimev1.SubscribeActorEventsResponseInvokeRequestAlpha1) {
	s.note("invoke", r.GetActorId(), r.GetMethod(), string(r.GetData()), r.GetMetadata()["content-type"])
	answer := &runtimev1.SubscribeActorEventsRequestAlpha1{
		RequestType: &runtimev1.SubscribeActorEventsRequestAlpha1_InvokeResponse{
			InvokeResponse: &runtimev1.SubscribeActorEventsRequestInvokeResponseAlpha1{Id: r.GetId(),
				Data: []byte(r.GetMethod() + " of " + r.GetActorId()), Error: r.GetMethod() == "error",
				Metadata: map[string]string{"content-type": "text/x"}}}}
	if code, found := map[string]codes.Code{"none": codes.NotFound, "fail": codes.Internal}[r.GetMethod()]; found {
		answer.RequestType = &runtimev1.SubscribeActorEventsRequestAlpha1_RequestFailed{
			RequestFailed: &runtimev1.SubscribeActorEventsRequestFailedAlpha1{Id: r.GetId(), Code: uint32(code),
				Message: "no luck"}}
	}
	if r.GetMethod() != "hang" {
		s.send(answer)
	}
}

func (s *streamed) note(parts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, strings.Join(parts, "|"))
}

// await waits until the application has got a request that begins with prefix, and returns the request.
func (s *streamed) await(t *testing.T, prefix string) (got string) {
	t.Helper()
	nodetest.Poll(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, one := range s.seen {
			if strings.HasPrefix(one, prefix) {
				got = one
				return nil
			}
		}
		return fmt.Errorf("the application got %q, and no %s", s.seen, prefix)
	})
	return got
}

// streamNode opens a node whose application has no port.
func streamNode(t *testing.T) *node.Node {
	t.Helper()
	c := nodetest.Config(t)
	c.App.ID, c.API.HostWait = "bank", time.Second
	return nodetest.Open(t, c)
}

func TestActorStream_CallsRemindersAndTimers(t *testing.T) {
	n := streamNode(t)
	app := newStreamed(t, n, "Counter")
	awaitType(t, n)
	code, text, header := nodetest.Ask(t, n, "POST", "/v1.0/actors/Counter/a/method/hello", "body")
	if code != 200 || text != "hello of a" || header.Get("Content-Type") != "text/x" {
		t.Errorf("%d %s %v", code, text, header)
	}
	if got := app.await(t, "invoke|a|hello"); !strings.HasPrefix(got, "invoke|a|hello|body|") {
		t.Error(got)
	}
	if code, _, header := nodetest.Ask(t, n, "POST", "/v1.0/actors/Counter/a/method/error", ""); code != 200 ||
		header.Get("X-Daprerrorresponseheader") != "true" {
		t.Errorf("an error of the application: %d %v", code, header)
	}
	if text := expect(t, n, 500, "POST", "a/method/none", ""); !strings.Contains(text, "actor method not found") {
		t.Error(text)
	}
	if text := expect(t, n, 500, "POST", "a/method/fail", ""); !strings.Contains(text, "no luck") {
		t.Error(text)
	}
	expect(t, n, 204, "POST", "a/reminders/r", `{"dueTime":"10ms","data":"YWJj"}`)
	data, want := app.await(t, "reminder|a|r|||"), wrapperspb.Bytes([]byte("abc"))
	if !strings.Contains(data, "BytesValue") {
		t.Errorf("the application got %s, want %s", data, want)
	}
	expect(t, n, 204, "POST", "a/reminders/cancel", `{"period":"100ms"}`)
	nodetest.Poll(t, func() error {
		if code, _, _ := nodetest.Ask(t, n, "GET", "/v1.0/actors/Counter/a/reminders/cancel", ""); code != 404 {
			return fmt.Errorf("the canceled reminder is there: %d", code)
		}
		return nil
	})
	expect(t, n, 204, "POST", "a/timers/t", `{"dueTime":"10ms","callback":"flush"}`)
	app.await(t, "timer|a|t|10ms||flush")
}

// The end of the stream withdraws the types. A further stream replaces the first one.
func TestActorStream_EndWithdrawsTheTypes(t *testing.T) {
	t.Parallel()
	n := streamNode(t)
	first := newStreamed(t, n, "Counter")
	awaitType(t, n)
	expect(t, n, 200, "POST", "a/method/m", "")
	second := newStreamed(t, n, "Counter")
	nodetest.Poll(t, func() error {
		if code, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/actors/Counter/b/method/m", ""); code != 200 {
			return fmt.Errorf("%d %s", code, text)
		}
		second.mu.Lock()
		defer second.mu.Unlock()
		if len(second.seen) == 0 {
			return fmt.Errorf("the second stream gets no calls")
		}
		return nil
	})
	if err := first.out.CloseSend(); err != nil {
		t.Fatal(err)
	}
	expect(t, n, 200, "POST", "c/method/m", "")
	cut := make(chan string, 1)
	go func() {
		_, text, _ := nodetest.Ask(t, n, "POST", "/v1.0/actors/Counter/a/method/hang", "")
		cut <- text
	}()
	second.await(t, "invoke|a|hang")
	if err := second.out.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if text := <-cut; !strings.Contains(text, "indeterminate") {
		t.Errorf("a call whose stream ended: %s", text)
	}
	if text := expect(t, n, 500, "POST", "a/method/m", ""); !strings.Contains(text, "no_host") {
		t.Errorf("without a stream: %s", text)
	}
	if _, text, _ := nodetest.Ask(t, n, http.MethodGet, "/v1.0/metadata", ""); strings.Contains(text, "Counter") {
		t.Errorf("without a stream, the metadata are %s", text)
	}
	newStreamed(t, n, "Counter")
	awaitType(t, n)
}

// An application that is called over HTTP hosts the types of GET /dapr/config, and no others.
func TestActorStream_IsRefusedForHTTPApplications(t *testing.T) {
	n, _ := oneCallee(t)
	out, err := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0])).SubscribeActorEventsAlpha1(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Recv(); grpcstatus.Code(err) != codes.FailedPrecondition {
		t.Errorf("the stream is answered with %v", err)
	}
}

func TestActorStream_RefusesWrongFirstMessages(t *testing.T) {
	n := streamNode(t)
	for _, first := range []*runtimev1.SubscribeActorEventsRequestAlpha1{
		{},
		{RequestType: &runtimev1.SubscribeActorEventsRequestAlpha1_InitialRequest{
			InitialRequest: &runtimev1.SubscribeActorEventsRequestInitialAlpha1{Entities: []string{"a/b"}}}},
	} {
		out, err := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0])).SubscribeActorEventsAlpha1(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := out.Send(first); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Recv(); grpcstatus.Code(err) != codes.InvalidArgument {
			t.Errorf("%v is answered with %v", first, err)
		}
	}
}

// A node that stops first deactivates the actors, and then ends the stream.
func TestActorStream_EndsWithTheNode(t *testing.T) {
	n := streamNode(t)
	app := newStreamed(t, n, "Counter")
	awaitType(t, n)
	expect(t, n, http.StatusOK, "POST", "a/method/m", "")
	nodetest.Close(t, n)
	app.await(t, "deactivate|a")
	nodetest.Poll(t, func() error {
		app.mu.Lock()
		defer app.mu.Unlock()
		if grpcstatus.Code(app.err) != codes.Unavailable {
			return fmt.Errorf("the stream ended with %v", app.err)
		}
		return nil
	})
}
