package secretstores

// Scope limits which secrets of a store applications may read. If the Scope has allowed names, only the secrets with
// these names can be read. Otherwise, the secrets with denied names cannot be read, and a default applies to all other
// secrets. A Scope is immutable and safe for concurrent use.
type Scope struct {
	deny    bool // secrets that are not in denied cannot be read
	allowed map[string]struct{}
	denied  map[string]struct{}
	fold    func(string) string
}

// NewScope returns a scope for the secrets of a store. If allowed is not empty, only the secrets in allowed can be
// read. Otherwise, the secrets in denied cannot be read, and all other secrets can be read unless denyByDefault is
// true. If the store implements Folder, names are compared after Fold.
func NewScope(store Store, denyByDefault bool, allowed, denied []string) *Scope {
	s := &Scope{deny: denyByDefault, fold: func(name string) string { return name }}
	if f, ok := store.(Folder); ok {
		s.fold = f.Fold
	}
	s.allowed, s.denied = s.set(allowed), s.set(denied)
	return s
}

func (s *Scope) set(names []string) map[string]struct{} {
	out := make(map[string]struct{}, len(names))
	for _, name := range names {
		out[s.fold(name)] = struct{}{}
	}
	return out
}

// Allows reports whether a secret may be read. A nil scope allows everything.
func (s *Scope) Allows(name string) bool {
	if s == nil {
		return true
	}
	name = s.fold(name)
	if len(s.allowed) > 0 {
		_, ok := s.allowed[name]
		return ok
	}
	if _, ok := s.denied[name]; ok {
		return false
	}
	return !s.deny
}

// AllowsNothing reports whether no secret may be read at all.
func (s *Scope) AllowsNothing() bool {
	return s != nil && s.deny && len(s.allowed) == 0
}
