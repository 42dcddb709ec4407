package grpc

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/internal/fault"
)

// Short names of the messages of the stream.
type (
	fromApp = runtimev1.SubscribeActorEventsRequestAlpha1
	toApp   = runtimev1.SubscribeActorEventsResponseAlpha1
)

// actorStream is the stream over which an application hosts actors. It implements actors.App.
type actorStream struct {
	config actors.Config
	ended  chan struct{} // closed when the stream has ended

	sending chan struct{} // capacity 1; holds an element while out.Send runs, and after the handler has returned
	out     runtimev1.Dapr_SubscribeActorEventsAlpha1Server
	stall   time.Duration // after which an application that takes no message loses its stream
	cut     func()        // ends the stream, also while out.Send waits

	mu      sync.Mutex
	last    uint64
	waiting map[string]chan *fromApp // capacity 1; by the id of the request
}

// SubscribeActorEventsAlpha1 lets an application host actors over a stream. A new stream replaces the previous stream
// of the application. When the stream ends, the node no longer hosts these actors. The stream of an application that is
// called over HTTP is refused, because such an application lists its actors at GET /dapr/config.
func (s *actorMethods) SubscribeActorEventsAlpha1(out runtimev1.Dapr_SubscribeActorEventsAlpha1Server) error {
	if err := s.state.CheckActors(); err != nil {
		return err
	}
	d, _ := s.metadata.Describe()
	if c := d.Channel; c.Port != 0 && !strings.HasPrefix(c.Protocol, "grpc") {
		return &api.Error{Kind: api.NotConfigured, Code: api.CodeActorRuntimeNotFound,
			Message: "the application is called over " + c.Protocol + ", so it hosts actors with GET /dapr/config; a " +
				"stream needs --app-protocol grpc, or no --app-port"}
	}
	first, err := out.Recv()
	if err != nil {
		return err
	}
	initial := first.GetInitialRequest()
	if initial == nil {
		return api.MalformedRequest("the first message of the stream has no initial_request")
	}
	a := &actorStream{out: out, sending: make(chan struct{}, 1), stall: s.stall, cut: func() {},
		ended: make(chan struct{}), waiting: map[string]chan *fromApp{}}
	if call := arrivalOf(out.Context()); call != nil {
		a.cut = call.cancel
	}
	if a.config, err = streamConfig(initial); err != nil {
		return api.MalformedRequest(fault.Text(err))
	}
	if err := out.Send(&toApp{ResponseType: &runtimev1.SubscribeActorEventsResponseAlpha1_InitialResponse{
		InitialResponse: &runtimev1.SubscribeActorEventsResponseInitialAlpha1{}}}); err != nil {
		return err
	}
	s.actors.Attach(a)
	broken := make(chan error, 1)
	s.running.Go(func() { broken <- a.receive() }) // ends with the stream
	select {
	case err = <-broken:
	case <-s.life.Done():
		err = &api.Error{Kind: api.Unavailable, Code: api.CodeInternal, Message: "the node is stopping",
			Details: api.Details{Reason: api.ReasonUnavailable}}
	}
	a.sending <- struct{}{} // no message is sent after this method has returned
	close(a.ended)
	return err
}

// streamConfig converts the first message of an application to the configuration of its actors.
func streamConfig(in *runtimev1.SubscribeActorEventsRequestInitialAlpha1) (actors.Config, error) {
	base := streamType(actors.DefaultType(), in.GetActorIdleTimeout(), in.GetDrainOngoingCallTimeout(),
		in.GetReentrancy())
	own := map[string]actors.TypeConfig{}
	for _, e := range in.GetEntitiesConfig() {
		for _, t := range e.GetEntities() {
			own[t] = streamType(base, e.GetActorIdleTimeout(), e.GetDrainOngoingCallTimeout(), e.GetReentrancy())
		}
	}
	return actors.NewConfig(in.GetEntities(), base, own)
}

// streamType returns t with the given settings. Settings that are zero or nil stay as in t.
func streamType(t actors.TypeConfig, idle, drain *durationpb.Duration,
	reentrancy *runtimev1.ActorReentrancyConfig) actors.TypeConfig {
	if d := idle.AsDuration(); d > 0 {
		t.IdleTimeout = d
	}
	if d := drain.AsDuration(); d > 0 {
		t.DrainTimeout = d
	}
	if reentrancy != nil {
		t.Reentrancy = reentrancy.GetEnabled()
		if depth := int(reentrancy.GetMaxStackDepth()); depth > 0 {
			t.MaxDepth = depth
		}
	}
	return t
}

// receive reads the answers of the application, and passes each answer to the request that waits for it. It runs until
// the stream ends, and returns the error of the stream.
func (a *actorStream) receive() error {
	for {
		m, err := a.out.Recv()
		if err != nil {
			return err
		}
		id := cmp.Or(m.GetInvokeResponse().GetId(), m.GetReminderResponse().GetId(), m.GetTimerResponse().GetId(),
			m.GetDeactivateResponse().GetId(), m.GetRequestFailed().GetId())
		a.mu.Lock()
		answer := a.waiting[id]
		delete(a.waiting, id)
		a.mu.Unlock()
		if answer != nil {
			answer <- m
		}
	}
}

// ask sends a request to the application and waits for the answer. It chooses an id, and calls the given function to
// make the message with this id.
func (a *actorStream) ask(ctx context.Context, request func(id string) *toApp) (*fromApp, error) {
	answer := make(chan *fromApp, 1)
	a.mu.Lock()
	a.last++
	id := strconv.FormatUint(a.last, 10)
	a.waiting[id] = answer
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waiting, id)
	}()
	if err := a.send(ctx, request(id)); err != nil {
		return nil, err
	}
	select {
	case m := <-answer:
		return m, nil
	case <-a.ended:
		return nil, fault.New(fault.Indeterminate, "grpc.actors",
			"the stream of the application ended before it answered")
	case <-ctx.Done():
		return nil, &fault.Error{Code: fault.Indeterminate, Op: "grpc.actors", Err: context.Cause(ctx),
			Msg: "the call ended before the application answered"}
	}
}

// send sends a message to the application. It returns when ctx ends, even if the application reads nothing. If the
// application does not take the message within the stall timeout, the stream ends, because the message would block all
// further ones.
func (a *actorStream) send(ctx context.Context, m *toApp) error {
	select {
	case a.sending <- struct{}{}:
	case <-a.ended:
		_, why := a.Healthy()
		return fault.New(fault.Unavailable, "grpc.actors", why)
	case <-ctx.Done():
		return &fault.Error{Code: fault.Timeout, Op: "grpc.actors", Err: context.Cause(ctx),
			Msg: "the call ended before it was sent over the stream of the application"}
	}
	sent := make(chan error, 1)
	go func() { // ends with the stream at the latest
		defer func() { <-a.sending }()
		timer := time.AfterFunc(a.stall, a.cut)
		defer timer.Stop()
		sent <- a.out.Send(m)
	}()
	select {
	case err := <-sent:
		if err == nil {
			return nil
		}
		return &fault.Error{Code: fault.Indeterminate, Op: "grpc.actors", Err: err,
			Msg: "the call could not be sent over the stream of the application"}
	case <-ctx.Done():
		return &fault.Error{Code: fault.Indeterminate, Op: "grpc.actors", Err: context.Cause(ctx),
			Msg: "the call ended while it was sent over the stream of the application"}
	}
}

// Healthy implements actors.App.
func (a *actorStream) Healthy() (bool, string) {
	select {
	case <-a.ended:
		return false, "the stream of the application has ended"
	default:
		return true, ""
	}
}

// Config implements actors.App.
func (a *actorStream) Config(context.Context) (actors.Config, bool, error) {
	return a.config, true, nil
}

// Take implements actors.App.
func (a *actorStream) Take(ctx context.Context, t *actors.Turn) (actors.Answer, error) {
	request, err := turnRequest(t)
	if err != nil {
		return actors.Answer{}, err
	}
	m, err := a.ask(ctx, request)
	if err != nil {
		return actors.Answer{}, err
	}
	out := actors.Answer{Status: http.StatusOK, Header: http.Header{}}
	if failed := m.GetRequestFailed(); failed != nil {
		out.Status, out.Body = http.StatusInternalServerError, []byte(failed.GetMessage())
		if codes.Code(failed.GetCode()) == codes.NotFound {
			out.Status = http.StatusNotFound
		}
		return out, nil
	}
	if invoked := m.GetInvokeResponse(); invoked != nil {
		out.Body = invoked.GetData()
		for name, value := range invoked.GetMetadata() {
			out.Header.Set(name, value)
		}
		if invoked.GetError() {
			out.Header.Set("X-DaprErrorResponseHeader", "true")
		}
	}
	if m.GetReminderResponse().GetCancel() || m.GetTimerResponse().GetCancel() {
		out.Header.Set("X-DaprReminderCancel", "true")
	}
	return out, nil
}

// turnRequest returns a function that makes the message of a turn with a given request id.
func turnRequest(t *actors.Turn) (func(id string) *toApp, error) {
	kind, actor := t.Actor.Type, t.Actor.ID
	if t.Callback == "" {
		return func(id string) *toApp {
			return &toApp{ResponseType: &runtimev1.SubscribeActorEventsResponseAlpha1_InvokeRequest{
				InvokeRequest: &runtimev1.SubscribeActorEventsResponseInvokeRequestAlpha1{Id: id, ActorType: kind,
					ActorId: actor, Method: validText(t.DecodedMethod()), Data: t.Body, Metadata: turnMetadata(t)}}}
		}, nil
	}
	var tick actors.Tick
	if err := json.Unmarshal(t.Body, &tick); err != nil {
		return nil, fault.Wrap(err, "grpc.actors", "a tick cannot be decoded")
	}
	data, err := reminderData(tick.Data)
	if err != nil {
		return nil, err
	}
	return func(id string) *toApp {
		if t.Callback == actors.CallbackReminder {
			return &toApp{ResponseType: &runtimev1.SubscribeActorEventsResponseAlpha1_ReminderRequest{
				ReminderRequest: &runtimev1.SubscribeActorEventsResponseReminderRequestAlpha1{Id: id, ActorType: kind,
					ActorId: actor, Name: t.Method, DueTime: tick.DueTime, Period: tick.Period, Data: data}}}
		}
		request := &runtimev1.SubscribeActorEventsResponseTimerRequestAlpha1{Id: id, ActorType: kind, ActorId: actor,
			Name: t.Method, DueTime: tick.DueTime, Period: tick.Period, Data: data}
		if tick.Callback != nil {
			request.Callback = *tick.Callback
		}
		return &toApp{ResponseType: &runtimev1.SubscribeActorEventsResponseAlpha1_TimerRequest{TimerRequest: request}}
	}, nil
}

// validText replaces invalid UTF-8, which a caller over HTTP can send. gRPC cannot transport it and would end the
// stream, so that the application would lose all its actors.
func validText(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// turnMetadata returns the headers of a turn as metadata, including the headers that the runtime adds.
func turnMetadata(t *actors.Turn) map[string]string {
	out := map[string]string{}
	for name, value := range t.Headers() {
		if name == "Content-Type" {
			name = "content-type"
		}
		out[name] = validText(strings.Join(value, ", "))
	}
	return out
}

// Deactivate implements actors.App.
func (a *actorStream) Deactivate(ctx context.Context, key api.Actor) error {
	_, err := a.ask(ctx, func(id string) *toApp {
		return &toApp{ResponseType: &runtimev1.SubscribeActorEventsResponseAlpha1_DeactivateRequest{
			DeactivateRequest: &runtimev1.SubscribeActorEventsResponseDeactivateRequestAlpha1{Id: id,
				ActorType: key.Type, ActorId: key.ID}}}
	})
	return err
}
