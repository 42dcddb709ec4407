package invoke

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// Access decides which callers may call an application. A nil *Access allows all calls. An Access is immutable.
type Access struct {
	allow    bool   // the default action
	domain   string // trust domain of the applications of this node
	policies map[api.App]*accessPolicy
	insecure bool            // accept a caller's identity without proof
	verbs    map[string]bool // verbs that rules can allow or deny
}

type accessPolicy struct {
	domain     string
	allow      bool
	operations []accessOperation
}

type accessOperation struct {
	pattern []string // parts of the path, in lower case
	deep    bool     // the pattern ended in **: any number of parts may follow
	verbs   map[string]bool
	allow   bool
}

// NewAccess returns the rules of an accessControl section, or nil if spec is nil. The policy for a caller applies only
// if the connection proves the app id and the namespace of the caller. If insecure is true, no proof is needed.
func NewAccess(spec *component.AccessControl, insecure bool) *Access {
	if spec == nil {
		return nil
	}
	a := &Access{
		allow: spec.DefaultAction == component.Allow, domain: cmp.Or(spec.TrustDomain, component.DefaultTrustDomain),
		policies: map[api.App]*accessPolicy{}, insecure: insecure, verbs: standardVerbs(),
	}
	for _, p := range spec.Policies {
		policy := &accessPolicy{domain: p.TrustDomain, allow: p.DefaultAction == component.Allow ||
			p.DefaultAction == "" && a.allow}
		for _, o := range p.Operations {
			policy.operations = append(policy.operations, newAccessOperation(o))
			for _, v := range o.Verbs {
				a.verbs[v] = v != "*"
			}
		}
		a.policies[api.App{ID: p.AppID, Namespace: CanonicalNamespace(p.Namespace)}] = policy
	}
	return a
}

// standardVerbs returns the standard HTTP verbs. Access.Allow refuses every other verb, such as "delete" in lower case,
// unless a rule names it. Some servers ignore the case of verbs, so "delete" would evade a rule about DELETE.
func standardVerbs() map[string]bool {
	out := map[string]bool{}
	for _, v := range []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions, http.MethodTrace,
	} {
		out[v] = true
	}
	return out
}

func newAccessOperation(o component.AccessOperation) accessOperation {
	out := accessOperation{pattern: patternParts(o.Name), allow: o.Action == component.Allow, verbs: map[string]bool{}}
	if n := len(out.pattern); n > 0 && out.pattern[n-1] == "**" {
		out.pattern, out.deep = out.pattern[:n-1], true
	}
	for _, v := range o.Verbs {
		out.verbs[v] = true
	}
	return out
}

// patternParts splits the path of a rule into parts in lower case. It drops parts that are empty or ".".
func patternParts(name string) []string {
	void := func(part string) bool { return part == "" || part == "." }
	return slices.DeleteFunc(strings.Split(strings.ToLower(name), "/"), void)
}

// Allow returns fault.Denied unless the rules allow the call:
//
//   - An application may call itself.
//   - The policy for a caller decides about the calls of this caller. It must allow every possible decoding of the
//     path, because servers decode paths in different ways.
//   - The default action decides about all other calls.
//
// The first two points apply only if the identity of the caller is proven, or if the rules are insecure (see
// NewAccess).
func (a *Access) Allow(in *Inbound) error {
	if a == nil || in.Caller.App == in.Target && (in.Caller.Proven || a.insecure) {
		return nil
	}
	what := in.Target.String() + " does not allow " + in.Caller.String() +
		" to call " + api.Shorten(in.Request.Method) + " " + api.Shorten(in.Method.Decoded)
	switch {
	case !a.verbs[in.Request.Method]:
		return &fault.Error{
			Code: fault.Denied, Op: "api.Invoke", Hint: "write the verb in capitals, or name it in a rule",
			Msg: "access control of " + what + ": the verb is not a standard one and no rule names it",
		}
	case !a.decide(in):
		return &fault.Error{Code: fault.Denied, Op: "api.Invoke", Msg: "access control of " + what}
	}
	return nil
}

func (a *Access) decide(in *Inbound) bool {
	p := a.policyFor(in)
	if p == nil {
		return a.allow
	}
	return everyReading(in.Method.Path, func(path []string) bool { return p.decide(in.Request.Method, path) })
}

// policyFor returns the policy for the caller, or nil if the default action applies.
func (a *Access) policyFor(in *Inbound) *accessPolicy {
	p := a.policies[in.Caller.App]
	if p == nil || !in.Caller.Proven && !a.insecure || p.domain != a.domainOf(&in.Caller) {
		return nil
	}
	return p
}

func (p *accessPolicy) decide(verb string, path []string) bool {
	for _, o := range p.operations {
		if o.matches(path) {
			if o.covers(verb) {
				return o.allow
			}
			return p.allow // the rules of this path apply to other verbs
		}
	}
	return p.allow
}

// covers reports whether an operation (one rule of a policy) applies to a verb. A rule that denies GET also denies
// HEAD, because servers use the same handler for both verbs.
func (o *accessOperation) covers(verb string) bool {
	return o.verbs[verb] || o.verbs["*"] || verb == http.MethodHead && !o.allow && o.verbs[http.MethodGet]
}

// domainOf returns the trust domain of a caller.
func (a *Access) domainOf(c *Caller) string {
	if c.Local {
		return a.domain
	}
	return cmp.Or(c.TrustDomain, component.DefaultTrustDomain)
}

// matches reports whether an operation applies to a path.
func (o *accessOperation) matches(path []string) bool {
	if len(path) < len(o.pattern) || len(path) > len(o.pattern) && !o.deep {
		return false
	}
	for i, part := range o.pattern {
		if !wildcard(part, path[i]) {
			return false
		}
	}
	// A rule that denies everything below a path also denies the path itself. Here /admin/ and /admin are the same
	// path, but the application may distinguish them.
	return !o.deep || len(path) > len(o.pattern) || !o.allow
}

// wildcard reports whether text matches pattern. Each * in pattern matches any sequence of characters.
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
