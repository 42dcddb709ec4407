package calls

import (
	"errors"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// Rules are the rules for calls in Configuration and Resiliency documents.
type Rules struct {
	Access     *component.AccessControl // nil = every application may call
	Conf       component.Configuration  // all Configuration documents, merged
	Resiliency []component.Resiliency
	Rejected   []error             // of invalid Resiliency documents that have no effect
	Unused     []component.Problem // parts of the documents that have no effect
}

// Trust describes how callers on other nodes are identified.
type Trust struct {
	Proven   bool // certificates of nodes prove which applications they serve
	Insecure bool // the user accepts callers without proof of their identity
}

// Reading configures ReadRules.
type Reading struct {
	Trust
	// Dapr selects Dapr's defaults: metrics with Dapr's names, and a Resiliency document that is invalid has no effect
	Dapr bool
}

// Documents provides the documents that the node has read from its files.
type Documents interface {
	Documents(kind component.Kind) []component.Document
}

// ReadRules reads all Configuration and Resiliency documents. It returns an error in two cases:
//
//   - A document is invalid. If reading.Dapr is true, an invalid Resiliency document is not an error, and its problem
//     is added to Rules.Rejected.
//   - The access control rules depend on the identity of callers, but reading.Trust provides no way to identify
//     callers.
func ReadRules(set Documents, reading Reading) (r Rules, err error) {
	var defaults component.Configuration
	if reading.Dapr {
		defaults.Metrics = &component.MetricsConfig{Enabled: true, DaprNames: true}
	}
	r.Conf, err = component.ParseConfigurations(set.Documents(component.KindConfiguration), defaults)
	errs := []error{err}
	r.Access, r.Unused = r.Conf.AccessControl, r.Conf.Unused
	for _, d := range set.Documents(component.KindResiliency) {
		one, err := component.ParseResiliency(d)
		if err != nil && reading.Dapr {
			r.Rejected = append(r.Rejected, err)
			continue
		}
		errs = append(errs, err)
		r.Resiliency = append(r.Resiliency, one)
		r.Unused = append(r.Unused, one.Unused...)
	}
	return r, errors.Join(append(errs, reading.check(r.Access))...)
}

func (t Trust) check(a *component.AccessControl) error {
	if !a.NeedsIdentity() || t.Insecure || t.Proven {
		return nil
	}
	return &fault.Error{Code: fault.Invalid, Op: "node.Config", Key: a.Pos.String(),
		Msg: a.Pos.String() + ": accessControl has policies for callers, and nothing proves who calls from " +
			"another node",
		Hint: "secure the traffic between nodes with --cluster-token-file, or trust every node with --insecure"}
}

// Rules returns the rules that SetRules set last. They must not be changed.
func (c *Calls) Rules() Rules {
	if r := c.rules.Load(); r != nil {
		return *r
	}
	return Rules{}
}

// SetRules sets the rules for calls. The parameter t describes how callers are identified. The applications of this
// node cannot be called until SetRules has been called once.
func (c *Calls) SetRules(r Rules, t Trust) {
	c.rules.Store(&r)
	c.parts.Policies.Set(c.policies(r.Resiliency))
	c.others.Store(&otherRules{
		inbound: otherPolicies(r.Resiliency, func(d *component.Resiliency) map[string]component.ResiliencyTarget {
			return direction(d, func(t component.ComponentTargets) component.ResiliencyTarget { return t.Inbound })
		}),
		outbound: otherPolicies(r.Resiliency, func(d *component.Resiliency) map[string]component.ResiliencyTarget {
			return direction(d, func(t component.ComponentTargets) component.ResiliencyTarget { return t.Outbound })
		}),
		actors: otherPolicies(r.Resiliency, func(d *component.Resiliency) map[string]component.ResiliencyTarget {
			return d.Actors
		}),
	})
	channels, access := map[api.App]invoke.Channel{}, map[api.App]*invoke.Access{}
	guard := invoke.NewAccess(r.Access, t.Insecure && !t.Proven)
	for app, ch := range c.channels {
		channels[app], access[app] = c.filtered(ch), guard
	}
	c.parts.Here.Serve(channels, access) // last, because calls begin now and need the other rules
}

// Inbound returns the Resiliency policy for events that the component with the given name delivers to an application.
// It returns nil if there is no such policy.
func (c *Calls) Inbound(name string) *resiliency.Policy { return c.others.Load().inbound[name] }

// Outbound returns the policy for operations on a component; nil = none.
func (c *Calls) Outbound(name string) *resiliency.Policy { return c.others.Load().outbound[name] }

// Actor returns the policy for calls to the actors of a type; nil = none.
func (c *Calls) Actor(actorType string) *resiliency.Policy { return c.others.Load().actors[actorType] }

// direction returns either the inbound or the outbound targets of all components in d, by component name. The function
// pick selects one of the two targets of a component.
func direction(d *component.Resiliency,
	pick func(component.ComponentTargets) component.ResiliencyTarget) map[string]component.ResiliencyTarget {
	out := map[string]component.ResiliencyTarget{}
	for name, targets := range d.Components {
		out[name] = pick(targets)
	}
	return out
}

// otherPolicies returns the policies of targets other than applications, by target name. The function targets returns
// these targets of a document. If several documents have the same target, the last one applies.
func otherPolicies(documents []component.Resiliency,
	targets func(*component.Resiliency) map[string]component.ResiliencyTarget) map[string]*resiliency.Policy {
	out := map[string]*resiliency.Policy{}
	for i := range documents {
		made := policyMaker{doc: documents[i]}
		for name, t := range targets(&documents[i]) {
			out[name] = made.policy(t.Timeout, t.Retry, "")
		}
	}
	return out
}

// policies returns the policies for the applications that the documents name. The second result is the default policy
// for all other applications. If several documents name the same application, the last document applies.
func (c *Calls) policies(documents []component.Resiliency) (map[api.App]*resiliency.Policy, *resiliency.Policy) {
	targets, others := map[api.App]*resiliency.Policy{}, &resiliency.Policy{}
	for _, d := range documents {
		made := policyMaker{doc: d, changed: circuitLog{c, d.Name}.changed}
		for id, t := range d.Apps {
			if app, ok := invoke.ParseTarget(id, c.opts.Namespace); ok {
				targets[app] = made.policy(t.Timeout, t.Retry, t.CircuitBreaker)
			}
		}
		made.defaults(others)
	}
	return targets, others
}

// policyMaker makes policies from the timeouts, retries and circuit breakers that a document defines.
type policyMaker struct {
	doc     component.Resiliency
	changed func(target api.App, method, to string)
}

func (m policyMaker) policy(timeout, retry, breaker string) *resiliency.Policy {
	p := &resiliency.Policy{Timeout: m.doc.Timeouts[timeout]}
	if p.Timeout > 0 {
		p.Documents.Timeout = m.doc.Name
	}
	if r, ok := m.doc.Retries[retry]; ok {
		p.Documents.Retry = m.doc.Name
		p.Retry = &resiliency.Retry{Pause: r.Duration, MaxPause: r.MaxInterval, Exponential: r.Exponential,
			Max: r.MaxRetries, Statuses: r.Statuses, Codes: r.Codes}
	}
	if b, ok := m.doc.Breakers[breaker]; ok {
		p.Documents.Breaker = m.doc.Name
		p.Breaker = &resiliency.Breakers{Settings: resiliency.BreakerSettings{Name: breaker, MaxRequests: b.MaxRequests,
			Interval: b.Interval, Timeout: b.Timeout, Trip: tripOf(b.Trip), OnChange: m.changed}}
	}
	return p
}

// defaults copies the default policies of the document to others, which is the policy for applications that no document
// names. In a document, a default for applications has precedence over a general default.
func (m policyMaker) defaults(others *resiliency.Policy) {
	for _, names := range [][3]string{
		{component.DefaultTimeout, component.DefaultRetry, component.DefaultBreaker},
		{component.DefaultAppTimeout, component.DefaultAppRetry, component.DefaultAppBreaker},
	} {
		p := m.policy(names[0], names[1], names[2])
		if p.Timeout > 0 {
			others.Timeout, others.Documents.Timeout = p.Timeout, p.Documents.Timeout
		}
		if p.Retry != nil {
			others.Retry, others.Documents.Retry = p.Retry, p.Documents.Retry
		}
		if p.Breaker != nil {
			others.Breaker, others.Documents.Breaker = p.Breaker, p.Documents.Breaker
		}
	}
}

func tripOf(t *component.TripCondition) func(resiliency.BreakerCounts) bool {
	if t == nil {
		return nil
	}
	return func(c resiliency.BreakerCounts) bool { return t.IsTrue(component.TripCounts(c)) }
}

// circuitLog counts and logs changes of the circuit breakers that a document declares.
type circuitLog struct {
	calls    *Calls
	document string
}

// changed counts and logs a change of a circuit breaker. The parameter to is the new state of the circuit breaker.
func (l circuitLog) changed(target api.App, method, to string) {
	l.calls.parts.Metrics.CircuitChanged(l.document, target, to)
	l.calls.opts.Logger.Warn("a circuit breaker changed", "target", target.String(), "method", method, "state", to)
}
