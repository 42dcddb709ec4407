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
	Bare       bool // is no string to YAML: a number or truth value without quotes
	Sensitive  bool // came from a reference: it is never shown
	Unresolved bool // what it stands for is not known yet; Value means nothing
}

// Metadata is the metadata of one component in the order of its file. Names are unique
// whatever their case.
type Metadata []Property

// Lookup finds a property; the case of name does not matter.
func (m Metadata) Lookup(name string) (Property, bool) {
	for _, p := range m {
		if strings.EqualFold(p.Name, name) {
			return p, true
		}
	}
	return Property{}, false
}

// Sensitive returns the values that came from references, for whoever has to keep them
// out of a text.
func (m Metadata) Sensitive() []string {
	var out []string
	for _, p := range m {
		if p.Sensitive && !p.Unresolved && p.Value != "" {
			out = append(out, p.Value)
		}
	}
	return out
}

// Values are the checked metadata of a component, by declared name. Asking for a name
// that was not declared panics: it is a slip of the programmer, found by any test.
type Values struct {
	byName map[string]value
}

// Text returns the text of a field of any kind, or its default.
func (v Values) Text(name string) string { return v.of(name).text }

// Bool returns a field of kind Bool.
func (v Values) Bool(name string) bool { return v.of(name).number != 0 }

// Int returns a field of kind Int or, in bytes, Size.
func (v Values) Int(name string) int64 { return v.of(name).number }

// Duration returns a field of kind Duration.
func (v Values) Duration(name string) time.Duration { return time.Duration(v.of(name).number) }

// Given reports whether the file names the field, by its name or an alias.
func (v Values) Given(name string) bool { return v.of(name).given }

func (v Values) of(name string) value {
	found, ok := v.byName[name]
	if !ok {
		panic("component: the metadata field " + name + " was not declared")
	}
	return found
}

// Check brings metadata and declared fields together. It returns the values by the
// fields' own names and what is odd but bearable (unknown names, secrets written out),
// or one fault.Invalid that lists everything that is wrong, with file and line. Values
// that came from references are in neither.
func (m Metadata) Check(at Pos, component string, declared []Field) (Values, []Problem, error) {
	c := checker{at: at, component: component, values: Values{byName: make(map[string]value, len(declared))}}
	c.index(declared)
	used := make(map[string]string, len(m))
	for _, p := range m {
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
	if err := c.problems.Err("component.Check"); err != nil {
		if e, ok := fault.As(err); ok {
			e.Key = component
		}
		return Values{}, c.warnings, err
	}
	return c.values, c.warnings, nil
}
