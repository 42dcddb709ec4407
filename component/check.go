package component

import (
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/suggest"
)

// checker is the state of one Metadata.Check.
type checker struct {
	at        Pos
	component string
	fields    map[string]Field // declared fields by lower-case name and alias
	names     []string         // names of usable fields, for suggestions
	rest      bool             // a field with Rest is declared
	values    Values
	problems  Problems
	warnings  Problems

	successors map[string]string // names of fields, by the lower-case names that they replace
}

func (c *checker) index(declared []Field) {
	c.fields, c.successors = make(map[string]Field, len(declared)), map[string]string{}
	for _, f := range declared {
		if f.Rest {
			c.rest, c.values.properties = true, map[string]string{}
			continue
		}
		for _, old := range f.Replaces {
			c.successors[strings.ToLower(old)] = f.Name
		}
		c.fields[strings.ToLower(f.Name)] = f
		for _, alias := range f.Aliases {
			c.fields[strings.ToLower(alias)] = f
		}
		if f.Refused == "" {
			c.names = append(c.names, f.Name)
		}
	}
}

// take checks the property p of the component, which the field f declares.
func (c *checker) take(f Field, p Property) {
	if f.Refused != "" {
		c.problems.add(p.Pos, "", "component %s: metadata %s cannot be used: %s", c.component, p.Name, f.Refused)
		return
	}
	if f.Reference && !p.Sensitive {
		c.problems.add(p.Pos, "use secretKeyRef", "component %s: metadata %s must not be written into the file",
			c.component, p.Name)
		return
	}
	if f.Quoted && p.Bare {
		c.problems.add(p.Pos, "write it as "+strconv.Quote(p.Value),
			"component %s: metadata %s must be a string in quotes", c.component, p.Name)
		return
	}
	if f.Secret && !p.Sensitive && p.Value != "" {
		c.warnings.add(p.Pos, "use secretKeyRef", "component %s: metadata %s is a secret written into the file",
			c.component, p.Name)
	}
	switch {
	case p.Unresolved:
		c.values.byName[f.Name] = value{given: true}
		return
	case p.Value == "" && (f.Required || f.Reference):
		c.problems.add(p.Pos, "", "component %s: metadata %s is empty but required", c.component, p.Name)
		return
	case p.Value == "":
		c.values.byName[f.Name] = c.fallback(f)
		return
	}
	v, complaint := c.parse(f, p.Value, p.Sensitive || f.Secret)
	if complaint != "" {
		c.problems.add(p.Pos, "", "component %s: metadata %s%s", c.component, p.Name, complaint)
		return
	}
	v.given = true
	c.values.byName[f.Name] = v
}

// parse returns the parsed value, or a message that describes the error. For a secret value, the message does not
// contain the error of Field.Check, because that error may quote the value.
func (c *checker) parse(f Field, text string, secret bool) (value, string) {
	v, err := f.parse(text)
	switch {
	case err != nil && secret:
		return v, ": its secret value " + err.Error()
	case err == nil && f.Check != nil:
		err = f.Check(text)
	}
	switch {
	case err == nil:
		return v, ""
	case secret:
		return v, ": its secret value is not valid"
	}
	if _, whole := fault.As(err); whole {
		return v, ": " + fault.Text(err)
	}
	return v, " is " + strconv.Quote(text) + ", which " + err.Error()
}

// absent fills in defaults and reports required fields that are missing.
func (c *checker) absent(declared []Field, used map[string]string) {
	for _, f := range declared {
		if _, ok := used[f.Name]; ok || f.Rest {
			continue
		}
		if f.Required {
			c.problems.add(c.at, "add it to spec.metadata", "component %s: metadata %s is missing", c.component, f.Name)
			continue
		}
		c.values.byName[f.Name] = c.fallback(f)
	}
}

// fallback returns the default value of a field that the component omits or leaves empty. It reports a problem if
// the default cannot be parsed.
func (c *checker) fallback(f Field) value {
	if f.Default == "" {
		return value{}
	}
	v, complaint := c.parse(f, f.Default, false)
	if complaint != "" {
		c.problems.add(c.at, "", "component %s: the default of metadata %s%s", c.component, f.Name, complaint)
	}
	return v
}

// unknown reports a metadata name that no field declares. The report is an error if ignoring the name could be unsafe,
// and otherwise a warning. If the component accepts undeclared names (a field with Rest), unknown reports a name only
// if it is probably a misspelt field with Security.
func (c *checker) unknown(p Property) {
	near := suggest.For(p.Name, c.names)
	if c.rest && !c.fields[strings.ToLower(near)].Security {
		return
	}
	hint := ""
	switch successor := c.successors[strings.ToLower(p.Name)]; {
	case successor != "":
		hint = "use " + successor
	case near != "":
		hint = "did you mean " + near + "?"
	case len(c.names) > 0:
		hint = "known: " + strings.Join(slices.Sorted(slices.Values(c.names)), ", ")
	}
	if near != "" && c.fields[strings.ToLower(near)].Security || promisesSecurity(p.Name) {
		c.problems.add(p.Pos, hint, "component %s: metadata %s is unknown to this type, "+
			"and ignoring it could be unsafe", c.component, p.Name)
		return
	}
	c.warnings.add(p.Pos, hint, "component %s: metadata %s is unknown to this type and ignored", c.component, p.Name)
}

// promisesSecurity reports whether a metadata name contains a word such as tls or password. Such a name suggests a
// setting for security.
func promisesSecurity(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{
		"encrypt", "tls", "ssl", "cert", "password", "passphrase", "secret", "token", "credential",
		"auth", "privatekey", "accesskey", "accountkey", "masterkey", "apikey", "signingkey", "verify",
	} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}
