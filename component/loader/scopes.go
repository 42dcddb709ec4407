package loader

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/nearest"
)

// addScopes notes the secret scopes of a Configuration.
func (b *planner) addScopes(doc component.Document) error {
	scopes, problems := doc.SecretScopes()
	for _, scope := range scopes {
		if i := slices.IndexFunc(b.scopes, func(known component.SecretScope) bool { return known.Store == scope.Store }); i >= 0 {
			problems = append(problems, component.Problem{Pos: scope.Pos, Hint: "put all rules of a store into one element",
				Text: fmt.Sprintf("the secret store %q has a scope already, at %s", scope.Store, b.scopes[i].Pos)})
			continue
		}
		b.scopes = append(b.scopes, scope)
	}
	return problems.Err("loader.Read")
}

// scopeProblems gives every secret store its scope. A scope for a store that nobody
// declares is an error: the name is misspelt, and the store that was meant is open.
func (b *planner) scopeProblems() (errs []error) {
	for i := range b.scopes {
		scope := &b.scopes[i]
		at := slices.IndexFunc(b.plan.secrets, func(u *unit) bool { return u.spec.Name == scope.Store })
		switch {
		case at >= 0:
			b.plan.secrets[at].scope = scope
		case !b.declared(scope.Store):
			errs = append(errs, b.unknownStore(scope))
		}
	}
	return errs
}

// declared reports whether a secret store of this name is declared but not opened here,
// because it is meant for others or failed.
func (b *planner) declared(name string) bool {
	return slices.ContainsFunc(b.plan.rejected, func(s component.Status) bool { return s.Name == name && blockOf(s.Type) == blockSecrets })
}

func (b *planner) unknownStore(scope *component.SecretScope) error {
	var names []string
	for _, u := range b.plan.secrets {
		names = append(names, u.spec.Name)
	}
	hint := "declare a secret store of that name, or remove the scope"
	if near := nearest.To(scope.Store, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	return &fault.Error{Code: fault.Invalid, Op: "loader.Read", Key: scope.Store, Hint: hint,
		Msg: fmt.Sprintf("%s: the secret scope names the store %q, which does not exist", scope.Pos, scope.Store)}
}
