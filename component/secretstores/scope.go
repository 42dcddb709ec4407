package secretstores

// Scope says which secrets of one store applications may read. The rule: if names are
// allowed, exactly those can be read; else those that are denied cannot; else the default
// decides. It is immutable and safe for concurrent use.
type Scope struct {
	deny    bool // what is not named is denied
	allowed map[string]struct{}
	denied  map[string]struct{}
	fold    func(string) string
}

// NewScope makes a scope for names as store spells them.
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

// AllowsNothing reports whether no secret at all may be read, whatever its name.
func (s *Scope) AllowsNothing() bool {
	return s != nil && s.deny && len(s.allowed) == 0
}
