package archtest_test

import (
	"go/ast"
	"testing"
)

// Limits for node.Node, which should only connect subsystems. More state belongs to a package below node/.
const (
	maxNodeFields  = 15
	maxNodeMethods = 40
)

func TestNode_OnlyWires(t *testing.T) {
	var files []*source
	for _, s := range module(t) {
		if s.pkg() == "node" && !s.test {
			files = append(files, s)
		}
	}
	fields, methods := sizeOf(files, "Node")
	if fields == 0 || methods == 0 {
		t.Fatalf("node.Node was not found: %d fields, %d methods", fields, methods)
	}
	if fields > maxNodeFields || methods > maxNodeMethods {
		t.Errorf("node.Node has %d fields and %d methods, at most %d and %d are allowed: move what it does to "+
			"a package below node/",
			fields, methods, maxNodeFields, maxNodeMethods)
	}
}

// sizeOf counts the fields and the methods of a struct type.
func sizeOf(files []*source, name string) (fields, methods int) {
	for _, s := range files {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && receiver(f) == name {
				methods++
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != name {
				return true
			}
			if body, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range body.Fields.List {
					fields += max(len(f.Names), 1) // an embedded one has no name
				}
			}
			return false
		})
	}
	return fields, methods
}

// receiver returns the name of the type of a method.
func receiver(f *ast.FuncDecl) string {
	e := f.Recv.List[0].Type
	if p, ok := e.(*ast.StarExpr); ok {
		e = p.X
	}
	id, _ := e.(*ast.Ident)
	if id == nil {
		return ""
	}
	return id.Name
}

func TestSizeOf_CountsFieldsAndMethods(t *testing.T) {
	s := parse(t, "node/x.go", []byte(`package node
type Node struct { other; a, b int; c string }
type other struct { d int }
func (n *Node) x() {}
func (n Node) y() {}
func (o other) z() {}
`))
	if fields, methods := sizeOf([]*source{s}, "Node"); fields != 4 || methods != 2 {
		t.Errorf("%d fields, %d methods, want 4 and 2", fields, methods)
	}
}
