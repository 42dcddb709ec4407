package component

import (
	"os"

	"go.yaml.in/yaml/v3"
)

// ExpandEnv replaces $NAME and ${NAME} in the values of the document with environment variables, as Dapr does in the
// files of --config. It must be called before Body is used.
//
// ExpandEnv returns a problem for each use of one of these variables:
//   - A variable that is not set. It is replaced by the empty string.
//   - A reserved variable (see ReservedVariable). It is not replaced.
func (d *Document) ExpandEnv(env func(string) (string, bool)) []Problem {
	x := envExpander{file: d.Pos.File, env: env}
	x.values(d.Body)
	return x.problems
}

type envExpander struct {
	file     string
	env      func(string) (string, bool)
	problems []Problem
}

func (x *envExpander) values(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		x.scalar(n)
		return
	}
	for i, child := range n.Content {
		if n.Kind != yaml.MappingNode || i%2 == 1 { // keys of a mapping are not expanded
			x.values(child)
		}
	}
}

func (x *envExpander) scalar(n *yaml.Node) {
	text := os.Expand(n.Value, func(name string) string {
		pos := Pos{File: x.file, Line: n.Line}
		if ReservedVariable(name) {
			x.problems = append(x.problems, Problem{Pos: pos, Text: "$" + name + " is not replaced",
				Hint: "it belongs to the runtime; use another variable"})
			return "${" + name + "}"
		}
		value, ok := x.env(name)
		if !ok {
			x.problems = append(x.problems, Problem{Pos: pos,
				Text: "the environment variable " + name + " is not set; it is replaced by nothing"})
		}
		return value
	})
	if text == n.Value {
		return
	}
	if n.Value = text; n.Style == 0 { // without quotes, the value may be a number or a boolean now
		n.Tag = ""
		n.Tag = n.ShortTag()
	}
}
