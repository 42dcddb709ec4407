package node

import (
	"errors"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// rules are what Configuration and Resiliency documents say about calls.
type rules struct {
	access     *component.AccessControl // nil = everybody may call
	resiliency []component.Resiliency
	unused     []component.Problem
}

// readRules reads all documents of both kinds; of several access controls the last counts.
func readRules(c Config, set documents) (r rules, err error) {
	var errs []error
	for _, d := range set.Documents(component.KindConfiguration) {
		conf, err := component.ParseConfiguration(d)
		errs = append(errs, err)
		if conf.AccessControl != nil {
			r.access = conf.AccessControl
		}
		r.unused = append(r.unused, conf.Unused...)
	}
	for _, d := range set.Documents(component.KindResiliency) {
		one, err := component.ParseResiliency(d)
		errs = append(errs, err)
		r.resiliency = append(r.resiliency, one)
		r.unused = append(r.unused, one.Unused...)
	}
	return r, errors.Join(append(errs, c.checkAccess(r.access))...)
}

// checkAccess refuses policies about callers that nothing identifies.
func (c Config) checkAccess(a *component.AccessControl) error {
	if !a.NeedsIdentity() || c.Security.Insecure || c.provesCallers() {
		return nil
	}
	return &fault.Error{Code: fault.Invalid, Op: "node.Config", Key: a.Pos.String(),
		Msg:  a.Pos.String() + ": accessControl has policies for callers, and nothing proves who calls from another node",
		Hint: "secure the traffic between nodes with --cluster-token-file, or believe every node with --insecure"}
}

// provesCallers reports whether the connections between nodes prove which applications a
// node speaks for.
func (c Config) provesCallers() bool { return c.Security.secured() }

// configureCalls puts the rules about calls into force.
func (n *Node) configureCalls(set documents) error {
	r, err := readRules(n.config, set)
	if err != nil {
		return err
	}
	for _, w := range r.unused {
		n.log.Warn(w.String())
	}
	if r.access != nil {
		if err := n.certifyIn(r.access.TrustDomain); err != nil {
			return err
		}
	}
	n.calls.parts.Policies.Set(n.policies(r.resiliency))
	n.inbound = n.boundPolicies(r.resiliency, func(t component.ComponentTargets) component.ResiliencyTarget { return t.Inbound })
	n.outbound = n.boundPolicies(r.resiliency, func(t component.ComponentTargets) component.ResiliencyTarget { return t.Outbound })
	channels, access := map[api.App]api.Channel{}, map[api.App]*api.Access{}
	guard := api.NewAccess(r.access, n.config.Security.Insecure && !n.config.provesCallers())
	for app, c := range n.calls.channels {
		channels[app], access[app] = c, guard
	}
	n.calls.parts.Here.Serve(channels, access) // not before the rules are in force
	return nil
}

// policies turns documents into the policies of targets, and that of all others. Of
// several documents about one target the last counts.
func (n *Node) policies(documents []component.Resiliency) (map[api.App]*api.Policy, *api.Policy) {
	targets, others := map[api.App]*api.Policy{}, &api.Policy{}
	for _, d := range documents {
		made := policyMaker{doc: d, changed: n.circuitChanged}
		for id, t := range d.Apps {
			if app, ok := api.ParseTarget(id, n.config.Namespace); ok {
				targets[app] = made.policy(t.Timeout, t.Retry, t.CircuitBreaker)
			}
		}
		made.defaults(others)
	}
	return targets, others
}

// policyMaker makes policies from the parts that a document names.
type policyMaker struct {
	doc     component.Resiliency
	changed func(target api.App, instance, to string)
}

func (m policyMaker) policy(timeout, retry, breaker string) *api.Policy {
	p := &api.Policy{Timeout: m.doc.Timeouts[timeout]}
	if r, ok := m.doc.Retries[retry]; ok {
		p.Retry = &api.Retry{Pause: r.Duration, MaxPause: r.MaxInterval, Exponential: r.Exponential, Max: r.MaxRetries, Statuses: r.Statuses}
	}
	if b, ok := m.doc.Breakers[breaker]; ok {
		p.Breaker = &api.Breakers{Settings: api.BreakerSettings{Name: breaker, MaxRequests: b.MaxRequests, Interval: b.Interval, Timeout: b.Timeout, Trip: tripOf(b.Trip), OnChange: m.changed}}
	}
	return p
}

// defaults lays the policies that hold for every application over others.
func (m policyMaker) defaults(others *api.Policy) {
	for _, names := range [][3]string{
		{component.DefaultTimeout, component.DefaultRetry, component.DefaultBreaker},
		{component.DefaultAppTimeout, component.DefaultAppRetry, component.DefaultAppBreaker},
	} {
		p := m.policy(names[0], names[1], names[2])
		if p.Timeout > 0 {
			others.Timeout = p.Timeout
		}
		if p.Retry != nil {
			others.Retry = p.Retry
		}
		if p.Breaker != nil {
			others.Breaker = p.Breaker
		}
	}
}

func tripOf(t *component.Trip) func(api.BreakerCounts) bool {
	if t == nil {
		return nil
	}
	return func(c api.BreakerCounts) bool { return t.Holds(component.TripCounts(c)) }
}

// circuitChanged counts and logs a circuit breaker that opened or closed.
func (n *Node) circuitChanged(target api.App, instance, to string) {
	n.calls.parts.Metrics.CircuitChanged(target, to)
	n.log.Warn("a circuit breaker changed", "target", target.String(), "instance", instance, "state", to)
}
