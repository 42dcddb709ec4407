package proof_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/quorate/quorate/cmd/lab/internal/labtest"
	"github.com/quorate/quorate/cmd/lab/internal/proof"
)

func TestMain(m *testing.M) { os.Exit(lab.Run(m)) }

// lab is the program of the nodes.
var lab = labtest.New()

// kept returns the seeds that every run of the tests uses: those that once found a problem, and one for each shape of
// cluster.
func kept() []struct {
	seed  uint64
	steps int
	why   string
} {
	return []struct {
		seed  uint64
		steps int
		why   string
	}{
		{1, 3, "log store wal: a torn manifest, an interrupted snapshot, a backup"},
		{6, 3, "log store boltdb, three partitions"},
	}
}

// Every guarantee must hold under the schedules of the kept seeds. The test runs their first steps,
// or QUORATE_FAULT_ROUNDS steps.
func TestProof_KeptSeeds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	if err := proof.Supported(); err != nil {
		t.Skip(err)
	}
	program := lab.Program(t)
	for _, k := range kept() {
		t.Run(fmt.Sprint("seed ", k.seed), func(t *testing.T) {
			t.Log(k.why)
			steps := k.steps
			if text := os.Getenv("QUORATE_FAULT_ROUNDS"); text != "" {
				var err error
				if steps, err = strconv.Atoi(text); err != nil {
					t.Fatalf("QUORATE_FAULT_ROUNDS: %v", err)
				}
			}
			r, err := proof.Run(t.Context(), proof.Options{Program: program, Version: "test", Seed: k.seed,
				Steps: steps, Log: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range r.Violations {
				t.Errorf("%s; %s repeats it; logs: %s\n%s", v, r.Again, r.Logs, history(v))
			}
			if len(r.Played) != steps {
				t.Errorf("%d steps were played, not %d", len(r.Played), steps)
			}
			page := filepath.Join(t.TempDir(), "report.html")
			f, err := os.Create(page)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.WriteHTML(f); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func history(v proof.Violation) (out string) {
	for _, line := range v.History {
		out += line + "\n"
	}
	return out
}
