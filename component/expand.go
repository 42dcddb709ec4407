package component

import (
	"go.yaml.in/yaml/v3"
)

// Limits for one document after its YAML aliases are expanded. They bound the memory for a document, and are far above
// what a component needs.
const (
	maxDepth   = 64
	maxNodes   = 50_000
	maxAliases = 500
)

// expander copies a document and replaces every alias by its content. Later code then sees no aliases. It stops with
// an error when a limit is exceeded, because a few lines of nested aliases can expand to billions of nodes.
type expander struct {
	file     string
	problems *Problems
	nodes    int
	aliases  int
	stopped  bool
}

func (x *expander) expand(n *yaml.Node, depth int) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		x.aliases++
		n = n.Alias
	}
	x.nodes++
	if !x.within(n, depth) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: n.Line}
	}
	out := &yaml.Node{Kind: n.Kind, Tag: n.Tag, Value: n.Value, Style: n.Style &^ yaml.TaggedStyle, Line: n.Line,
		Column: n.Column}
	if n.Style&yaml.TaggedStyle != 0 {
		x.tagged(n, out)
	}
	if n.Kind == yaml.MappingNode {
		x.uniqueKeys(n)
	}
	for _, child := range n.Content {
		out.Content = append(out.Content, x.expand(child, depth+1))
	}
	return out
}

func (x *expander) within(n *yaml.Node, depth int) bool {
	var what string
	switch {
	case x.stopped:
		return false
	case depth > maxDepth:
		what = "the document is nested too deep; the limit is %d levels"
		x.stop(n, what, maxDepth)
	case x.aliases > maxAliases:
		what = "the document uses too many aliases; the limit is %d"
		x.stop(n, what, maxAliases)
	case x.nodes > maxNodes:
		what = "the document is too large with its aliases replaced; the limit is %d values"
		x.stop(n, what, maxNodes)
	}
	return !x.stopped
}

func (x *expander) stop(n *yaml.Node, format string, limit int) {
	x.stopped = true
	x.problems.add(x.pos(n), "", format, limit)
}

// tagged checks an explicit YAML tag of the node n. A standard tag, such as !!str, is kept in the copy of n. Any other
// tag is a problem.
func (x *expander) tagged(n, out *yaml.Node) {
	switch n.Tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!map", "!!seq":
		out.Style |= yaml.TaggedStyle
	default:
		x.problems.add(x.pos(n), "remove it", "the YAML tag %s is not supported", n.Tag)
	}
}

func (x *expander) uniqueKeys(n *yaml.Node) {
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			x.problems.add(x.pos(n.Content[i]), "", "a key must be plain text")
			continue
		case key.Tag == "!!merge":
			x.problems.add(x.pos(n.Content[i]), "write the fields out", "merge keys (<<) are not supported")
			continue
		}
		if first, ok := seen[key.Value]; ok {
			x.problems.add(x.pos(n.Content[i]), "", "%q is given twice; first in line %d", key.Value, first)
		}
		seen[key.Value] = n.Content[i].Line
	}
}

func (x *expander) pos(n *yaml.Node) Pos { return Pos{File: x.file, Line: n.Line} }
