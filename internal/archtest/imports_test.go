package archtest_test

import (
	"fmt"
	"path"
	"strings"
	"testing"
)

// room is a pattern of package paths, and the layer of these packages. A package may import only packages of lower
// layers. In a pattern, * is one path element and ... is any number of elements.
type room struct {
	pattern string
	layer   int
}

// rooms are the layers, from the top. The first pattern that matches counts.
func rooms() []room {
	return []room{
		{"cmd/internal/launcher", 7}, {"cmd/lab/internal/...", 8},
		{"cmd/...", 9}, {"deploy", 9}, {"docs", 9},
		{"node", 7}, {"node/nodetest", 7}, {"node/*", 6},
		{"api/http", 5}, {"api/http/*", 5}, {"api/apitest", 5}, {"api/remoteinvoke", 5}, {"api/grpc", 5},
		{"api/admin", 5}, {"api/console", 5},
		{"api", 4}, {"api/invoke", 4}, {"api/actors", 4}, {"api/configurations", 4}, {"api/pubsub", 4},
		{"api/workflows", 4},
		{"api/resiliency", 4}, {"api/httpcopy", 4},
		{"raftfsm", 4}, {"raftfsm/peercalls", 4},
		{"component/builtin", 4}, {"component/pluggable/...", 3},
		{"api/runtimepb", 1}, {"api/jobproto", 4}, {"api/admin/schema", 4},
		{"raftfsm/group", 3}, {"raftfsm/integrity", 3}, {"raftfsm/transport", 3},
		{"raftfsm/snapshot", 3}, {"raftfsm/raftlog", 3}, {"raftfsm/session", 3}, {"raftfsm/locks", 3},
		{"raftfsm/actors", 3}, {"raftfsm/due", 3}, {"raftfsm/topics", 3}, {"raftfsm/workflows", 3},
		{"raftfsm/records", 3},
		{"raftfsm/grouptest", 3},
		{"raftfsm/datadir", 3},
		{"discovery", 3}, {"component/loader", 3},
		{"membership", 2}, {"component", 2}, {"component/state", 2}, {"component/secretstores", 2},
		{"component/bindings", 2}, {"component/pubsub", 2}, {"component/lock", 2}, {"component/configuration", 2},
		{"component/middleware", 2}, {"component/middleware/...", 3},
		{"component/workflow", 2}, {"component/workflow/turn", 2}, {"component/workflow/workflowtest", 3},
		{"component/state/...", 3}, {"component/secretstores/...", 3}, {"component/bindings/...", 3},
		{"component/lock/...", 3}, {"component/configuration/...", 3}, {"component/pubsub/...", 3},
		{"raftfsm/command", 2}, {"raftfsm/kv", 2}, {"raftfsm/backup", 2}, {"raftfsm/placement", 2},
		{"discovery/records", 2},
		{"internal/fault", 0}, {"internal/headers", 0}, {"internal/lenprefix", 0}, {"internal/timeline", 0},
		{"internal/atmostonce", 0},
		{"internal/pending", 0}, {"internal/userfile", 0}, {"internal/flight", 0}, {"internal/frames", 0},
		{"internal/archtest/tree", 0}, {"internal/archtest/*", 1},
		{"internal/*", 1},
	}
}

// rule describes imports: packages that match from import packages that match to.
type rule struct{ from, to string }

// siblings are the allowed imports within one layer.
func siblings() []rule {
	return []rule{
		{"cmd/*", "cmd/internal/..."}, {"cmd/internal/...", "cmd/internal/..."},
		{"cmd/lab/internal/...", "cmd/lab/internal/..."},
		{"node/nodetest", "node"},
		{"node/network", "node/credentials"},
		{"node/doctor", "node/credentials"}, {"node/doctor", "node/network"},
		{"node/catalogue", "node/network"},
		{"node/remoteadmin", "node/network"}, {"node/clusterctl", "node/network"},
		{"node/status", "node/components"},
		{"api/http", "api/http/*"}, {"api/http/watches", "api/http/jsonbody"},
		{"api/http/httpserver", "api/http/watches"}, {"api/http/servertest", "api/http/httpserver"},
		{"api/pubsub", "api"}, {"api/pubsub", "api/resiliency"}, {"api/workflows", "api"},
		{"api/actors", "api"}, {"api/actors", "api/invoke"}, {"api/actors", "api/resiliency"},
		{"api/configurations", "api"}, {"api/configurations", "api/resiliency"},
		{"api", "api/resiliency"}, {"api/invoke", "api"}, {"api/jobproto", "api"}, {"api/invoke", "api/resiliency"},
		{"component/state/...", "component/state/outside"},
		{"raftfsm", "raftfsm/peercalls"}, {"raftfsm/kv", "raftfsm/command"}, {"raftfsm/kv", "component/state"},
		{"component/pluggable", "component/state/outside"},
		{"component/state/inmemory", "component/state/feed"},
		{"component/workflow/turn", "component/workflow"},
		{"component/lock", "component/state"}, {"component/pubsub", "component/state"},
		{"component/state/redis/redistest", "component/state/statetest"},
		{"component/state/postgresql/postgrestest", "component/state/statetest"},
		{"component/lock/redis", "component/state/redis"},
		{"component/configuration/redis", "component/state/redis"},
		{"component/pubsub/redis", "component/state/redis"},
		{"component/configuration/postgresql", "component/state/postgresql"},
		{"component/configuration/postgresql", "component/state/outside"},
		{"component/configuration/...", "component/configuration/..."},
		{"raftfsm/group", "raftfsm/integrity"}, {"raftfsm/group", "raftfsm/transport"},
		{"raftfsm/group", "raftfsm/snapshot"}, {"raftfsm/group", "raftfsm/raftlog"},
		{"raftfsm/integrity", "raftfsm/snapshot"}, {"raftfsm/integrity", "raftfsm/raftlog"},
		{"raftfsm/session", "raftfsm/raftlog"}, {"raftfsm/transport", "raftfsm/raftlog"},
		{"raftfsm/actors", "raftfsm/raftlog"}, {"raftfsm/grouptest", "raftfsm/raftlog"},
		{"raftfsm/records", "raftfsm/raftlog"}, {"raftfsm/locks", "raftfsm/records"},
		{"raftfsm/actors", "raftfsm/records"}, {"raftfsm/due", "raftfsm/records"},
		{"raftfsm/topics", "raftfsm/records"}, {"raftfsm/topics", "raftfsm/grouptest"},
		{"raftfsm/workflows", "raftfsm/records"}, {"raftfsm/workflows", "raftfsm/grouptest"},
		{"raftfsm/snapshot", "raftfsm/raftlog"},
		{"raftfsm/datadir", "raftfsm/raftlog"},
		{"internal/daprmetrics", "internal/pathpattern"},
	}
}

// forbidden are imports of a lower layer that are not allowed.
func forbidden() []rule {
	return []rule{
		{"api/...", "raftfsm/..."},             // the service layer uses contracts
		{"api/...", "membership"},              //
		{"component/state/...", "raftfsm/..."}, // node registers state.raft
		{"component/loader", "component/*/*"},  // the caller passes the types to open
	}
}

// proofs returns the programs that test the product. They may import test packages.
func proofs() []rule {
	return []rule{
		{"cmd/lab/internal/proof", "cmd/lab/internal/faulttest"}, {"cmd/lab/internal/demo", "cmd/lab/internal/demokit"},
		{"cmd/lab/internal/demoactors", "cmd/lab/internal/demokit"},
		{"cmd/lab/internal/demoworkflow", "cmd/lab/internal/demokit"},
		{"cmd/lab/internal/proof", "internal/history"},
		{"cmd/lab/internal/eventgrid", "component/bindings/azure/eventgrid/eventgridtest"},
	}
}

// forTests reports whether only tests may import a package.
func forTests(pkg string) bool { return strings.HasSuffix(pkg, "test") || pkg == "internal/history" }

// matches reports whether a package fits a pattern.
func matches(pattern, pkg string) bool {
	if base, ok := strings.CutSuffix(pattern, "..."); ok {
		return base == "" || pkg == strings.TrimSuffix(base, "/") || strings.HasPrefix(pkg, base)
	}
	ok, err := path.Match(pattern, pkg)
	return ok && err == nil
}

func layerOf(pkg string) (int, bool) {
	for _, r := range rooms() {
		if matches(r.pattern, pkg) {
			return r.layer, true
		}
	}
	return 0, false
}

func anyRule(rules []rule, from, to string) bool {
	for _, r := range rules {
		if matches(r.from, from) && matches(r.to, to) {
			return true
		}
	}
	return false
}

// importProblem returns why package from must not import package to; "" if it may.
func importProblem(from, to string) string {
	upper, ok := layerOf(from)
	if !ok {
		return from + " is in no layer: add it to the table rooms in internal/archtest/imports_test.go, or move it"
	}
	lower, ok := layerOf(to)
	switch {
	case !ok:
		return to + " is in no layer"
	case forTests(to) && !strings.HasSuffix(from, "test") && !anyRule(proofs(), from, to):
		return to + " is for tests"
	case anyRule(forbidden(), from, to):
		return "this import is forbidden"
	case upper > lower, anyRule(siblings(), from, to):
		return ""
	case upper == lower:
		return fmt.Sprintf("both stand in layer %d, and the table does not join them", upper)
	}
	return fmt.Sprintf("imports go down, this one from layer %d to %d", upper, lower)
}

func TestImports_GoDown(t *testing.T) {
	for _, s := range module(t) {
		if _, ok := layerOf(s.pkg()); !ok {
			t.Errorf("%s: package %s is in no layer", s.name, s.pkg())
		}
		if s.test {
			continue // a test may import packages of its layer, and test suites
		}
		for _, imported := range s.imports() {
			to, ours := strings.CutPrefix(imported, modulePath+"/")
			if !ours {
				continue
			}
			if problem := importProblem(s.pkg(), to); problem != "" {
				t.Errorf("%s imports %s: %s", s.name, to, problem)
			}
		}
	}
}

// TestInternal_KnowsNoProduct checks that internal has only what every package may use: none of its packages imports
// the node, an API or a component. Tests are no exception.
func TestInternal_KnowsNoProduct(t *testing.T) {
	seen := 0
	for _, s := range module(t) {
		if !matches("internal/...", s.pkg()) {
			continue
		}
		seen++
		for _, imported := range s.imports() {
			for _, product := range []string{"node/...", "api/...", "component/...", "cmd/..."} {
				if to, ours := strings.CutPrefix(imported, modulePath+"/"); ours && matches(product, to) {
					t.Errorf("%s imports %s: packages below internal know no part of the product", s.name, to)
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d files below internal were found", seen)
	}
}

// TestLayers_Refuse checks which imports the table permits and refuses.
func TestLayers_Refuse(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"node", "raftfsm", true},
		{"node", "node/clusterctl", true},
		{"node/doctor", "node/credentials", true},
		{"node/clusterctl", "node", false},
		{"node/credentials", "node/network", false},
		{"raftfsm/kv", "raftfsm/command", true},
		{"raftfsm/group", "raftfsm/raftlog", true},
		{"raftfsm/raftlog", "raftfsm/group", false},
		{"api/http", "api", true},
		{"component/state/inmemory", "component/state", true},
		{"cmd/quorate", "cmd/internal/cli", true},
		{"raftfsm", "node", false},
		{"raftfsm/command", "raftfsm/kv", false},
		{"api", "api/http", false},
		{"api", "discovery", true},
		{"discovery", "api", false},
		{"discovery", "node", false},
		{"api", "raftfsm", false},
		{"api/http", "raftfsm/kv", false},
		{"api/http", "membership", false},
		{"component/state", "component", false},
		{"component/loader", "component/state/inmemory", false},
		{"component/state/inmemory", "component/state/statetest", false},
		{"cmd/lab", "cmd/lab/internal/demo", true},
		{"cmd/lab/internal/tuned", "node", true},
		{"cmd/lab/internal/proof", "cmd/lab/internal/faulttest", true},
		{"cmd/lab/internal/cluster", "cmd/lab/internal/faulttest", false},
		{"cmd/lab/internal/tuned", "cmd/internal/cli", false},
		{"cmd/lab/internal/cluster", "cmd/internal/launcher", true},
		{"cmd/internal/launcher", "node", false},
		{"node", "cmd/lab/internal/tuned", false},
		{"component/state/statetest", "internal/history", true},
		{"cmd/lab/internal/proof", "internal/history", true},
		{"raftfsm", "internal/history", false},
		{"internal/fault", "internal/listen", false},
		{"internal/listen", "internal/suggest", false},
		{"helpers", "internal/fault", false},
		{"node", "helpers", false},
	} {
		if problem := importProblem(c.from, c.to); (problem == "") != c.ok {
			t.Errorf("%s -> %s: %q", c.from, c.to, problem)
		}
	}
}

// pure returns the packages whose results must depend only on their input, because every replica has to compute the
// same results.
func pure() []string { return []string{"raftfsm/kv", "raftfsm/command"} }

// impure returns the imports that make results depend on the environment.
func impure() []string {
	return []string{"time", "net", "net/...", "os", "os/...", "syscall", "math/rand", "math/rand/...", "crypto/rand",
		"github.com/hashicorp/..."}
}

func TestStateMachine_ImportsNoClockNetworkRandomOrDisk(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range module(t) {
		if s.test || !contains(pure(), s.pkg()) {
			continue
		}
		seen[s.pkg()] = true
		for _, imported := range s.imports() {
			for _, pattern := range impure() {
				if matches(pattern, imported) {
					t.Errorf("%s imports %s", s.name, imported)
				}
			}
		}
	}
	if len(seen) != len(pure()) {
		t.Errorf("looked at %v only", seen)
	}
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
