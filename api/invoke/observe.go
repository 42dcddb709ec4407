package invoke

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
)

// Observer is notified of calls, access control decisions and applied policies. Its methods get the app ids of
// applications, or "unknown" for an application that is not known in the cluster. Implementations are safe for
// concurrent use.
type Observer interface {
	// Sent is called when an application calls another one.
	Sent(source, target string, streaming bool)
	// Answered is called when the answer to a call has arrived. status is the HTTP status, or the gRPC code if the
	// call was a gRPC call.
	Answered(source, target, status string, streaming bool, took time.Duration)
	// Received is called when a call of another node has arrived.
	Received(target, source string)
	// Replied is called when a call of another node has been answered.
	Replied(target, source, status string)
	// Decided is called when access control has decided about a call. own is true if a policy for the caller decided,
	// and false if the default action did.
	Decided(caller, domain, namespace string, own, allowed bool)
	// PolicyApplied is called for each policy that applies to a call. document is the name of the Resiliency
	// document. policy is timeout, retry or circuitbreaker. state is the state of the circuit breaker, and empty for
	// other policies.
	PolicyApplied(source, document, policy, target, state string)
	// PolicyActivated is called when a policy has acted: a timeout has expired, a call is retried, or a circuit
	// breaker has changed its state. source is empty for a circuit breaker, because the applications of a node share
	// it.
	PolicyActivated(source, document, policy, target, state string)
}

// id returns the id of an application for observers: the app id of a known application, and "unknown" for any other
// (see NewMetrics).
func (m *Metrics) id(app api.App) string {
	if m.known == nil || m.known(app) {
		return app.ID
	}
	return "unknown"
}

// streaming reports whether a call announces that it streams messages in both directions.
func streaming(h http.Header) bool {
	on, err := strconv.ParseBool(h.Get("Dapr-Stream"))
	return err == nil && on
}

// statusOf returns the status of an answer: the gRPC code for a gRPC answer, and otherwise the HTTP status. If the gRPC
// code is in the trailers, which have not arrived yet, statusOf returns 0.
func statusOf(r *http.Response) string {
	if code := r.Header.Get("Grpc-Status"); code != "" {
		return code
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return "0" // the code is not known yet
	}
	return strconv.Itoa(r.StatusCode)
}

func (i invokeMeter) observeBegin() {
	o := i.metrics.observer
	switch {
	case o == nil:
	case i.labels.hop == hopCaller:
		o.Sent(i.sourceID, i.targetID, i.streaming)
	default:
		o.Received(i.targetID, i.sourceID)
	}
}

func (i invokeMeter) observeEnd(r *http.Response, err error) {
	o := i.metrics.observer
	switch {
	case o == nil || err != nil:
	case i.labels.hop == hopCaller:
		o.Answered(i.sourceID, i.targetID, statusOf(r), i.streaming, time.Since(i.begun))
	default:
		o.Replied(i.targetID, i.sourceID, statusOf(r))
	}
}

// decided reports a decision of access control to the observer. err is the refusal, or nil.
func (m *Metrics) decided(a *Access, in *Inbound, err error) {
	if m.observer == nil || a == nil {
		return
	}
	m.observer.Decided(m.id(in.Caller.App), a.domainOf(&in.Caller), orDefault(in.Caller.Namespace),
		a.policyFor(in) != nil, err == nil)
}

// observePolicies reports the policies that apply to a call to the observer.
func (a *attempts) observePolicies() {
	o, p := a.invoke.metrics.observer, a.policy
	if o == nil {
		return
	}
	source, target := a.invoke.app.ID, a.invoke.metrics.id(a.target)
	if a.external != nil {
		target = a.target.ID
	}
	if p.Timeout > 0 {
		o.PolicyApplied(source, p.Documents.Timeout, resiliency.KindTimeout, target, "")
	}
	if p.Retry != nil {
		o.PolicyApplied(source, p.Documents.Retry, resiliency.KindRetry, target, "")
	}
	if p.Breaker != nil {
		o.PolicyApplied(source, p.Documents.Breaker, resiliency.KindBreaker, target,
			p.Breaker.State(a.circuit()))
	}
}

// activated reports to the observer that the timeout has expired (KindTimeout) or that a call is retried (KindRetry).
func (a *attempts) activated(kind string) {
	o, p := a.invoke.metrics.observer, a.policy
	if o == nil {
		return
	}
	document := p.Documents.Retry
	if kind == resiliency.KindTimeout {
		document = p.Documents.Timeout
	}
	o.PolicyActivated(a.invoke.app.ID, document, kind, a.invoke.metrics.id(a.target), "")
}
