package archtest_test

import (
	"fmt"
	"path"
	"strings"
	"testing"
)

// room is a package, or a family of them, and its layer. Imports go from a higher layer
// to a lower one. In a pattern, * is one element and ... is any number of them.
type room struct {
	pattern string
	layer   int
}

// rooms is the house, from the top. The first pattern that fits counts.
func rooms() []room {
	return []room{
		{"cmd/...", 7}, {"deploy", 7}, {"docs", 7},
		{"node", 6}, {"node/nodetest", 6},
		{"api/http", 5}, {"api/http/transcript", 5}, {"api/apitest", 5}, {"api/peer", 5}, {"api/grpc", 5},
		{"api", 4}, {"api/relay", 4}, {"raftfsm", 4}, {"component/builtin", 4},
		{"raftfsm/group", 3}, {"discovery", 3}, {"component/loader", 3},
		{"membership", 2}, {"component", 2}, {"component/state", 2}, {"component/secretstores", 2}, {"component/bindings", 2},
		{"component/state/...", 3}, {"component/secretstores/...", 3}, {"component/bindings/...", 3},
		{"raftfsm/command", 2}, {"raftfsm/kv", 2}, {"raftfsm/backup", 2}, {"raftfsm/placement", 2}, {"discovery/records", 2},
		{"internal/fault", 0}, {"internal/fields", 0}, {"internal/sendonce", 0},
		{"internal/*", 1},
	}
}

// rule is about the imports of one family of packages from another.
type rule struct{ from, to string }

// siblings are the imports within one layer that are wanted.
func siblings() []rule {
	return []rule{
		{"cmd/...", "cmd/internal/..."},
		{"node/nodetest", "node"},
		{"raftfsm/kv", "raftfsm/command"},
	}
}

// forbidden are imports that go down and are still wrong.
func forbidden() []rule {
	return []rule{
		{"api/...", "raftfsm/..."},             // the service layer sees contracts
		{"api/...", "membership"},              //
		{"cmd/demo", "..."},                    // the demo uses the binary and plain HTTP
		{"component/state/...", "raftfsm/..."}, // node brings state.raft in
		{"component/loader", "component/*/*"},  // the types it opens are handed in
	}
}

// proofs are the programs that are tests: they may import what is for tests.
func proofs() []rule { return []rule{{"cmd/internal/proof", "cmd/internal/faulttest"}} }

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

// importProblem says why package from must not import package to, or nothing.
func importProblem(from, to string) string {
	upper, ok := layerOf(from)
	if !ok {
		return from + " stands in no layer: give it a place in the table, or move it"
	}
	lower, ok := layerOf(to)
	switch {
	case !ok:
		return to + " stands in no layer"
	case strings.HasSuffix(to, "test") && !strings.HasSuffix(from, "test") && !anyRule(proofs(), from, to):
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

func TestImportsGoDown(t *testing.T) {
	for _, s := range module(t) {
		if _, ok := layerOf(s.pkg()); !ok {
			t.Errorf("%s: package %s stands in no layer", s.name, s.pkg())
		}
		if s.test {
			continue // a test may use what lies beside it and the suites for tests
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

// TestTheTableOfLayersRefuses shows that the table says no.
func TestTheTableOfLayersRefuses(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"node", "raftfsm", true},
		{"raftfsm/kv", "raftfsm/command", true},
		{"api/http", "api", true},
		{"component/state/inmemory", "component/state", true},
		{"cmd/quorate", "cmd/internal/cli", true},
		{"raftfsm", "node", false},
		{"raftfsm/command", "raftfsm/kv", false},
		{"api", "api/http", false},
		{"api", "raftfsm", false},
		{"api/http", "raftfsm/kv", false},
		{"api/http", "membership", false},
		{"component/state", "component", false},
		{"component/loader", "component/state/inmemory", false},
		{"component/state/inmemory", "component/state/statetest", false},
		{"cmd/demo", "internal/fault", false},
		{"internal/fault", "internal/listen", false},
		{"internal/listen", "internal/nearest", false},
		{"helpers", "internal/fault", false},
		{"node", "helpers", false},
	} {
		if problem := importProblem(c.from, c.to); (problem == "") != c.ok {
			t.Errorf("%s -> %s: %q", c.from, c.to, problem)
		}
	}
}

// pure are the packages whose results must depend on nothing but their input: every
// replica computes the same.
func pure() []string { return []string{"raftfsm/kv", "raftfsm/command"} }

// impure are the imports that let the world in.
func impure() []string {
	return []string{"time", "net", "net/...", "os", "os/...", "syscall", "math/rand", "math/rand/...", "crypto/rand", "github.com/hashicorp/..."}
}

func TestTheStateMachineSeesNoClockNetworkChanceOrDisk(t *testing.T) {
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
