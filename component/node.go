package component

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/internal/suggest"
)

// readFields reads the fields of the YAML mapping n in the order of the file. For each field, it calls the function
// that known has for the name of the field. A field without such a function is a problem.
//
// If n is not a mapping, readFields reports a problem and returns false. The parameter what describes n in problems.
func (p *docParser) readFields(n *yaml.Node, what string, known fields) bool {
	if n.Kind != yaml.MappingNode {
		p.problems.add(p.pos(n), "", "%s must be a mapping, not %s", what, describe(n))
		return false
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if read, ok := known[key.Value]; ok {
			read(n.Content[i+1])
			continue
		}
		if key.Kind == yaml.ScalarNode && key.Tag != "!!merge" {
			p.unknown(key, what, known)
		}
	}
	return true
}

func (p *docParser) unknown(key *yaml.Node, what string, known fields) {
	name := key.Value
	if what != "" {
		what = " in " + what
	}
	names := slices.Sorted(maps.Keys(known))
	hint := "known: " + strings.Join(names, ", ")
	if near := suggest.For(name, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	p.problems.add(p.pos(key), hint, "unknown field %q%s", name, what)
}

// lenient is like readFields, but ignores unknown fields, because other code checks them.
func (p *docParser) lenient(n *yaml.Node, known fields) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if read, ok := known[n.Content[i].Value]; ok {
			read(n.Content[i+1])
		}
	}
}

// text returns a scalar as it is written, and "" for null. For a mapping or a list, it reports a problem and returns
// "".
func (p *docParser) text(n *yaml.Node, what string) string {
	switch {
	case isNull(n):
		return ""
	case n.Kind != yaml.ScalarNode:
		p.problems.add(p.pos(n), "", "%s must be plain text, not %s", what, describe(n))
		return ""
	}
	return n.Value
}

func (p *docParser) required(n *yaml.Node, what string) string {
	before := len(p.problems)
	text := p.text(n, what)
	if text == "" && len(p.problems) == before {
		p.problems.add(p.pos(n), "", "%s is empty", what)
	}
	return text
}

func (p *docParser) texts(n *yaml.Node, what string) []string {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.problems.add(p.pos(n), "", "%s must be a list, not %s", what, describe(n))
		return nil
	}
	out := make([]string, 0, len(n.Content))
	for _, element := range n.Content {
		if text := p.required(element, "an element of "+what); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// value returns a metadata value as text. It returns a scalar exactly as in the file, because values such as 007,
// 1.0 and yes are meant literally. It converts a list or a mapping to JSON.
func (p *docParser) value(n *yaml.Node) string {
	switch {
	case isNull(n):
		return ""
	case n.Kind == yaml.ScalarNode:
		return n.Value
	}
	return string(appendJSON(nil, n))
}

// appendJSON appends an expanded node as JSON to out. The fields of a mapping keep the order of the file.
func appendJSON(out []byte, n *yaml.Node) []byte {
	switch n.Kind {
	case yaml.MappingNode:
		out = append(out, '{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(appendJSONText(out, n.Content[i].Value), ':')
			out = appendJSON(out, n.Content[i+1])
		}
		return append(out, '}')
	case yaml.SequenceNode:
		out = append(out, '[')
		for i, element := range n.Content {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendJSON(out, element)
		}
		return append(out, ']')
	default:
		return appendJSONScalar(out, n)
	}
}

// appendJSONScalar appends a YAML scalar as JSON to out. A number that is valid JSON keeps its digits. Other
// numbers, such as 007, 0x1f and .inf, become JSON strings.
func appendJSONScalar(out []byte, n *yaml.Node) []byte {
	switch n.Tag {
	case "!!null":
		return append(out, "null"...)
	case "!!bool":
		if low := strings.ToLower(n.Value); low == "true" || low == "false" {
			return append(out, low...)
		}
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return append(out, n.Value...)
		}
	}
	return appendJSONText(out, n.Value)
}

func appendJSONText(out []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil { // a string can always be encoded
		return append(out, `""`...)
	}
	return append(out, quoted...)
}

// isBare reports whether n is a scalar that is neither a string nor null, such as a number without quotes.
func isBare(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag != "!!str" && n.Tag != "!!null"
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func describe(n *yaml.Node) string {
	switch {
	case isNull(n):
		return "nothing"
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	default:
		return "a plain value"
	}
}

func child(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
