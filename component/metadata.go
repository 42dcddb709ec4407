package component

import (
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Property is one metadata value of a component.
type Property struct {
	Name       string
	Value      string
	Pos        Pos
	Bare       bool // not a YAML string: a number or boolean without quotes
	Sensitive  bool // the value came from a reference, and is never shown
	Unresolved bool // a reference that was not resolved; Value is meaningless
}

// Metadata is the metadata of one component, in the order of the file. No two names are equal when case is ignored.
type Metadata []Property

// Lookup returns the property with the given name. It ignores the case of name.
func (m Metadata) Lookup(name string) (Property, bool) {
	for _, p := range m {
		if strings.EqualFold(p.Name, name) {
			return p, true
		}
	}
	return Property{}, false
}

// Sensitive returns the values that come from references. Callers must remove these values from logs and messages.
func (m Metadata) Sensitive() []string {
	var out []string
	for _, p := range m {
		if p.Sensitive && !p.Unresolved && p.Value != "" {
			out = append(out, p.Value)
		}
	}
	return out
}

// Values are the checked metadata of a component, keyed by the names of the declared fields. Reading an undeclared
// field panics, because it is a bug.
type Values struct {
	byName     map[string]value
	properties map[string]string // nil if no field with Rest is declared
	sensitive  []string
}

// Properties returns the metadata, keyed by the names in the file, without unresolved references. It returns nil unless
// a field with Rest is declared. The caller must not change the map.
func (v Values) Properties() map[string]string { return v.properties }

// Sensitive returns the values that come from references, like Metadata.Sensitive.
func (v Values) Sensitive() []string { return v.sensitive }

// Text returns the text of a field of any kind, or its default.
func (v Values) Text(name string) string { return v.value(name).text }

// Bool returns the value of a field of kind Bool.
func (v Values) Bool(name string) bool { return v.value(name).number != 0 }

// Int returns the value of a field of kind Int, or of a field of kind Size in bytes.
func (v Values) Int(name string) int64 { return v.value(name).number }

// Duration returns the value of a field of kind Duration.
func (v Values) Duration(name string) time.Duration { return time.Duration(v.value(name).number) }

// Given reports whether the file names the field, by its name or an alias.
func (v Values) Given(name string) bool { return v.value(name).given }

func (v Values) value(name string) value {
	found, ok := v.byName[name]
	if !ok {
		panic("component: the metadata field " + name + " was not declared")
	}
	return found
}

// Check checks the metadata against the declared fields and returns the values by field name. It also returns warnings,
// for example about unknown names. The error is fault.Invalid and lists up to 20 problems with file and line. Neither
// warnings nor errors contain a value from a reference.
func (m Metadata) Check(at Pos, component string, declared []Field) (Values, []Problem, error) {
	c := checker{at: at, component: component, values: Values{byName: make(map[string]value, len(declared))}}
	c.index(declared)
	used := make(map[string]string, len(m))
	for _, p := range m {
		if c.rest && !p.Unresolved {
			c.values.properties[p.Name] = p.Value
		}
		f, ok := c.fields[strings.ToLower(p.Name)]
		if !ok {
			c.unknown(p)
			continue
		}
		if first, twice := used[f.Name]; twice {
			c.problems.add(p.Pos, "", "component %s: metadata %s and %s are the same", component, first, p.Name)
			continue
		}
		used[f.Name] = p.Name
		c.take(f, p)
	}
	c.absent(declared, used)
	c.values.sensitive = m.Sensitive()
	if err := c.problems.Err("component.Check"); err != nil {
		if e, ok := fault.As(err); ok {
			e.Key = component
		}
		return Values{}, c.warnings, err
	}
	return c.values, c.warnings, nil
}
