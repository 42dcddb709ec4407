package main

import (
	"errors"
	"log/slog"
	"math"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestDefaultMemory_IsAShareOfCgroupOrMachine(t *testing.T) {
	t.Parallel()
	none := func() (uint64, error) { return 0, memlimit.ErrNoLimit }
	broken := func() (uint64, error) { return 0, errors.New("no such file") }
	for name, c := range map[string]struct {
		cgroup, machine memlimit.Provider
		want            int64
	}{
		"a limited cgroup":            {memlimit.Limit(1000), memlimit.Limit(8000), 900},
		"no limit of the cgroup":      {none, memlimit.Limit(8000), 4000},
		"a limit above the machine's": {memlimit.Limit(100_000), memlimit.Limit(8000), 4000},
		"no cgroups":                  {broken, memlimit.Limit(8000), 4000},
		"an unknown machine":          {memlimit.Limit(1000), broken, 900},
		"nothing is known":            {broken, broken, 0},
	} {
		if got := defaultMemory(c.cgroup, c.machine); got != c.want {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// The memory for requests is a share of the returned limit. So limitMemory must return the limit in GOMEMLIMIT, if it
// is set, and not the limit of the flag.
func TestLimitMemory_ReturnsTheLimitInForce(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	t.Setenv("GOMEMLIMIT", "set")
	for inForce, want := range map[int64]int64{1 << 40: 1 << 40, math.MaxInt64: 1 << 30} {
		debug.SetMemoryLimit(inForce)
		if got := limitMemory(1<<30, slog.New(slog.DiscardHandler)); got != want {
			t.Errorf("%d is in force: %d, want %d", inForce, got, want)
		}
	}
}
