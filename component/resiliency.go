package component

import (
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Resiliency is the content of a document of kind Resiliency. It defines policies and assigns them to applications and
// components.
type Resiliency struct {
	Name     string
	Pos      Pos
	Timeouts map[string]time.Duration
	Retries  map[string]RetryPolicy
	Breakers map[string]BreakerPolicy
	Apps     map[string]ResiliencyTarget // by application id, optionally with a dot and a namespace
	// Components are the targets by component name.
	Components map[string]ComponentTargets
	Actors     map[string]ResiliencyTarget // by actor type
	Unused     []Problem                   // parts that have no effect
}

// RetryPolicy defines which failed calls are retried, and when.
type RetryPolicy struct {
	Exponential bool
	Duration    time.Duration // pause between two attempts; if Exponential, the first pause
	MaxInterval time.Duration // longest pause if Exponential
	MaxRetries  int           // negative = no limit
	Statuses    [][2]int      // inclusive ranges of HTTP statuses to retry; empty = retry all failures
	Codes       [][2]int      // inclusive ranges of gRPC codes to retry; empty = retry all failures
}

// BreakerPolicy defines when a circuit breaker opens and closes.
type BreakerPolicy struct {
	MaxRequests uint32
	Interval    time.Duration
	Timeout     time.Duration
	Trip        *TripCondition // nil = more than 5 consecutive failures
}

// ResiliencyTarget has the names of the policies that apply to one target. An empty name means that no policy of
// that kind applies.
type ResiliencyTarget struct {
	Timeout, Retry, CircuitBreaker string
	Pos                            Pos
}

// ComponentTargets are the policies of one component. Inbound is for calls from the component to the application.
// Outbound is for calls from the application to the component.
type ComponentTargets struct{ Inbound, Outbound ResiliencyTarget }

// Names of the default policies, and the default pauses of a retry policy. The default policies apply to applications
// without a target of their own. DefaultAppTimeoutPolicy takes precedence over DefaultTimeoutPolicy. The same applies
// to retries and circuit breakers.
const (
	DefaultAppTimeout  = "DefaultAppTimeoutPolicy"
	DefaultTimeout     = "DefaultTimeoutPolicy"
	DefaultAppRetry    = "DefaultAppRetryPolicy"
	DefaultRetry       = "DefaultRetryPolicy"
	DefaultAppBreaker  = "DefaultAppCircuitBreakerPolicy"
	DefaultBreaker     = "DefaultCircuitBreakerPolicy"
	defaultRetryPause  = 5 * time.Second
	defaultMaxInterval = time.Minute
)

// ParseResiliency parses a document of kind Resiliency. For an unknown field or a reference to an undefined policy, it
// returns an error with file and line.
func ParseResiliency(doc Document) (Resiliency, error) {
	p := docParser{file: doc.Pos.File}
	r := Resiliency{Name: doc.Name, Pos: doc.Pos, Timeouts: map[string]time.Duration{},
		Retries: map[string]RetryPolicy{}, Breakers: map[string]BreakerPolicy{}, Apps: map[string]ResiliencyTarget{},
		Components: map[string]ComponentTargets{}, Actors: map[string]ResiliencyTarget{}}
	ignore := func(*yaml.Node) {}
	p.readFields(doc.Body, "", fields{
		"apiVersion": ignore, "kind": ignore, "metadata": ignore, "scopes": ignore, "status": ignore,
		"spec": func(n *yaml.Node) {
			p.readFields(n, "spec", fields{
				"policies": func(n *yaml.Node) { p.resiliencyPolicies(n, &r) },
				"targets":  func(n *yaml.Node) { p.resiliencyTargets(n, &r) },
			})
		},
	})
	p.resiliencyNames(&r)
	p.problems.order(doc)
	return r, p.problems.Err("component.ParseResiliency")
}

func (p *docParser) resiliencyPolicies(n *yaml.Node, r *Resiliency) {
	p.readFields(n, "spec.policies", fields{
		"timeouts": func(n *yaml.Node) {
			p.named(n, "timeouts", func(name string, n *yaml.Node) { r.Timeouts[name] = p.span(n, "timeout "+name) })
		},
		"retries": func(n *yaml.Node) {
			p.named(n, "retries", func(name string, n *yaml.Node) { r.Retries[name] = p.retryPolicy(n) })
		},
		"circuitBreakers": func(n *yaml.Node) {
			p.named(n, "circuitBreakers", func(name string, n *yaml.Node) { r.Breakers[name] = p.breakerPolicy(n) })
		},
	})
}

// named calls the function read with the name and the value of each entry in the mapping n. An entry may have any name.
// what describes the mapping in error messages.
func (p *docParser) named(n *yaml.Node, what string, read func(name string, n *yaml.Node)) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		p.problems.add(p.pos(n), "", "%s must be a mapping, not %s", what, describe(n))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		read(n.Content[i].Value, n.Content[i+1])
	}
}

// span reads a duration that must not be negative. what describes the value in error messages.
func (p *docParser) span(n *yaml.Node, what string) time.Duration {
	text := p.required(n, what)
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		p.problems.add(p.pos(n), "use a duration such as 500ms or 5s", "%s is %q", what, text)
	}
	return max(d, 0)
}

func (p *docParser) whole(n *yaml.Node, what string) int {
	text := p.required(n, what)
	v, err := strconv.ParseInt(text, 10, 32)
	if err != nil && text != "" {
		p.problems.add(p.pos(n), "use a whole number", "%s is %q", what, text)
	}
	return int(v)
}

func (p *docParser) retryPolicy(n *yaml.Node) RetryPolicy {
	r := RetryPolicy{Duration: defaultRetryPause, MaxInterval: defaultMaxInterval, MaxRetries: -1}
	p.readFields(n, "a retry policy", fields{
		"policy": func(n *yaml.Node) {
			switch text := p.required(n, "policy"); strings.ToLower(text) {
			case "constant", "":
			case "exponential":
				r.Exponential = true
			default:
				p.problems.add(p.pos(n), "use constant or exponential", "policy is %q", text)
			}
		},
		"duration":    func(n *yaml.Node) { r.Duration = p.span(n, "duration") },
		"maxInterval": func(n *yaml.Node) { r.MaxInterval = p.span(n, "maxInterval") },
		"maxRetries":  func(n *yaml.Node) { r.MaxRetries = p.whole(n, "maxRetries") },
		"matching": func(n *yaml.Node) {
			p.readFields(n, "matching", fields{
				"httpStatusCodes": func(n *yaml.Node) { r.Statuses = p.ranges(n, "httpStatusCodes", 100, 599) },
				"gRPCStatusCodes": func(n *yaml.Node) { r.Codes = p.ranges(n, "gRPCStatusCodes", 0, 16) },
			})
		},
	})
	if r.Exponential && n.Kind == yaml.MappingNode && child(n, "duration") == nil {
		r.Duration = 500 * time.Millisecond // the first pause
	}
	return r
}

// ranges parses a list of numbers and ranges, such as "429,500-599". Each number must be at least lowest and at most
// highest. For an empty text, the result is nil. what describes the value in error messages.
func (p *docParser) ranges(n *yaml.Node, what string, lowest, highest int) (out [][2]int) {
	text := p.text(n, what)
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		low, high, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			high = low
		}
		a, err1 := strconv.Atoi(strings.TrimSpace(low))
		b, err2 := strconv.Atoi(strings.TrimSpace(high))
		if err1 != nil || err2 != nil || a < lowest || b > highest || a > b {
			p.problems.add(p.pos(n), "use numbers and ranges of them from "+strconv.Itoa(lowest)+" to "+
				strconv.Itoa(highest)+", as 429,500-599 for httpStatusCodes", "%s has %q", what, part)
			continue
		}
		out = append(out, [2]int{a, b})
	}
	return out
}

func (p *docParser) breakerPolicy(n *yaml.Node) BreakerPolicy {
	b := BreakerPolicy{MaxRequests: 1, Timeout: time.Minute}
	p.readFields(n, "a circuit breaker", fields{
		"maxRequests": func(n *yaml.Node) {
			v := p.whole(n, "maxRequests")
			if v < 0 {
				p.problems.add(p.pos(n), "use a whole number above zero", "maxRequests is %d", v)
			}
			b.MaxRequests = uint32(max(v, 1))
		},
		"interval": func(n *yaml.Node) { b.Interval = p.span(n, "interval") },
		"timeout":  func(n *yaml.Node) { b.Timeout = p.span(n, "timeout") },
		"trip": func(n *yaml.Node) {
			trip, err := ParseTripCondition(p.required(n, "trip"))
			if err != nil {
				p.problems.add(p.pos(n), "compare consecutiveFailures, requests and totalFailures with numbers, "+
					"as in consecutiveFailures > 5", "trip %q: %s", n.Value, err)
			}
			b.Trip = trip
		},
	})
	return b
}

func (p *docParser) resiliencyTargets(n *yaml.Node, r *Resiliency) {
	p.readFields(n, "spec.targets", fields{
		"apps": func(n *yaml.Node) {
			p.named(n, "apps", func(app string, n *yaml.Node) {
				t := ResiliencyTarget{Pos: p.pos(n)}
				p.readFields(n, "the target "+app, fields{
					"timeout": func(n *yaml.Node) { t.Timeout = p.required(n, "timeout") },
					"retry":   func(n *yaml.Node) { t.Retry = p.required(n, "retry") },
					"circuitBreaker": func(n *yaml.Node) {
						t.CircuitBreaker = p.required(n,
							"circuitBreaker")
					},
					"circuitBreakerCacheSize": func(*yaml.Node) {}, // no effect: the number is always bounded
				})
				r.Apps[app] = t
			})
		},
		"components": func(n *yaml.Node) {
			p.named(n, "components", func(name string, n *yaml.Node) {
				var t ComponentTargets
				p.readFields(n, "the target "+name, fields{
					"inbound":  func(n *yaml.Node) { t.Inbound = p.otherTarget(n, name+".inbound", r) },
					"outbound": func(n *yaml.Node) { t.Outbound = p.otherTarget(n, name+".outbound", r) },
				})
				r.Components[name] = t
			})
		},
		"actors": func(n *yaml.Node) {
			p.named(n, "actors", func(name string, n *yaml.Node) { r.Actors[name] = p.otherTarget(n, name, r) })
		},
	})
}

// otherTarget parses the policies of an actor type, or of one direction of a component. A circuit breaker has no effect
// on such a target, so it is listed in r.Unused.
func (p *docParser) otherTarget(n *yaml.Node, name string, r *Resiliency) ResiliencyTarget {
	t := ResiliencyTarget{Pos: p.pos(n)}
	ignore := func(*yaml.Node) {}
	p.readFields(n, "the target "+name, fields{
		"timeout": func(n *yaml.Node) { t.Timeout = p.required(n, "timeout") },
		"retry":   func(n *yaml.Node) { t.Retry = p.required(n, "retry") },
		"circuitBreaker": func(n *yaml.Node) {
			r.Unused = append(r.Unused, Problem{Pos: p.pos(n), Text: "the circuitBreaker of " + name +
				" has no effect here"})
		},
		"circuitBreakerScope": ignore, "circuitBreakerCacheSize": ignore, // settings of the circuit breaker
	})
	return t
}

// resiliencyNames checks that the policies named by targets exist.
func (p *docParser) resiliencyNames(r *Resiliency) {
	for name, t := range r.Apps {
		p.policiesOf(name, t, r)
	}
	for name, t := range r.Actors {
		p.policiesOf("actors."+name, t, r)
	}
	for name, t := range r.Components {
		p.policiesOf(name+".inbound", t.Inbound, r)
		p.policiesOf(name+".outbound", t.Outbound, r)
	}
}

// policiesOf checks that the policies of one target exist.
func (p *docParser) policiesOf(target string, t ResiliencyTarget, r *Resiliency) {
	_, timeout := r.Timeouts[t.Timeout]
	_, retry := r.Retries[t.Retry]
	_, breaker := r.Breakers[t.CircuitBreaker]
	for _, c := range []struct {
		kind, name string
		there      bool
	}{{"timeout", t.Timeout, timeout}, {"retry", t.Retry, retry}, {"circuitBreaker", t.CircuitBreaker, breaker}} {
		if c.name != "" && !c.there {
			p.problems.add(t.Pos, "define it under spec.policies",
				"the target %s names the %s %q, which is not defined", target, c.kind, c.name)
		}
	}
}
