package archtest_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// call is something a package must not use, unless it is one of the exceptions.
type call struct {
	pkg, name string   // name "" = everything of the package
	except    []string // patterns of packages
	why       string
}

func forbiddenCalls() []call {
	process := []string{"cmd/...", "internal/archtest/..."}
	chance := []string{
		"cmd/lab/...", "component/state/statetest", "discovery", "internal/admission", "internal/archtest/doccomments",
		"internal/listen", "internal/powercut", "internal/rest", "internal/testutil", "internal/tracing", "raftfsm",
		"raftfsm/group", "raftfsm/grouptest", "raftfsm/integrity", "raftfsm/peercalls",
	}
	ownFiles := []string{ // not written by users
		"api/admin", "cmd/compare", "cmd/internal/backupcmd", "cmd/internal/cli", "cmd/lab/...",
		"component/state/postgresql/postgrestest", "deploy/...", "internal/archtest/...", "internal/durable",
		"internal/powercut", "internal/testutil", "internal/userfile", "node/backups", "raftfsm/raftlog",
	}
	return []call{
		{"os", "ReadFile", ownFiles, "read files of users with internal/userfile, which waits for no pipe"},
		{"os", "Open", ownFiles, "open files of users with internal/userfile, which waits for no pipe"},
		{"crypto/tls", "LoadX509KeyPair", nil, "read both files with internal/userfile, which waits for no pipe"},
		{"math/rand", "", nil, "use math/rand/v2, or crypto/rand for what must not be guessed"},
		{"math/rand/v2", "", chance, "secrets come from crypto/rand; list a package that needs only chance"},
		{"os", "Getenv", append([]string{"component/state/postgresql/postgrestest", "internal/testutil"}, process...),
			"only the command reads the environment"},
		{"os", "LookupEnv", append([]string{"component/secretstores/local/env", "node/nodetest"}, process...),
			"only the command reads the environment"},
		{"os", "Environ", process, "only the command reads the environment"},
		{"os", "Args", process, "only the command reads its arguments"},
		{"os", "Exit", process, "only the command ends the process"},
		{"os", "Stdout", process, "only the command prints"},
		{"os", "Stderr", process, "only the command prints"},
		{"fmt", "Print", process, "only the command prints"},
		{"fmt", "Printf", process, "only the command prints"},
		{"fmt", "Println", process, "only the command prints"},
		{"flag", "", process, "only the command has flags"},
		{"log", "", []string{"internal/logadapt"}, "log with the *slog.Logger that was handed in"},
		{"log/slog", "Default", nil, "log with the *slog.Logger that was handed in"},
		{"log/slog", "SetDefault", nil, "there is no process-wide logger"},
		{"expvar", "", nil, "metrics are registered with the prometheus.Registerer that was handed in"},
		{"net/http", "DefaultServeMux", nil, "serve a mux of your own"},
		{"net/http", "Handle", nil, "serve a mux of your own"},
		{"net/http", "HandleFunc", nil, "serve a mux of your own"},
		{"net/http", "DefaultClient", nil, "make a client with a time-out"},
		{"net/http", "Get", nil, "make a client with a time-out"},
		{"net/http", "Post", nil, "make a client with a time-out"},
		{"github.com/prometheus/client_golang/prometheus", "DefaultRegisterer", nil,
			"use the prometheus.Registerer that was handed in"},
		{"github.com/prometheus/client_golang/prometheus", "MustRegister", nil,
			"use the prometheus.Registerer that was handed in"},
		{"github.com/prometheus/client_golang/prometheus/promauto", "", nil,
			"use the prometheus.Registerer that was handed in"},
	}
}

// check is one rule. It returns the violations in a file.
type check func(s *source) []string

// checks returns the rules for every file.
func checks() map[string]check {
	return map[string]check{
		"no package has an init function":           initFunctions,
		"tests wait for conditions, not for time":   sleeps,
		"nothing is left for later":                 leftovers,
		"package variables never change":            mutations,
		"only the command touches the process":      calls,
		"a package variable guards no shared state": locks,
		"a metric is declared with its full name":   metricNames,
		"headers of answers are bounded":            answerHeaders,
	}
}

func TestHouseRules(t *testing.T) {
	files := module(t)
	for rule, find := range checks() {
		t.Run(rule, func(t *testing.T) {
			for _, s := range files {
				if ast.IsGenerated(s.ast) {
					continue // from runtime.proto
				}
				for _, problem := range find(s) {
					t.Error(problem)
				}
			}
		})
	}
}

// answerHeaders finds HTTP clients that do not limit the headers of an answer themselves. By default, net/http accepts
// 10 MiB. atmostonce.Transport sets a limit.
func answerHeaders(s *source) (out []string) {
	if s.test || excepted([]string{"cmd/compare", "cmd/lab/...", "cmd/internal/launcher",
		"component/bindings/azure/eventgrid/eventgridtest", "node/nodetest", "internal/testutil"}, s.pkg()) {
		return nil
	}
	bounded := map[ast.Node]bool{}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		for _, sel := range selectors(s, "github.com/quorate/quorate/internal/atmostonce", "Transport") {
			if address, ok := call.Args[0].(*ast.UnaryExpr); ok && call.Fun == sel {
				bounded[address.X] = true
			}
		}
		return true
	})
	for name, field := range map[string]string{"Transport": "MaxResponseHeaderBytes", "Client": "Transport"} {
		types := map[ast.Node]bool{}
		for _, sel := range selectors(s, "net/http", name) {
			types[sel] = true
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if ok && types[lit.Type] && !bounded[lit] && !hasField(lit, field) {
				out = append(out, s.at(lit.Pos())+": set "+field+", so that the headers of an answer are bounded")
			}
			return true
		})
	}
	for _, sel := range selectors(s, "net/http", "DefaultTransport") {
		if s.pkg() != "internal/tracing" { // the copy of the default transport in that package is bounded
			out = append(out, s.at(sel.Pos())+": make a transport with MaxResponseHeaderBytes")
		}
	}
	return out
}

func hasField(lit *ast.CompositeLit, name string) bool {
	return slices.ContainsFunc(lit.Elts, func(e ast.Expr) bool {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		key, ok := pair.Key.(*ast.Ident)
		return ok && key.Name == name
	})
}

func initFunctions(s *source) (out []string) {
	for _, d := range s.ast.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			out = append(out, s.at(f.Pos())+": what init does belongs into a constructor")
		}
	}
	return out
}

func sleeps(s *source) (out []string) {
	if !s.test {
		return nil
	}
	for _, sel := range selectors(s, "time", "Sleep") {
		out = append(out, s.at(sel.Pos())+": a sleep is no synchronisation: wait for the condition, or use "+
			"testing/synctest")
	}
	return out
}

func leftovers(s *source) (out []string) {
	for _, group := range s.ast.Comments {
		for _, c := range group.List {
			for _, word := range []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"} {
				if strings.Contains(c.Text, word) {
					out = append(out, s.at(c.Pos())+": "+word+
						" in a comment: do it, or write it down where it is planned")
				}
			}
		}
	}
	return out
}

func calls(s *source) (out []string) {
	if s.test {
		return nil
	}
	for _, c := range forbiddenCalls() {
		if excepted(c.except, s.pkg()) {
			continue
		}
		for _, sel := range selectors(s, c.pkg, c.name) {
			out = append(out, fmt.Sprintf("%s: %s.%s: %s", s.at(sel.Pos()), c.pkg, sel.Sel.Name, c.why))
		}
	}
	return out
}

func excepted(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if matches(p, pkg) {
			return true
		}
	}
	return false
}

// selectors finds every use of a name of the package with the path pkg. If name is "", it finds every use of the
// package.
func selectors(s *source, pkg, name string) (out []*ast.SelectorExpr) {
	imports := s.imports()
	ast.Inspect(s.ast, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if ok && imports[x.Name] == pkg && (name == "" || sel.Sel.Name == name) {
			out = append(out, sel)
		}
		return true
	})
	return out
}

// packageVariables calls f for each package variable a file declares.
func packageVariables(s *source, f func(name string, v *ast.ValueSpec)) {
	for _, d := range s.ast.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			for _, name := range v.Names {
				if name.Name != "_" {
					f(name.Name, v)
				}
			}
		}
	}
}

// variables returns the names of the package variables that a file declares.
func variables(s *source) map[string]bool {
	out := map[string]bool{}
	packageVariables(s, func(name string, _ *ast.ValueSpec) { out[name] = true })
	return out
}

// mutations finds assignments to a package variable, or to a field or an element of one.
func mutations(s *source) (out []string) {
	if s.test {
		return nil
	}
	note := func(e ast.Expr) {
		if id := root(e); id != nil && s.vars[id.Name] && !local(s, id) {
			out = append(out, s.at(e.Pos())+": package variable "+id.Name+" is changed")
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					note(e)
				}
			}
		case *ast.IncDecStmt:
			note(n.X)
		}
		return true
	})
	return out
}

// local reports whether a name is declared inside a function. The parser resolves names only within a file; a name
// that it cannot resolve is declared elsewhere in the package.
func local(s *source, id *ast.Ident) bool {
	if id.Obj == nil {
		return false
	}
	declared := false
	packageVariables(s, func(_ string, v *ast.ValueSpec) { declared = declared || id.Obj.Decl == v })
	return !declared
}

// root returns the variable that an assignable expression starts from.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// locks finds package variables of types of the packages sync and sync/atomic, because such a variable is there to be
// changed.
func locks(s *source) (out []string) {
	if s.test {
		return nil
	}
	imports := s.imports()
	packageVariables(s, func(name string, v *ast.ValueSpec) {
		ast.Inspect(v, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && (imports[x.Name] == "sync" || imports[x.Name] == "sync/atomic") {
				out = append(out, s.at(v.Pos())+": package variable "+name+" holds "+x.Name+"."+sel.Sel.Name)
			}
			return true
		})
	})
	return out
}

// TestHouseRules_FindViolations shows that each rule can fail. Its file is a text that breaks all of them. The text is
// parsed and never compiled.
func TestHouseRules_FindViolations(t *testing.T) {
	const file = `package p
import ("os"; "sync"; "time"; clock "time"; "log"; "math/rand/v2")
var table = map[string]int{}
var count int
var mu sync.Mutex
func init() {}
func f(count int) { count = 1; table["a"] = 1; _ = os.Getenv("X"); log.Print(); rand.Uint64() }
func g() { count++; time.Sl` + `eep(1); clock.Sl` + `eep(1) }
// TO` + `DO later
`
	want := map[string]int{
		"no package has an init function":           1,
		"tests wait for conditions, not for time":   0,
		"nothing is left for later":                 1,
		"package variables never change":            2,
		"only the command touches the process":      3,
		"a package variable guards no shared state": 1,
		"a metric is declared with its full name":   0,
	}
	s := parse(t, "membership/p.go", []byte(file))
	for rule, find := range checks() {
		if got := find(s); len(got) != want[rule] {
			t.Errorf("%s: %q", rule, got)
		}
	}
	if got := sleeps(parse(t, "membership/p_test.go", []byte(file))); len(got) != 2 {
		t.Errorf("sleeps: %q", got)
	}
	other := parse(t, "membership/q.go", []byte("package p\nfunc h() { count = 2 }\n"))
	shareVariables([]*source{s, other})
	if got := mutations(other); len(got) != 1 {
		t.Errorf("a change in another file: %q", got)
	}
	const metrics = `package p
import prom "github.com/prometheus/client_golang/prometheus"
func names(prefix, name string) {
	_ = prom.CounterOpts{Name: "quorate_a_" + name}
	_ = prom.CounterOpts{Name: prefix + name}
	_ = prom.GaugeOpts{Namespace: "quorate", Subsystem: "a", Name: "b"}
	_ = prom.NewDesc(prom.BuildFQName("quorate", "a", "b"), "", nil, nil)
	_ = prom.CounterOpts{Name: "quorate_a_b_total"}
	_ = prom.CounterOpts{Name: name}
}
`
	if got := metricNames(parse(t, "membership/p.go", []byte(metrics))); len(got) != 5 {
		t.Errorf("names of metrics: %q", got)
	}
}

func TestPackages_HaveDocComment(t *testing.T) {
	docs, files := map[string][]*source{}, map[string]*source{}
	for _, s := range module(t) {
		if s.test {
			continue
		}
		files[s.pkg()] = s
		if s.ast.Doc != nil {
			docs[s.pkg()] = append(docs[s.pkg()], s)
		}
	}
	for pkg, s := range files {
		if len(docs[pkg]) != 1 {
			t.Errorf("package %s has %d package comments, one is wanted", pkg, len(docs[pkg]))
			continue
		}
		text, start := docs[pkg][0].ast.Doc.Text(), "Package "+s.ast.Name.Name+" "
		if s.ast.Name.Name == "main" {
			start = "Command "
		}
		if !strings.HasPrefix(text, start) || !strings.Contains(text, "own") {
			t.Errorf("%s: the package comment starts with %q and says what the package owns", docs[pkg][0].name,
				start)
		}
	}
}
