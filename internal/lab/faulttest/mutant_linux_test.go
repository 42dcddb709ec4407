package faulttest_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/lab/labtest"
)

// mutant is a change of the product that breaks a guarantee, and the test that finds it.
type mutant struct {
	file, old, broken string // old occurs in the file once
	test, rounds      string
	says              string // a regular expression for the output of the failing test
	more              []edit // further changes, if two checks enforce the guarantee
}

// edit is a change of one more file.
type edit struct{ file, old, broken string }

// edits returns all changes of a mutant.
func (m mutant) edits() []edit { return append([]edit{{m.file, m.old, m.broken}}, m.more...) }

// mutants returns the mutants, which show that the tests can fail. Paths are relative to the
// module.
func mutants() map[string]mutant {
	const lost = "acknowledged writes are lost|is not linearizable"
	return map[string]mutant{
		"a leader that reads without a confirmation": {
			"raftfsm/group/read.go", "if have >= need {\n\t\treturn nil\n\t}\n\tif r.confirm", "if have > 0 {\n" +
				"\t\treturn nil\n\t}\n\tif r.confirm",
			"TestLeader_PausedNeverServesStaleReads", "5", "answered a strong read with", nil,
		},
		"strong writes acknowledged without a quorum": {
			"raftfsm/store.go", `if w.consistency != state.Strong && w.requestID == "" && unconditional(req.Ops) {`,
			"if unconditional(req.Ops) {",
			"TestCampaign_ProcessesAndNetwork", "8", lost, nil,
		},
		"requests that are done as often as they come": {
			"raftfsm/kv/clients.go", "case seen.expireAt <= w.meta.clock:", "case true:",
			"TestCampaign_ProcessesAndNetwork", "2", lost + "|was answered", nil,
		},
		"writes that a node sends again, done again": {
			"raftfsm/kv/origins.go", "seen, ok := o.results[id.Seq]\n\tif ok {", "seen, ok := o.results[id.Seq]\n" +
				"\tok = false\n\tif ok {",
			"TestWrite_ForwardedTwiceIsAppliedOnce", "6", "existed before it was created", nil,
		},
		"sessions that wait for nothing": {
			"raftfsm/read.go", "if r.session != nil {\n\t\tif r.restored",
			"if r.session != nil && r.session.pos.Index == 0 {\n\t\tif r.restored",
			"TestCampaign_ProcessesAndNetwork", "2", "travels with its token", nil,
		},
		"own writes that are not waited for": {
			"raftfsm/read.go", "for _, s := range r.own {", "for _, s := range r.own[:0] {",
			"TestCampaign_ProcessesAndNetwork", "2", "stays without a token",
			// the session state of a node for its applications
			[]edit{{"api/sessions.go", "\town := s.Token(app, trace)\n", "\town := \"\"\n"}},
		},
		"a log that is not forced to the disk": {
			"raftfsm/raftlog/engine.go", "Options{Path: mine, BoltOptions: boltOptions()}",
			"Options{Path: mine, BoltOptions: boltOptions(), NoSync: true}",
			"TestSingleNode_SurvivesPowerLoss/boltdb", "3", lost + "|does not serve", nil,
		},
		"a leader that speaks on while its disk hangs": {
			"raftfsm/transport/guard.go", "d := g.log.Stalled()", "d := 0 * g.log.Stalled()",
			"TestCluster_ReplacesALeaderWhoseDiskHangs", "1", "kept its place", nil,
		},
		"eventual writes acknowledged before they are anywhere": {
			"raftfsm/write.go", "\t\ta, sure, err := r.send(ctx, gid, req, ack)\n",
			"\t\tif ack == group.Durable {\n\t\t\tcopied := *req\n" +
				"\t\t\tgo func() { _, _, _ = r.send(context.WithoutCancel(ctx), gid, &copied, ack) }()\n" +
				"\t\t\treturn group.Answer{}, nil\n\t\t}\n\t\ta, sure, err := r.send(ctx, gid, req, ack)\n",
			"TestEventualWrites_SurviveFollowerFailures", "3", lost, nil,
		},
		"replicas that do not all do the same": {
			"raftfsm/snapshot/fsm.go", "entries[i].Data = l.Data", "if start.Nanosecond()%37 != 0 {\n" +
				"\t\t\t\tentries[i].Data = l.Data\n\t\t\t}",
			"TestClients_RetriesHideNodeFailures/all_restarted", "1", "not in time: n.*here and.*there|are lost", nil,
		},
		"a snapshot that is taken for installed and is not": {
			"raftfsm/snapshot/store.go", "err := k.install()", "var err error",
			"TestCluster_InstallsSnapshotsUnderLoad", "2", "does not serve|are lost", nil,
		},
		"a process that hangs where it should end": {
			"internal/lab/tuned/tuned.go", "\"error\", err)\n\t\t\tos.Exit(1)", "\"error\", err)\n\t\t\tselect {}",
			"TestNode_EndsWhenItsDiskFails", "1", "goes on without a disk", nil,
		},
	}
}

// A mutant that does not match the source shows nothing.
func TestMutants_ApplyToTheSource(t *testing.T) {
	root, err := filepath.Abs("../../..")
	must(t, err)
	for name, m := range mutants() {
		for _, e := range m.edits() {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			must(t, err)
			if n := strings.Count(string(text), e.old); n != 1 {
				t.Errorf("%s: %q occurs %d times in %s: adapt the mutant", name, e.old, n, e.file)
			}
		}
	}
}

// Each mutant of the product must be found by its test. This takes minutes, so it runs only if
// QUORATE_FAULT_MUTANTS is set.
func TestMutants_AreFound(t *testing.T) {
	only := os.Getenv("QUORATE_FAULT_MUTANTS")
	if only == "" {
		t.Skip("QUORATE_FAULT_MUTANTS is not set: set it to all, or to a part of a name")
	}
	root, err := filepath.Abs("../../..")
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	for name, m := range mutants() {
		t.Run(name, func(t *testing.T) {
			if only != "all" && !strings.Contains(name, only) {
				t.Skip("not selected")
			}
			cmd := exec.Command(self, "-test.run", m.pattern(), "-test.v", "-test.timeout",
				"8m") //nolint:gosec,noctx // these tests
			cmd.Env = append(os.Environ(), "QUORATE_FAULT_ROUNDS="+m.rounds, "QUORATE_FAULT_BINARY=",
				"QUORATE_FAULT_MUTANTS=",
				labtest.Env+"="+m.build(t, root))
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("%s did not find it:\n%s", m.test, out)
			}
			found := regexp.MustCompile(".*(" + m.says + ").*").Find(out)
			if found == nil {
				t.Fatalf("%s failed, but not with %q:\n%s", m.test, m.says, out)
			}
			t.Logf("%s: %s", m.test, found)
		})
	}
}

// pattern picks the test, and where there is one the subtest.
func (m mutant) pattern() string {
	name, sub, _ := strings.Cut(m.test, "/")
	if sub == "" {
		return "^" + name + "$"
	}
	return "^" + name + "$/^" + sub
}

// build compiles the program lab with the mutant in place of the files.
func (m mutant) build(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	list := filepath.Join(dir, "overlay.json")
	replace := map[string]string{}
	for i, e := range m.edits() {
		original, changed := filepath.Join(root, e.file), filepath.Join(dir, fmt.Sprintf("changed%d.go", i))
		text, err := os.ReadFile(original)
		must(t, err)
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%q stands %d times in %s: adapt the mutant", e.old, n, e.file)
		}
		must(t, os.WriteFile(changed, []byte(strings.Replace(string(text), e.old, e.broken, 1)), 0o600))
		replace[original] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	must(t, os.WriteFile(list, overlay, 0o600))
	return labtest.BuildChanged(t, "cmd/lab", list)
}
