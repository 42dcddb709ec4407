package faulttest_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/faulttest"
	"github.com/quorate/quorate/cmd/internal/tuned"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == appWord {
		application(os.Args[2])
	}
	if text, ok := os.LookupEnv(tuned.Env); ok {
		os.Exit(tuned.Run(text))
	}
	os.Exit(m.Run())
}

// quick is the tuning of most tests.
func quick() tuned.Tuning { return tuned.Quick() }

// as is this binary as the quorate program. A tuning that is not needed leaves the choice
// to QUORATE_FAULT_BINARY, the real program.
func as(t testing.TB, tune tuned.Tuning) faulttest.Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if real := os.Getenv("QUORATE_FAULT_BINARY"); real != "" && tune == quick() {
		if self, err = filepath.Abs(real); err != nil {
			t.Fatal(err)
		}
	}
	return faulttest.Program{Path: self, Env: []string{tuned.Env + "=" + tune.Text()}}
}

// rounds is how many faults a campaign consists of: QUORATE_FAULT_ROUNDS, or a few.
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

// seed is where all chance of a test comes from: QUORATE_SEED, or the clock.
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

// within bounds what a test waits for: d on a machine of its own, more on a busy one.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*d)
	t.Cleanup(cancel)
	return ctx
}

// cluster makes a cluster without nodes, which ends with the test. The logs of a test that
// failed stay behind.
func cluster(t testing.TB, o faulttest.Options) *faulttest.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes")
	}
	if err := faulttest.Supported(o.DiskSize > 0); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "q") // the path of a socket must be short
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

// formed is a cluster of so many servers that serves.
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
