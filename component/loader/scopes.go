package loader

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
)

// addScopes adds the secret scopes of a Configuration document. A second scope for a store is an error.
func (b *planner) addScopes(doc component.Document) error {
	scopes, problems := doc.SecretScopes()
	for _, scope := range scopes {
		if i := slices.IndexFunc(b.scopes,
			func(known component.SecretScope) bool { return known.Store == scope.Store }); i >= 0 {
			problems = append(problems, component.Problem{Pos: scope.Pos,
				Hint: "put all rules of a store into one element",
				Text: fmt.Sprintf("the secret store %q has a scope already, at %s", scope.Store, b.scopes[i].Pos)})
			continue
		}
		b.scopes = append(b.scopes, scope)
	}
	return problems.Err("loader.Read")
}

// applyScopes assigns the secret scopes to the secret stores.
//
// A scope for a store that this node does not declare causes a warning, because several nodes may share one
// Configuration. But if the store name in the scope is similar to the name of a store without a scope, the scope causes
// an error. The name in the scope is then probably misspelt, and a warning would leave the store unrestricted.
func (b *planner) applyScopes() (errs []error) {
	for i := range b.scopes {
		scope := &b.scopes[i]
		at := slices.IndexFunc(b.plan.secrets, func(u *unit) bool { return u.spec.Name == scope.Store })
		switch {
		case at >= 0:
			b.plan.secrets[at].scope = scope
		case !b.declared(scope.Store):
			if err := b.misspeltStore(scope); err != nil {
				errs = append(errs, err)
				continue
			}
			b.plan.Warnings = append(b.plan.Warnings, component.Problem{Pos: scope.Pos,
				Text: fmt.Sprintf("the secret scope names the store %q, which this node does not have", scope.Store)})
		}
	}
	return errs
}

// declared reports whether the files declare a secret store that has this name but will not be opened. Such a store is
// invalid, or is for other applications or another namespace.
func (b *planner) declared(name string) bool {
	return slices.ContainsFunc(b.plan.rejected,
		func(s component.Status) bool { return s.Name == name && blockOf(s.Type) == blockSecrets })
}

// misspeltStore returns an error if the store name in scope is similar to the name of a secret store without a scope,
// and is therefore probably misspelt.
func (b *planner) misspeltStore(scope *component.SecretScope) error {
	var open []string
	for _, u := range b.plan.secrets {
		if !slices.ContainsFunc(b.scopes, func(s component.SecretScope) bool { return s.Store == u.spec.Name }) {
			open = append(open, u.spec.Name)
		}
	}
	near := suggest.For(scope.Store, open)
	if near == "" {
		return nil
	}
	return &fault.Error{Code: fault.Invalid, Op: "loader.Read", Key: scope.Store, Hint: "did you mean " + near + "?",
		Msg: fmt.Sprintf("%s: the secret scope names the store %q, which does not exist", scope.Pos, scope.Store)}
}
