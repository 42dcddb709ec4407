package component

import (
	"maps"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/nearest"
)

// Registry maps the types of one building block to factories of type F. It is immutable.
// The zero value knows no type.
type Registry[F any] struct {
	entries map[string]F // by lower-case type + "/" + version
}

// NewRegistry makes a registry from a table of type strings. A type that exists in
// several versions is written once for each, "state.example/v2"; without a version it is
// v1. Two entries that mean the same, or an empty type, are a fault.Invalid.
func NewRegistry[F any](table map[string]F) (Registry[F], error) {
	entries := make(map[string]F, len(table))
	for name, factory := range table {
		typ, version, _ := strings.Cut(name, "/")
		key := registryKey(typ, version)
		if _, twice := entries[key]; twice || typ == "" {
			return Registry[F]{}, fault.New(fault.Invalid, "component.NewRegistry", "the component type "+name+" is empty or registered twice")
		}
		entries[key] = factory
	}
	return Registry[F]{entries: entries}, nil
}

// Find returns the factory of a type and version. The error is fault.NotFound and names
// the nearest type, or those that are known.
func (r Registry[F]) Find(typ, version string) (F, error) {
	if factory, ok := r.entries[registryKey(typ, version)]; ok {
		return factory, nil
	}
	var zero F
	e := fault.New(fault.NotFound, "component.Find", "the component type "+typ+" is unknown")
	types := r.Types()
	known := "none"
	if len(types) > 0 {
		known = strings.Join(types, ", ")
	}
	e.Hint = "known: " + known
	for _, name := range types {
		if of, _, _ := strings.Cut(name, "/"); SameType(of, typ) {
			e.Msg = "the component type " + typ + " has no version " + version
			return zero, e
		}
	}
	if near := nearest.To(typ, types); near != "" {
		e.Hint = "did you mean " + near + "?"
	}
	return zero, e
}

// Types returns the known types, sorted; versions other than v1 follow a slash.
func (r Registry[F]) Types() []string {
	out := make([]string, 0, len(r.entries))
	for _, key := range slices.Sorted(maps.Keys(r.entries)) {
		out = append(out, strings.TrimSuffix(key, "/"+DefaultVersion))
	}
	return out
}

func registryKey(typ, version string) string {
	return strings.ToLower(typ) + "/" + foldVersion(version)
}
