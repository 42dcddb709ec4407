package component

import (
	"maps"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
)

// Registry maps the component types of one building block to factories of type F. It is immutable. The zero value has
// no types.
type Registry[F any] struct {
	entries map[string]F // factories by lower-case type + "/" + version
}

// allTypes is the end of a name such as "state.*". Such a name stands for all types of a building block that have no
// entry of their own.
const allTypes = ".*"

// NewRegistry creates a registry from a table of factories. The names in the table have these forms:
//
//   - "state.example" is version v1 of a type.
//   - "state.example/v2" is another version of a type.
//   - "state.*" is every type that begins with "state." and has no entry in the table.
//
// NewRegistry returns fault.Invalid if a type name is empty or occurs twice.
func NewRegistry[F any](table map[string]F) (Registry[F], error) {
	entries := make(map[string]F, len(table))
	for name, factory := range table {
		typ, version, _ := strings.Cut(name, "/")
		key := registryKey(typ, version)
		if _, twice := entries[key]; twice || typ == "" {
			return Registry[F]{}, fault.New(fault.Invalid, "component.NewRegistry",
				"the component type "+name+" is empty or registered twice")
		}
		entries[key] = factory
	}
	return Registry[F]{entries: entries}, nil
}

// Find returns the factory of a type and version. If there is none, it returns fault.NotFound. The error then suggests
// the most similar type or lists the known types.
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
	block, rest, _ := strings.Cut(typ, ".")
	if factory, ok := r.entries[registryKey(block+allTypes, version)]; ok && rest != "" {
		return factory, nil
	}
	if near := suggest.For(typ, types); near != "" {
		e.Hint = "did you mean " + near + "?"
	}
	return zero, e
}

// Has reports whether the registry has an entry for exactly this type and version. Entries such as "state.*" do not
// count.
func (r Registry[F]) Has(typ, version string) bool {
	_, named := r.entries[registryKey(typ, version)]
	return named
}

// Types returns the known types, sorted. For a version other than v1, the type has a suffix such as "/v2". Names such
// as "state.*" are omitted.
func (r Registry[F]) Types() []string {
	out := make([]string, 0, len(r.entries))
	for _, key := range slices.Sorted(maps.Keys(r.entries)) {
		if typ, _, _ := strings.Cut(key, "/"); !strings.HasSuffix(typ, allTypes) {
			out = append(out, strings.TrimSuffix(key, "/"+DefaultVersion))
		}
	}
	return out
}

func registryKey(typ, version string) string {
	return strings.ToLower(typ) + "/" + foldVersion(version)
}
