// Package env implements the secret store secretstores.local.env. Its secrets are the environment variables of this
// process. It is meant for development. The package owns the rule for which variables are visible.
//
// A variable is visible if its name begins with the prefix of the component. Variables that belong to the runtime, such
// as tokens, are never visible. The package accesses the environment only through the functions in Options, and starts
// no goroutines.
package env

import (
	"context"
	"strings"

	"github.com/quorate/quorate/component/secretstores"
)

// Type is the component type.
const Type = "secretstores.local.env"

// Options are the settings of a store.
type Options struct {
	Prefix   string                           // prefix of the variables; secret names omit it
	Lookup   func(name string) (string, bool) // returns the value of a variable; required
	List     func() []string                  // lists all variables as "NAME=value"; required
	Reserved func(name string) bool           // reports whether a variable belongs to the runtime; required
}

// Store serves environment variables as secrets. It is safe for concurrent use.
type Store struct {
	options Options
	gate    secretstores.Gate
}

// New returns a store.
func New(o Options) *Store { return &Store{options: o} }

// Get implements secretstores.Store. A variable with an empty value is a secret with an empty value. For a variable
// that belongs to the runtime, Get returns fault.NotFound.
func (s *Store) Get(ctx context.Context, name string, _ map[string]string) (map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	variable := s.options.Prefix + name
	if name == "" || strings.ContainsAny(variable, "=\x00") || s.options.Reserved(variable) {
		return nil, secretstores.Absent(name, "there is no such environment variable")
	}
	value, ok := s.options.Lookup(variable)
	if !ok {
		return nil, secretstores.Absent(name, "there is no such environment variable")
	}
	return map[string]string{name: value}, nil
}

// Bulk implements secretstores.Store.
func (s *Store) Bulk(ctx context.Context, _ map[string]string) (map[string]map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for _, variable := range s.options.List() {
		full, value, ok := strings.Cut(variable, "=")
		name, ours := strings.CutPrefix(full, s.options.Prefix)
		if ok && ours && name != "" && !s.options.Reserved(full) {
			out[name] = map[string]string{name: value}
		}
	}
	return out, secretstores.Fits(len(out))
}

// Close implements secretstores.Store.
func (s *Store) Close() error {
	s.gate.Close()
	return nil
}
