// Package invoke calls methods of applications, and accepts calls to the applications of this node. For each call, it
// picks an instance, applies the resiliency policy and checks access control.
//
// It owns the rules for paths, headers and trailers of calls. A call is represented as an HTTP message even if the
// application uses gRPC, so the package uses the types Request and Response of net/http. The package does not listen or
// dial, and has no goroutines.
package invoke

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

// Service calls methods of applications on behalf of one application. It is safe for concurrent use.
type Service struct {
	app      api.App
	routes   *Routes
	here     *Callee
	sessions *api.Sessions
	policies *resiliency.Policies
	tracer   Tracer
	metrics  *Metrics
	budget   *resiliency.Budget
	log      *slog.Logger

	externals *Externals
}

// Parts are the dependencies of an invocation service. All applications of a node share them. All fields except
// Externals are required.
type Parts struct {
	Externals *Externals // servers outside of the cluster; nil = none

	Routes   *Routes
	Here     *Callee
	Sessions *api.Sessions
	Policies *resiliency.Policies
	Tracer   Tracer
	Metrics  *Metrics
	Logger   *slog.Logger
}

// New returns the invocation service of app.
func New(app api.App, p Parts) *Service {
	return &Service{app: app, routes: p.Routes, here: p.Here, sessions: p.Sessions, policies: p.Policies,
		tracer: p.Tracer, metrics: p.Metrics, budget: resiliency.NewBudget(), log: p.Logger,
		externals: p.Externals}
}

// Call is a call of a method as requested by an application.
type Call struct {
	Target string // app id, or app id and namespace with a dot between
	Verb   string
	Path   string      // escaped, as it was received; begins with a slash
	Text   string      // method of a gRPC call, for ParseText; used if Path is empty
	Query  string      // without the question mark
	Mark   bool        // there was a question mark, even if the query is empty
	Header http.Header // of the request; it is not changed
	Body   io.ReadCloser
	Length int64 // of the body; -1 = unknown

	// Trailer is sent after the body. It may be filled while the body is read.
	Trailer http.Header
	Remote  string // network address of the caller

	// Proven means that the caller has a valid API token. Such a caller may call addresses that are not declared.
	Proven bool
}

// Answer is the answer to a call. The receiver of an Answer must close the body, and may change the header.
type Answer struct {
	*http.Response
	Session string // session token of the callee; empty = none
}

// Do calls the target of c and returns the answer. An answer with an error status is not an error of Do. If ctx ends,
// the call ends, even while the caller is still reading the body of the answer. All errors are *api.Error.
func (i *Service) Do(ctx context.Context, c *Call) (Answer, error) {
	target, external, err := i.parseTarget(c.Target, c.Proven)
	if err != nil {
		return Answer{}, err
	}
	method, err := c.method()
	if err != nil {
		return Answer{}, err
	}
	if err := CheckQuery(c.Query); err != nil {
		return Answer{}, err
	}
	if err := api.CheckBaggage(c.Header["Baggage"]); err != nil {
		return Answer{}, err
	}
	if c.Verb == http.MethodConnect {
		return Answer{}, malformed("the verb CONNECT cannot be forwarded")
	}
	a := &attempts{
		invoke: i, call: c, target: target, external: external, method: method,
		policy: i.policies.For(target), body: newReplay(c.Body, c.Length),
	}
	a.begun, a.trace = time.Now(), i.tracer.Start(ctx, c.Header, SpanCaller, "invoke "+target.String())
	answer, err := a.run(a.trace.Context())
	a.measure()
	a.meter.end(answer.Response, err)
	endSpan(a.trace, answer.Response, err)
	return answer, err
}

func (c *Call) method() (MethodPath, error) {
	if c.Path == "" {
		return ParseText(c.Text)
	}
	return ParseMethod(c.Path)
}

// parseTarget parses the target of a call: "app" or "app.namespace", or the name or address of a server outside the
// cluster. The *External is nil if the target is an application. proven is Call.Proven.
func (i *Service) parseTarget(text string, proven bool) (api.App, *External, error) {
	if x, err := i.externals.find(i.app, text, proven); err != nil || x != nil {
		if err != nil {
			return api.App{}, nil, err
		}
		return api.App{ID: x.target.ID, Namespace: i.app.Namespace}, x, nil
	}
	app, ok := ParseTarget(text, i.app.Namespace)
	if !ok {
		return api.App{}, nil, malformed("the app id " + api.ShortenName(text) +
			" is refused: it is letters, digits, - and _, and may name a namespace after one dot")
	}
	return app, nil, nil
}

// request makes the request of one attempt.
func (a *attempts) request(ctx context.Context) *http.Request {
	c := a.call
	body, trailer := ForwardTrailer(c.Header, a.body.open(), c.Trailer)
	r := new(http.Request).WithContext(ctx)
	r.Method, r.URL = c.Verb, MethodURL(a.method, c.Query, c.Mark)
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.Header, r.Body, r.ContentLength, r.Trailer = ForwardHeader(c.Header), body, c.Length, trailer
	if len(trailer) > 0 {
		r.ContentLength, r.TransferEncoding = -1, Chunked() // trailers need a body without a length
	}
	return r
}

// attempts is one call with its attempts. Each attempt may go to another instance.
type attempts struct {
	invoke *Service
	call   *Call
	target api.App
	method MethodPath
	policy *resiliency.Policy

	external *External // the target, if it is outside of the cluster; otherwise nil
	session  string    // verified session token of the request; empty = none
	body     *replay
	trace    Span
	begun    time.Time
	meter    invokeMeter // the zero value until measure

	pauses *resiliency.Pauses // between attempts; nil until the first attempt has failed
	tried  []discovery.Instance
	next   *discovery.Lease // chosen for the next attempt; nil = not yet
	last   error            // of the previous attempt
	doubt  bool             // the target may have executed an attempt before the last one
	late   bool             // the timeout of an attempt expired
}

// run makes attempts until an answer needs no retry, no further attempt is allowed (see again), or ctx ends.
func (a *attempts) run(ctx context.Context) (Answer, error) {
	if a.external == nil {
		session, err := a.invoke.sessions.Verify(ctx, a.invoke.app, a.trace.TraceID(), a.call.Header)
		if err != nil {
			return Answer{}, a.failed(err, "session")
		}
		a.session = session
	}
	a.invoke.budget.Earn()
	for {
		answer, err := a.once(ctx)
		if err == nil && !a.policy.RetryStatus(answer.Response) {
			return answer, nil
		}
		if ctx.Err() != nil {
			return answer, a.doubtful(err) // the caller has gone
		}
		pause, again := a.again(answer, err)
		if !again {
			return answer, a.doubtful(err)
		}
		if answer.Response != nil {
			discard(answer.Response)
		}
		a.doubt = a.doubt || err == nil || !notDone(api.AsError(err))
		if pause > 0 && !sleep(ctx, pause) {
			a.release()
			return Answer{}, a.doubtful(a.failed(cmp.Or(err, context.Cause(ctx)), a.hop(nil)))
		}
		a.invoke.metrics.retried(a.target)
		if a.policy.Explicit() {
			a.activated(resiliency.KindRetry)
		}
	}
}

// doubtful returns the final error of a call whose last attempt failed with err. If the target did not execute the last
// attempt but may have executed an earlier one, the error has the kind api.Indeterminate. Otherwise, the error is err.
func (a *attempts) doubtful(err error) error {
	e, ok := err.(*api.Error) //nolint:errorlint // all errors of attempts are
	if !ok || !a.doubt || e.Kind != api.Unavailable && e.Kind != api.Timeout {
		return err
	}
	all := *e
	all.Kind, all.Details.Reason = api.Indeterminate, api.ReasonIndeterminate
	all.Message += "; an earlier attempt may have been executed"
	return &all
}

// notDone reports whether the target certainly did not execute an attempt that failed with e.
func notDone(e *api.Error) bool {
	switch e.Kind {
	case api.Unavailable, api.Timeout, api.Denied, api.Malformed, api.Missing:
		return true
	}
	return e.Details.Reason == api.ReasonNotFound
}

// once makes one attempt: it chooses an instance, checks the circuit breaker, and calls the instance.
func (a *attempts) once(ctx context.Context) (Answer, error) {
	lease, err := a.choose(ctx)
	if a.measure() {
		a.observePolicies()
	}
	if err != nil && a.last != nil {
		return Answer{}, a.last // more useful than the error that there is no other instance
	}
	if err != nil {
		return Answer{}, a.failed(err, a.hop(nil))
	}
	at := &lease.Instance
	end, err := a.policy.Enter(ctx, a.circuit())
	if err != nil {
		lease.Done(discovery.Failed) // nothing was sent, and Failed does not demote the instance
		return Answer{}, a.failed(err, a.hop(at))
	}
	answer, err := a.at(ctx, at)
	lease.Done(outcomeOf(err))
	end(answer.Response, err)
	if err != nil {
		a.tried, a.last = append(a.tried, *at), a.failed(err, a.hop(at))
		return Answer{}, a.last
	}
	return answer, nil
}

// circuit returns the circuit breaker of the call.
func (a *attempts) circuit() resiliency.Circuit {
	c := resiliency.Circuit{Target: a.target, Method: a.method.Path}
	if a.external != nil {
		c.Address = a.external.address
	}
	return c
}

// measure starts the metrics of the call and returns true. If they have already started, it does nothing and returns
// false.
//
// It is called after the first instance was chosen. Until then, a node that has just started may not know the target,
// and would count the call for an unknown application.
func (a *attempts) measure() bool {
	if a.meter.metrics != nil {
		return false
	}
	a.meter = a.invoke.metrics.begin(a.invoke.app, a.target, a.call.Header, a.begun)
	return true
}

// choose returns the instance for the next attempt: the one that was already chosen for it, or an instance that this
// call has not tried yet. If all instances have been tried, it picks any of them.
func (a *attempts) choose(ctx context.Context) (*discovery.Lease, error) {
	if a.external != nil {
		return a.external.lease(), nil
	}
	if lease := a.next; lease != nil {
		a.next = nil
		return lease, nil
	}
	if len(a.tried) == 0 {
		return a.invoke.routes.pickFirst(ctx, a.target)
	}
	lease, err := a.invoke.routes.pick(a.target, a.tried)
	if err != nil {
		a.tried = nil
		lease, err = a.invoke.routes.pick(a.target, nil)
	}
	return lease, err
}

// release releases the instance that was chosen for an attempt that will not be made.
func (a *attempts) release() {
	if a.next != nil {
		a.next.Done(discovery.Failed) // nothing was sent, and Failed does not demote the instance
		a.next = nil
	}
}

// at sends one attempt to the instance, or to the external server if the target is one. The timeout of the policy
// limits the time until the headers of the answer arrive.
func (a *attempts) at(ctx context.Context, place *discovery.Instance) (Answer, error) {
	ctx, limit := a.policy.Deadline(ctx)
	i, id := a.invoke, a.trace.TraceID()
	in := &Inbound{
		Target: a.target, Caller: Caller{App: i.app}, Request: a.request(ctx), Method: a.method,
		Trace: id, Session: i.sessions.Share(i.app, id, a.session),
		Remote: a.call.Remote,
	}
	a.trace.Inject(in.Request.Header)
	var answer Answer
	var err error
	switch {
	case a.external != nil:
		answer, err = a.external.call(in)
	case place.Local:
		in.Caller.Proven, in.Caller.Local = true, true // its listener knows the caller
		answer, err = i.here.Take(in)
	default:
		answer, err = i.routes.carry(place, in)
	}
	if err != nil {
		if limit.Passed() && !a.late {
			a.late = true
			a.activated(resiliency.KindTimeout)
		}
		return Answer{}, limit.Explain(err)
	}
	limit.Answered()
	i.sessions.Inbound(i.app, id, answer.Session)
	answer.Session = i.sessions.Extend(a.call.Header.Get("Quorate-Session"), answer.Session)
	return answer, nil
}

// hop returns the name of the hop that an attempt took, for the details of errors. p is the chosen instance, or nil if
// there is none.
func (a *attempts) hop(p *discovery.Instance) string {
	switch {
	case a.external != nil:
		return "endpoint"
	case p == nil:
		return "discovery"
	case p.Local:
		return "application"
	}
	return "node " + p.Node
}

// again reports whether to make another attempt, and returns the pause before it. If the last instance was unavailable
// and there is another one, the next attempt uses the other instance without a pause.
func (a *attempts) again(answer Answer, err error) (time.Duration, bool) {
	if a.pauses == nil {
		a.pauses = a.policy.Pauses()
	}
	pauses := a.pauses
	if err == nil {
		pause, ok := pauses.Next()
		return pause, ok && !a.body.spent() && a.body.again()
	}
	f := api.AsError(err)
	switch {
	case f.Details.Reason == ReasonCircuitOpen:
		return 0, false // an open circuit breaker protects the target
	case f.Kind == api.Denied || f.Kind == api.Malformed || f.Kind == api.Missing:
		return 0, false
	case f.Kind != api.Unavailable && !a.policy.Explicit():
		return 0, false // the target may have executed the call
	}
	if len(a.tried) > 0 && f.Kind == api.Unavailable && a.external == nil {
		a.next, _ = a.invoke.routes.pick(a.target, a.tried)
	}
	pause, ok := pauses.Next()
	ok = ok && (f.Kind == api.Unavailable || !a.body.spent())
	if !ok || !a.body.again() || !a.policy.Explicit() && !a.invoke.budget.Spend() {
		a.release()
		return 0, false
	}
	if a.next != nil && f.Kind == api.Unavailable {
		pause = 0 // another instance may serve the call at once
	}
	return pause, true
}

func outcomeOf(err error) discovery.Outcome {
	switch {
	case err == nil:
		return discovery.OK
	case fault.Is(err, fault.Unavailable):
		return discovery.Unreachable
	case fault.Is(err, fault.Denied):
		return discovery.OK
	}
	return discovery.Failed
}

// The limits for reading the body of an answer that is discarded. If the body exceeds a limit, its connection is closed
// and not reused.
const (
	drainSize = 64 << 10
	drainTime = time.Second
)

// discard closes the body of an answer. It reads a short body to its end first, so that the connection can be reused.
func discard(r *http.Response) {
	if r.ContentLength >= 0 && r.ContentLength <= drainSize {
		t := time.AfterFunc(drainTime, func() { _ = r.Body.Close() }) // ends CopyN
		defer t.Stop()
		_, _ = io.CopyN(io.Discard, r.Body, drainSize+1)
	}
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
