package component

import (
	"net/http"
	"strings"

	"go.yaml.in/yaml/v3"
)

// AccessControl is the section accessControl: which applications may call this one.
type AccessControl struct {
	DefaultAction Action // when left out: Deny if there are policies, otherwise Allow
	TrustDomain   string // trust domain of the application; when left out, DefaultTrustDomain
	Policies      []AccessPolicy
	Pos           Pos
}

// NeedsIdentity reports whether the identity of the caller affects which calls are allowed.
func (a *AccessControl) NeedsIdentity() bool { return a != nil && len(a.Policies) > 0 }

// AccessPolicy is the rule for calls from one application.
type AccessPolicy struct {
	AppID         string
	Namespace     string
	TrustDomain   string
	DefaultAction Action // action for operations not in Operations; empty = AccessControl.DefaultAction
	Operations    []AccessOperation
	Pos           Pos
}

// AccessOperation is the rule for methods that match a pattern.
type AccessOperation struct {
	Name   string   // pattern for the path of the method
	Verbs  []string // HTTP methods in capitals, or "*" for all methods
	Action Action
	Pos    Pos
}

// Action is what a rule does with a call: Allow or Deny.
type Action string

// The actions.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
)

// DefaultTrustDomain is the trust domain of applications that name none.
const DefaultTrustDomain = "public"

func (p *docParser) accessControl(n *yaml.Node, c *Configuration) {
	if isNull(n) {
		return
	}
	a := copyOf(c.AccessControl, AccessControl{TrustDomain: DefaultTrustDomain})
	a.Pos = p.pos(n)
	p.readFields(n, "spec.accessControl", fields{
		"defaultAction": func(n *yaml.Node) { a.DefaultAction = p.action(n, "accessControl.defaultAction") },
		"trustDomain": func(n *yaml.Node) {
			if t := p.text(n, "accessControl.trustDomain"); t != "" {
				a.TrustDomain = t
			}
		},
		"policies": func(n *yaml.Node) { a.Policies = p.accessPolicies(n) },
	})
	c.AccessControl = a
}

func (p *docParser) accessPolicies(n *yaml.Node) []AccessPolicy {
	var out []AccessPolicy
	seen := map[[2]string]int{}
	for _, element := range p.list(n, "accessControl.policies") {
		policy := p.accessPolicy(element)
		key := [2]string{policy.AppID, policy.Namespace}
		if first, twice := seen[key]; twice && policy.AppID != "" {
			p.problems.add(policy.Pos, "put all operations into one policy",
				"a policy for %s in namespace %s is already in line %d", policy.AppID, policy.Namespace, first)
		}
		seen[key] = policy.Pos.Line
		out = append(out, policy)
	}
	return out
}

func (p *docParser) accessPolicy(n *yaml.Node) AccessPolicy {
	const what = "an element of accessControl.policies"
	a := AccessPolicy{Pos: p.pos(n)}
	ok := p.readFields(n, what, fields{
		"appId":         func(n *yaml.Node) { a.AppID = p.required(n, "appId") },
		"namespace":     func(n *yaml.Node) { a.Namespace = p.required(n, "namespace") },
		"trustDomain":   func(n *yaml.Node) { a.TrustDomain = p.required(n, "trustDomain") },
		"defaultAction": func(n *yaml.Node) { a.DefaultAction = p.action(n, "defaultAction") },
		"operations":    func(n *yaml.Node) { a.Operations = p.accessOperations(n) },
	})
	for _, name := range []string{"appId", "namespace", "trustDomain"} {
		if ok && child(n, name) == nil {
			p.problems.add(a.Pos, "", "%s has no %s", what, name)
		}
	}
	return a
}

func (p *docParser) accessOperations(n *yaml.Node) []AccessOperation {
	var out []AccessOperation
	for _, element := range p.list(n, "operations") {
		out = append(out, p.accessOperation(element))
	}
	return out
}

func (p *docParser) accessOperation(n *yaml.Node) AccessOperation {
	const what = "an element of operations"
	o := AccessOperation{Pos: p.pos(n)}
	ok := p.readFields(n, what, fields{
		"name":     func(n *yaml.Node) { o.Name = p.operationName(n) },
		"httpVerb": func(n *yaml.Node) { o.Verbs = p.verbs(n) },
		"action":   func(n *yaml.Node) { o.Action = p.action(n, "action") },
	})
	switch {
	case !ok:
	case child(n, "name") == nil:
		p.problems.add(o.Pos, "", "%s has no name", what)
	case o.Action == "" && child(n, "action") == nil:
		p.problems.add(o.Pos, "use allow or deny", "%s has no action", what)
	}
	if len(o.Verbs) == 0 {
		o.Verbs = []string{"*"}
	}
	return o
}

func (p *docParser) operationName(n *yaml.Node) string {
	text := p.required(n, "name")
	if i := strings.Index(text, "**"); i >= 0 && (i != len(text)-2 || i > 0 && text[i-1] != '/') {
		p.problems.add(p.pos(n), "write it as /orders/**", "** in %q must be the last part of the path", text)
	}
	if strings.ContainsAny(text, "?#") {
		p.problems.add(p.pos(n), "leave the query out", "%q is not only a path", text)
	}
	return text
}

func (p *docParser) verbs(n *yaml.Node) []string {
	list := p.texts(n, "httpVerb")
	for _, v := range list {
		if v != "*" && v != strings.ToUpper(v) {
			p.problems.add(p.pos(n), "write "+strings.ToUpper(v)+", as in "+http.MethodGet,
				"httpVerb %q is not in capitals", v)
		}
	}
	return list
}

func (p *docParser) action(n *yaml.Node, what string) Action {
	text := p.text(n, what)
	switch a := Action(strings.ToLower(text)); a {
	case Allow, Deny:
		return a
	case "":
		return ""
	}
	p.problems.add(p.pos(n), "use allow or deny", "%s is %q", what, text)
	return Deny
}

// list returns the elements of a YAML sequence, or nil for null. For any other YAML node, it reports a problem and
// returns nil.
func (p *docParser) list(n *yaml.Node, what string) []*yaml.Node {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.problems.add(p.pos(n), "", "%s must be a list, not %s", what, describe(n))
		return nil
	}
	return n.Content
}
