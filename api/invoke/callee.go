package invoke

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

// Channel is the connection to one application of this node. The fault code of an error shows what the application may
// have received:
//
//	unavailable, timeout  nothing
//	too_large             nothing, because the application cannot accept the body
//	indeterminate         unknown: the call may have been received
type Channel interface {
	RoundTrip(r *http.Request) (*http.Response, error)
}

// Callee passes calls to the applications of this node, and applies access control. The calls come from this node and
// from other nodes. A Callee is safe for concurrent use.
type Callee struct {
	channels atomic.Pointer[map[api.App]Channel]
	access   atomic.Pointer[map[api.App]*Access]
	sessions *api.Sessions
	metrics  *Metrics
	tracer   Tracer
}

// NewCallee returns a Callee without applications.
func NewCallee(sessions *api.Sessions, metrics *Metrics, tracer Tracer) *Callee {
	c := &Callee{sessions: sessions, metrics: metrics, tracer: tracer}
	c.channels.Store(&map[api.App]Channel{})
	c.access.Store(&map[api.App]*Access{})
	return c
}

// Serve sets the applications that can be called, and their access rules. An application without an entry in access
// accepts all callers. All calls fail until Serve is called. The caller must not change the maps afterwards.
func (c *Callee) Serve(channels map[api.App]Channel, access map[api.App]*Access) {
	c.access.Store(&access)
	c.channels.Store(&channels)
}

// Inbound is a call that has reached the node of its target.
type Inbound struct {
	Target  api.App
	Caller  Caller
	Request *http.Request // the request for the application; the callee adds headers
	Method  MethodPath    // the method to call
	Trace   string        // trace id; empty = none
	Session string        // session token of the caller; empty = none
	Remote  string        // network address of the caller's application
}

// Caller identifies the calling application.
type Caller struct {
	api.App
	TrustDomain string // empty = the default; not used if Local
	Proven      bool   // the connection authenticates the identity
	Local       bool   // the caller runs at the node of the target, and therefore in its trust domain
}

// TakeRemote does the same as Take, for a call that another node has forwarded. It also records metrics and a trace
// span.
func (c *Callee) TakeRemote(in *Inbound) (Answer, error) {
	span := c.tracer.Start(in.Request.Context(), in.Request.Header, SpanCallee, "serve "+in.Target.String())
	span.Inject(in.Request.Header)
	if ctx := span.Context(); ctx != in.Request.Context() {
		in.Request = in.Request.WithContext(ctx)
	}
	meter := c.metrics.start(hopCallee, in.Caller.App, in.Target, in.Request.Header, time.Now())
	answer, err := c.Take(in)
	meter.end(answer.Response, err)
	endSpan(span, answer.Response, err)
	return answer, err
}

// Take passes a call to its application. It returns fault.Unavailable if this node cannot call the application, and
// fault.Denied if the access rules forbid the call. All other errors are those of Channel.
func (c *Callee) Take(in *Inbound) (Answer, error) {
	channel, ok := (*c.channels.Load())[in.Target]
	if !ok {
		return Answer{}, &fault.Error{Code: fault.Unavailable, Op: "api.Invoke", Msg: "the application " +
			in.Target.String() + " cannot be called at its node",
			Hint: "start the node with --app-port"}
	}
	access := (*c.access.Load())[in.Target]
	err := access.Allow(in)
	c.metrics.decided(access, in, err)
	if err != nil {
		c.metrics.refused(in)
		return Answer{}, err
	}
	c.sessions.Inbound(in.Target, in.Trace, in.Session)
	c.sessions.Follow(in.Target, in.Trace, in.Session)
	in.Request.RemoteAddr = in.Remote // for middleware
	h := in.Request.Header
	h["Dapr-Caller-App-Id"] = []string{in.Caller.ID}
	h["Dapr-Caller-Namespace"] = []string{orDefault(in.Caller.Namespace)}
	h["Dapr-Callee-App-Id"] = []string{in.Target.ID}
	if in.Method.Text != "" {
		in.Request = appchannel.WithMethod(in.Request, in.Method.Text)
	}
	answer, err := channel.RoundTrip(in.Request)
	if err != nil {
		return Answer{}, err
	}
	CleanAnswer(answer)
	return Answer{Response: answer, Session: c.sessions.Share(in.Target, in.Trace, in.Session)}, nil
}

// Allow returns fault.Denied if the access rules of the target forbid the call. It does not forward the call.
func (c *Callee) Allow(in *Inbound) error {
	access := (*c.access.Load())[in.Target]
	err := access.Allow(in)
	c.metrics.decided(access, in, err)
	return err
}

func orDefault(namespace string) string {
	if namespace == "" {
		return records.DefaultNamespace
	}
	return namespace
}
