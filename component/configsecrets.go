package component

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// SecretScope is one element of spec.secrets.scopes in a Configuration resource. It defines which secrets of one
// store the applications of the node may read.
type SecretScope struct {
	Store       string
	DenyDefault bool     // secrets that are in neither list are denied
	Allowed     []string // if not empty, exactly these can be read
	Denied      []string
	Pos         Pos
}

// SecretScopes returns the secret scopes of a Configuration document. Each problem names the file, the line and the
// document.
func (d Document) SecretScopes() ([]SecretScope, Problems) {
	spec := child(d.Body, "spec")
	if spec == nil || spec.Kind != yaml.MappingNode {
		return nil, nil
	}
	section := child(spec, "secrets")
	if section == nil {
		return nil, nil
	}
	scopes, problems := ParseSecretScopes(d.Pos.File, section)
	problems.order(d)
	return scopes, problems
}

// ParseSecretScopes parses the section spec.secrets of a Configuration resource. file is used only in messages. Each
// store may have only one scope. Unknown fields are errors, because a misread scope could expose secrets.
func ParseSecretScopes(file string, section *yaml.Node) ([]SecretScope, Problems) {
	p := docParser{file: file}
	if isNull(section) {
		return nil, nil
	}
	var scopes []SecretScope
	p.readFields(section, "spec.secrets", fields{"scopes": func(n *yaml.Node) { scopes = p.secretScopes(n) }})
	return scopes, p.problems
}

func (p *docParser) secretScopes(n *yaml.Node) []SecretScope {
	const what = "spec.secrets.scopes"
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.problems.add(p.pos(n), "", "%s must be a list, not %s", what, describe(n))
		return nil
	}
	var scopes []SecretScope
	seen := map[string]int{}
	for _, element := range n.Content {
		scope := p.secretScope(element)
		if scope.Store == "" { // secretScope has reported the problem
			continue
		}
		if first, twice := seen[scope.Store]; twice {
			p.problems.add(scope.Pos, "put all rules of a store into one element",
				"the secret store %q has a scope already, in line %d", scope.Store, first)
			continue
		}
		seen[scope.Store] = scope.Pos.Line
		scopes = append(scopes, scope)
	}
	return scopes
}

func (p *docParser) secretScope(n *yaml.Node) SecretScope {
	const what = "an element of spec.secrets.scopes"
	scope := SecretScope{Pos: p.pos(n)}
	ok := p.readFields(n, what, fields{
		"storeName":      func(n *yaml.Node) { scope.Store = p.required(n, "storeName") },
		"defaultAccess":  func(n *yaml.Node) { scope.DenyDefault = p.access(n) },
		"allowedSecrets": func(n *yaml.Node) { scope.Allowed = p.texts(n, "allowedSecrets") },
		"deniedSecrets":  func(n *yaml.Node) { scope.Denied = p.texts(n, "deniedSecrets") },
	})
	if ok && child(n, "storeName") == nil {
		p.problems.add(scope.Pos, "", "%s has no storeName", what)
	}
	return scope
}

// access returns true if the field defaultAccess is deny, and false if it is allow or empty. Any other value is a
// problem, and access then returns true.
func (p *docParser) access(n *yaml.Node) bool {
	text := p.text(n, "defaultAccess")
	switch strings.ToLower(text) {
	case "deny":
		return true
	case "", "allow":
		return false
	}
	p.problems.add(p.pos(n), "use allow or deny", "defaultAccess is %q", text)
	return true
}
