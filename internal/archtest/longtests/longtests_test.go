package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFind_FollowsHelpers(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"a/a_test.go": `package a
func TestDirect(t *testing.T) { t.Run("x", func(t *testing.T) { if testing.Short() { t.Skip() } }) }
func TestThroughHelper(t *testing.T) { formed(t) }
func TestQuick(t *testing.T) { must(t) }
func BenchmarkX(b *testing.B) { cluster(b) }
func formed(t *testing.T) { cluster(t) }
func must(t *testing.T) {}
`,
		"a/b_test.go": "package a_test\nfunc cluster(t testing.TB) { if testing.Short() { t.Skip() } }\n",
		"b/b_test.go": "package b\nfunc TestOther(t *testing.T) { cluster(t) }\nfunc cluster(t " +
			"*testing.T) {}\n",
		"a/testdata/c_test.go": "package c\nfunc TestC(t *testing.T) { testing.Short() }\n",
		"n/go.mod":             "module n\n",
		"n/n_test.go":          "package n\nfunc TestN(t *testing.T) { testing.Short() }\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"a": {"TestDirect", "TestThroughHelper"}}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%q", got)
	}
}

func TestFind_SeesTheLongTestsOfThisModule(t *testing.T) {
	got, err := find("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for folder, test := range map[string]string{
		"cmd/quorate":            "TestAttacks",
		"internal/lab/cluster":   "TestCluster_SurvivesLeaderFailure",
		"internal/lab/faulttest": "TestCampaign_ProcessesAndNetwork",
		"internal/lab/proof":     "TestProof_KeptSeeds",
		"node":                   "TestKill_LosesNoAcknowledgedWrite",
		"raftfsm/group":          "TestSimulation_KeepsGuarantees",
	} {
		if !slices.Contains(got[folder], test) {
			t.Errorf("%s: %s is not among %q", folder, test, got[folder])
		}
	}
}
