package faulttest_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
	"github.com/quorate/quorate/cmd/lab/internal/labtest"
	"github.com/quorate/quorate/cmd/lab/internal/tuned"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == appWord {
		application(os.Args[2])
	}
	os.Exit(lab.Run(m))
}

// lab is the program of the nodes.
var lab = labtest.New()

// quick returns the tuning of most tests.
func quick() tuned.Tuning { return tuned.Quick() }

// as returns the program lab, which behaves as the quorate command with this tuning. For the default tuning,
// QUORATE_FAULT_BINARY can name the real program instead.
func as(t testing.TB, tune tuned.Tuning) faulttest.Program {
	t.Helper()
	path := os.Getenv("QUORATE_FAULT_BINARY")
	if path == "" || tune != quick() {
		path = lab.Program(t)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return faulttest.Program{Path: path, Env: []string{tuned.Env + "=" + tune.Text()}}
}

// rounds returns the number of faults of a campaign: QUORATE_FAULT_ROUNDS, or few.
func rounds(t testing.TB, few int) int {
	t.Helper()
	text := os.Getenv("QUORATE_FAULT_ROUNDS")
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("QUORATE_FAULT_ROUNDS: %v", err)
	}
	return n
}

// seed returns the seed of a test: QUORATE_SEED, or the time.
func seed(t testing.TB) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano()) //nolint:gosec // chance, not a secret
	if text := os.Getenv("QUORATE_SEED"); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("QUORATE_SEED: %v", err)
		}
	}
	t.Logf("QUORATE_SEED=%d", s)
	return s
}

// within returns a context with a time limit: d on an idle machine, longer on a busy one.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*d)
	t.Cleanup(cancel)
	return ctx
}

// cluster returns a cluster without nodes, which is closed at the end of the test. The logs of a
// failed test are kept.
func cluster(t testing.TB, o faulttest.Options) *faulttest.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes")
	}
	if err := faulttest.Supported(o.DiskSize > 0); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "q") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	o.Dir = dir
	if o.Program.Path == "" {
		o.Program = as(t, quick())
	}
	c := faulttest.NewCluster(o)
	t.Cleanup(func() {
		nodes := c.Nodes()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if !t.Failed() {
			_ = os.RemoveAll(dir)
			return
		}
		t.Logf("what is left of it: %s", dir)
		for _, n := range nodes {
			t.Logf("%s:\n%s", n.Name, n.Tail(30))
		}
	})
	return c
}

// formed returns a cluster with this many servers that serves.
func formed(t testing.TB, servers int, o faulttest.Options) *faulttest.Cluster {
	t.Helper()
	c := cluster(t, o)
	begin := time.Now()
	if err := c.Form(within(t, time.Minute), servers); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d servers formed a cluster in %s", servers, time.Since(begin).Round(time.Millisecond))
	return c
}

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }
