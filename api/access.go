package api

import (
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// Access decides who may call an application. The nil value refuses nobody. Immutable.
type Access struct {
	allow    bool // by default
	domain   string
	policies map[App]*accessPolicy
	insecure bool // a caller's identity is believed without proof
}

type accessPolicy struct {
	domain     string
	allow      bool
	operations []accessOperation
}

type accessOperation struct {
	pattern []string // parts of the path, in lower case
	deep    bool     // it ended in **: any number of parts may follow
	verbs   map[string]bool
	allow   bool
}

// NewAccess makes the rules of an accessControl section; nil for a nil section. insecure
// believes callers whose identity nothing proves.
func NewAccess(spec *component.AccessControl, insecure bool) *Access {
	if spec == nil {
		return nil
	}
	a := &Access{allow: spec.DefaultAction == component.Allow, domain: spec.TrustDomain, policies: map[App]*accessPolicy{}, insecure: insecure}
	for _, p := range spec.Policies {
		policy := &accessPolicy{domain: p.TrustDomain, allow: p.DefaultAction == component.Allow || p.DefaultAction == "" && a.allow}
		for _, o := range p.Operations {
			policy.operations = append(policy.operations, newAccessOperation(o))
		}
		a.policies[App{ID: p.AppID, Namespace: CanonicalNamespace(p.Namespace)}] = policy
	}
	return a
}

func newAccessOperation(o component.AccessOperation) accessOperation {
	out := accessOperation{pattern: policyPath(o.Name), allow: o.Action == component.Allow, verbs: map[string]bool{}}
	if n := len(out.pattern); n > 0 && out.pattern[n-1] == "**" {
		out.pattern, out.deep = out.pattern[:n-1], true
	}
	for _, v := range o.Verbs {
		out.verbs[v] = true
	}
	return out
}

// Allow is nil if the call may go on to its application. An application may always call
// itself. A caller that is not proven matches no policy: only the default counts.
func (a *Access) Allow(in *Inbound) error {
	if a == nil || in.Caller.App == in.Target && (in.Caller.Proven || a.insecure) {
		return nil
	}
	if a.decide(in) {
		return nil
	}
	return &fault.Error{Code: fault.Denied, Op: "api.Invoke",
		Msg: "access control of " + in.Target.String() + " does not allow " + in.Caller.String() + " to call " + in.Request.Method + " " + show(in.Decoded)}
}

func (a *Access) decide(in *Inbound) bool {
	p := a.policies[in.Caller.App]
	if p == nil || !in.Caller.Proven && !a.insecure || p.domain != in.Caller.domain() {
		return a.allow
	}
	path := policyPath(in.Decoded)
	for _, o := range p.operations {
		if o.matches(path) {
			if o.verbs[in.Request.Method] || o.verbs["*"] {
				return o.allow
			}
			return p.allow // the path has a rule, and it is about other verbs
		}
	}
	return p.allow
}

func (c *Caller) domain() string {
	if c.TrustDomain == "" {
		return component.DefaultTrustDomain
	}
	return c.TrustDomain
}

// matches reports whether a path is one of those that an operation is about.
func (o *accessOperation) matches(path []string) bool {
	if len(path) < len(o.pattern) || len(path) > len(o.pattern) && !o.deep {
		return false
	}
	for i, part := range o.pattern {
		if !wildcard(part, path[i]) {
			return false
		}
	}
	// A rule that denies what lies below a path denies the path, too: /admin/ and /admin are
	// one here, and may be two for the application.
	return !o.deep || len(path) > len(o.pattern) || !o.allow
}

// wildcard reports whether text fits a pattern in which * stands for any run of characters.
func wildcard(pattern, text string) bool {
	head, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, head)
	if !ok {
		return false
	}
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(text, part) && len(text) >= len(part)
		}
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text, rest = text[i+len(part):], after
	}
}
