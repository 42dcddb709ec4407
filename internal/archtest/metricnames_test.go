package archtest_test

import (
	"go/ast"
	"go/token"
	"strings"
)

const prometheusPath = "github.com/prometheus/client_golang/prometheus"

// metricNames finds metric names that are concatenated from parts. A metric must be declared with its full name, so
// that a search for the name finds the declaration.
func metricNames(s *source) (out []string) {
	if s.test {
		return nil
	}
	imported := false
	for _, path := range s.imports() {
		imported = imported || path == prometheusPath
	}
	if !imported {
		return nil
	}
	for _, sel := range selectors(s, prometheusPath, "BuildFQName") {
		out = append(out, s.at(sel.Pos())+": BuildFQName: write the full name of the metric as one string")
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.ADD && (hasMetricPrefix(n.X) || hasMetricPrefix(n.Y)) {
				out = append(out, s.at(n.Pos())+": the name of a metric is concatenated: write it as one string")
			}
		case *ast.CompositeLit:
			out = append(out, nameParts(s, n)...)
		}
		return true
	})
	return out
}

// hasMetricPrefix reports whether e is a string that begins like the name of a metric.
func hasMetricPrefix(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING && strings.HasPrefix(lit.Value[1:], "quorate_")
}

// nameParts finds the fields Namespace and Subsystem of prometheus options, and a name that is concatenated.
func nameParts(s *source, lit *ast.CompositeLit) (out []string) {
	sel, ok := lit.Type.(*ast.SelectorExpr)
	if !ok || !strings.HasSuffix(sel.Sel.Name, "Opts") {
		return nil
	}
	if x, ok := sel.X.(*ast.Ident); !ok || s.imports()[x.Name] != prometheusPath {
		return nil
	}
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, _ := kv.Key.(*ast.Ident)
		switch {
		case key == nil:
		case key.Name == "Namespace", key.Name == "Subsystem":
			out = append(out,
				s.at(kv.Pos())+": "+key.Name+" is part of the name of a metric: write the full name in Name")
		case key.Name == "Name":
			if sum, ok := kv.Value.(*ast.BinaryExpr); ok && !hasMetricPrefix(sum.X) && !hasMetricPrefix(sum.Y) {
				out = append(out, s.at(kv.Pos())+": the name of a metric is concatenated: write it as one string")
			}
		}
	}
	return out
}
