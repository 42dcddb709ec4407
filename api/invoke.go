package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// An invocation is an HTTP message by contract, whatever the protocol of the application,
// so net/http's Request and Response are its words here. Nothing is listened to or dialled
// in this package.

// Invoke calls methods of applications for one application. It is safe for concurrent use.
type Invoke struct {
	app      App
	places   Places
	here     *Callee
	there    Carrier
	sessions *Sessions
	policies *Policies
	tracer   Tracer
	metrics  *InvokeMetrics
	budget   *budget
	log      *slog.Logger
}

// InvokeParts are what the invocation of all applications of a node share. There may be
// nil, where there are no other nodes; everything else is required.
type InvokeParts struct {
	Places   Places
	Here     *Callee
	There    Carrier
	Sessions *Sessions
	Policies *Policies
	Tracer   Tracer
	Metrics  *InvokeMetrics
	Logger   *slog.Logger
}

// NewInvoke returns the invocation service of app.
func NewInvoke(app App, p InvokeParts) *Invoke {
	return &Invoke{app: app, places: p.Places, here: p.Here, there: p.There, sessions: p.Sessions, policies: p.Policies,
		tracer: p.Tracer, metrics: p.Metrics, budget: newBudget(), log: p.Logger}
}

// Places knows where applications run. Implementations are safe for concurrent use and
// answer from memory.
type Places interface {
	// Pick chooses a place where app can be called, none of tried. Errors: not_found if
	// nobody has ever served it; unavailable if nobody (else) can be called now.
	Pick(app App, tried []*Place) (*Place, error)
}

// Place is one instance of an application, chosen for one attempt.
type Place struct {
	Node   string // its node, for people
	Server string // what the peer port dials
	Boot   string // the run of that node
	Local  bool   // it is served by this very node
	Done   func(Outcome)
}

// Outcome is what became of an attempt.
type Outcome uint8

// The outcomes.
const (
	Answered  Outcome = iota // the application answered, whatever it answered
	Broken                   // the attempt failed, and may have reached the application
	Unreached                // the attempt surely never reached the application
)

// Carrier takes an inbound call to the callee of another node. Its errors are those of
// Callee.Take, besides unavailable where the node cannot be reached.
type Carrier interface {
	Carry(at *Place, in *Inbound) (Answer, error)
}

// Call is a call of a method, as an application asks for it.
type Call struct {
	Target string // app id, or app id and namespace with a dot between
	Verb   string
	Path   string      // escaped, as it was received; begins with a slash
	Query  string      // without the question mark
	Mark   bool        // there was a question mark, even if the query is empty
	Header http.Header // of the request; it is not changed
	Body   io.ReadCloser
	Length int64 // of the body; -1 = unknown

	// Trailer is what is sent after the body: it may be filled while the body is read.
	Trailer http.Header
	Remote  string // network address of the caller
}

// Answer is what came back. Its header belongs to the receiver; its body must be closed.
type Answer struct {
	*http.Response
	Session string // what the callee has seen of the stores; empty = nothing
}

// Do calls the target and returns its answer, whatever the status. ctx bounds the call and
// the body of the answer. All errors are *Error.
func (i *Invoke) Do(ctx context.Context, c *Call) (Answer, error) {
	target, err := i.parseTarget(c.Target)
	if err != nil {
		return Answer{}, err
	}
	decoded, err := MethodPath(c.Path)
	if err != nil {
		return Answer{}, err
	}
	if c.Verb == http.MethodConnect {
		return Answer{}, invokeMalformed("the verb CONNECT cannot be forwarded")
	}
	a := &attempts{invoke: i, call: c, target: target, decoded: decoded, policy: i.policies.For(target), body: newReplay(c.Body, c.Length)}
	span := i.tracer.Start(ctx, c.Header, SpanCaller, "invoke "+target.String())
	a.trace = span
	meter := i.metrics.begin(i.app, target)
	answer, err := a.run(span.Context())
	meter.end(answer.Response, err)
	span.End(answer.Response, err)
	return answer, err
}

// parseTarget reads "app" or "app.namespace".
func (i *Invoke) parseTarget(text string) (App, error) {
	app, ok := ParseTarget(text, i.app.Namespace)
	if !ok {
		return App{}, invokeMalformed("the app id " + name(text) + " is refused: it is letters, digits, - and _, and may name a namespace after one dot")
	}
	return app, nil
}

// request makes the request of one attempt.
func (a *attempts) request(ctx context.Context) *http.Request {
	c := a.call
	r := &http.Request{
		Method: c.Verb, URL: MethodURL(c.Path, a.decoded, c.Query, c.Mark), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: ForwardHeader(c.Header), Body: a.body.open(), ContentLength: c.Length, Trailer: c.Trailer,
	}
	if len(c.Trailer) > 0 {
		r.ContentLength = -1 // trailers need a body without a length
	}
	return r.WithContext(ctx)
}

// attempts is one call, tried at one place after the other.
type attempts struct {
	invoke  *Invoke
	call    *Call
	target  App
	decoded string
	policy  *Policy
	body    *replay
	trace   Span

	tried []*Place
	last  error // of the attempt before
}

// run tries until there is an answer, or an error that must not or cannot be mended by
// trying again.
func (a *attempts) run(ctx context.Context) (Answer, error) {
	a.invoke.budget.earn()
	pauses := a.policy.pauses()
	for {
		answer, err := a.once(ctx)
		if err == nil && !a.policy.retryStatus(answer.Response) {
			return answer, nil
		}
		if ctx.Err() != nil {
			return answer, err // nobody waits any more
		}
		pause, again := a.again(pauses, answer, err)
		if !again {
			return answer, err
		}
		if answer.Response != nil {
			discard(answer.Response)
		}
		if pause > 0 && !sleep(ctx, pause) {
			return Answer{}, a.failed(err, a.hop(nil))
		}
		a.invoke.metrics.retried(a.target)
	}
}

// once picks a place and calls it.
func (a *attempts) once(ctx context.Context) (Answer, error) {
	place, err := a.invoke.places.Pick(a.target, a.tried)
	if err != nil && len(a.tried) > 0 {
		a.tried = nil // everyone was tried: begin again
		place, err = a.invoke.places.Pick(a.target, nil)
	}
	if err != nil && a.last != nil {
		return Answer{}, a.last // it says more than that nobody else is there
	}
	if err != nil {
		return Answer{}, a.failed(err, a.hop(nil))
	}
	end, err := a.policy.enter(a.target, place)
	if err != nil {
		place.Done(Broken)
		a.tried = append(a.tried, place)
		return Answer{}, a.failed(err, a.hop(place))
	}
	answer, err := a.at(ctx, place)
	outcome := outcomeOf(err)
	place.Done(outcome)
	end(answer.Response, err)
	if err != nil {
		a.tried, a.last = append(a.tried, place), a.failed(err, a.hop(place))
		return Answer{}, a.last
	}
	return answer, nil
}

// at calls one place.
func (a *attempts) at(ctx context.Context, place *Place) (Answer, error) {
	ctx, limit := a.policy.deadline(ctx)
	i := a.invoke
	in := &Inbound{
		Target: a.target, Caller: Caller{App: i.app}, Request: a.request(ctx), Decoded: a.decoded,
		Trace: a.trace.TraceID(), Session: i.sessions.Outbound(i.app, a.trace.TraceID(), a.call.Header), Remote: a.call.Remote,
	}
	a.trace.Inject(in.Request.Header)
	var answer Answer
	var err error
	switch {
	case place.Local:
		in.Caller.Proven = true // by its listener
		answer, err = i.here.Take(in)
	case i.there == nil:
		err = fault.New(fault.Unavailable, "api.Invoke", "this node reaches no other")
	default:
		answer, err = i.there.Carry(place, in)
	}
	if err != nil {
		return Answer{}, limit.explain(err)
	}
	limit.answered()
	i.sessions.Inbound(i.app, a.trace.TraceID(), answer.Session)
	return answer, nil
}

// hop names the way an attempt took.
func (a *attempts) hop(p *Place) string {
	switch {
	case p == nil:
		return "discovery"
	case p.Local:
		return "application"
	}
	return "node " + p.Node
}

// again says whether another attempt is right, and after which pause.
func (a *attempts) again(pauses *pauses, answer Answer, err error) (time.Duration, bool) {
	if err == nil {
		pause, ok := pauses.next()
		return pause, ok && a.body.again()
	}
	f := AsError(err)
	switch {
	case f.Kind == Denied || f.Kind == Malformed || f.Kind == Missing:
		return 0, false
	case f.Kind != Unavailable && !a.policy.explicit():
		return 0, false // it may have been done
	case f.Details.Reason == ReasonCircuitOpen && !a.elsewhere():
		return 0, false // the breaker is there to spare the target
	}
	pause, ok := pauses.next()
	if !ok || !a.body.again() || !a.policy.explicit() && !a.invoke.budget.spend() {
		return 0, false
	}
	if len(a.tried) > 0 && f.Kind == Unavailable && a.elsewhere() {
		pause = 0 // somebody else may serve it at once
	}
	return pause, true
}

// elsewhere reports whether there is a place that was not tried.
func (a *attempts) elsewhere() bool {
	p, err := a.invoke.places.Pick(a.target, a.tried)
	if err != nil {
		return false
	}
	p.Done(Broken) // nothing was sent: no judgement
	return true
}

func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Answered
	case fault.Is(err, fault.Unavailable):
		return Unreached
	case fault.Is(err, fault.Denied):
		return Answered
	}
	return Broken
}

func discard(r *http.Response) {
	_, _ = io.CopyN(io.Discard, r.Body, 64<<10) // so that the connection can be kept
	_ = r.Body.Close()
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
