package api

import (
	"net/http"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
)

// Channel reaches one application of this node. Its errors: unavailable and timeout where
// the application surely received nothing, too_large where it cannot take the body,
// indeterminate where it may have received the call.
type Channel interface {
	RoundTrip(r *http.Request) (*http.Response, error)
}

// Callee takes calls for the applications of this node, from its own applications and from
// other nodes. It decides who may call what. Safe for concurrent use.
type Callee struct {
	channels atomic.Pointer[map[App]Channel]
	access   atomic.Pointer[map[App]*Access]
	sessions *Sessions
	metrics  *InvokeMetrics
	tracer   Tracer
}

// NewCallee returns a Callee without applications.
func NewCallee(sessions *Sessions, metrics *InvokeMetrics, tracer Tracer) *Callee {
	c := &Callee{sessions: sessions, metrics: metrics, tracer: tracer}
	c.channels.Store(&map[App]Channel{})
	c.access.Store(&map[App]*Access{})
	return c
}

// Serve sets the applications that can be called, and who may call them: those without an
// entry in access refuse nobody. Before it nothing can be called. The maps are not changed
// any more.
func (c *Callee) Serve(channels map[App]Channel, access map[App]*Access) {
	c.access.Store(&access)
	c.channels.Store(&channels)
}

// Inbound is a call that has reached the node of its target.
type Inbound struct {
	Target  App
	Caller  Caller
	Request *http.Request // what the application gets, but for what the callee adds
	Decoded string        // its path, decoded
	Trace   string        // trace id; empty = none
	Session string        // what the caller has seen of the stores; empty = nothing
	Remote  string        // network address of the caller's application
}

// Caller is who calls.
type Caller struct {
	App
	TrustDomain string // empty = the default
	Proven      bool   // by the connection, not only claimed
}

// TakeRemote is Take for a call from another node: it is measured and followed as a hop of
// its own.
func (c *Callee) TakeRemote(in *Inbound) (Answer, error) {
	span := c.tracer.Start(in.Request.Context(), in.Request.Header, SpanCallee, "serve "+in.Target.String())
	span.Inject(in.Request.Header)
	in.Request = in.Request.WithContext(span.Context())
	meter := c.metrics.start(hopCallee, in.Caller.App, in.Target)
	answer, err := c.Take(in)
	meter.end(answer.Response, err)
	span.End(answer.Response, err)
	return answer, err
}

// Take hands a call to its application. Errors: unavailable if the application cannot be
// called here; denied if a policy forbids the call; those of Channel.
func (c *Callee) Take(in *Inbound) (Answer, error) {
	channel, ok := (*c.channels.Load())[in.Target]
	if !ok {
		return Answer{}, &fault.Error{Code: fault.Unavailable, Op: "api.Invoke", Msg: "the application " + in.Target.String() + " cannot be called at its node",
			Hint: "start the node with --app-port"}
	}
	if err := (*c.access.Load())[in.Target].Allow(in); err != nil {
		c.metrics.refused(in)
		return Answer{}, err
	}
	c.sessions.Inbound(in.Target, in.Trace, in.Session)
	c.sessions.Follow(in.Target, in.Trace, in.Session)
	h := in.Request.Header
	h["Dapr-Caller-App-Id"] = []string{in.Caller.ID}
	h["Dapr-Caller-Namespace"] = []string{orDefault(in.Caller.Namespace)}
	h["Dapr-Callee-App-Id"] = []string{in.Target.ID}
	answer, err := channel.RoundTrip(in.Request)
	if err != nil {
		return Answer{}, err
	}
	answerHeader(answer.Header, answer.StatusCode == http.StatusSwitchingProtocols)
	return Answer{Response: answer, Session: c.sessions.Token(in.Target, in.Trace)}, nil
}

func orDefault(namespace string) string {
	if namespace == "" {
		return DefaultNamespace
	}
	return namespace
}
