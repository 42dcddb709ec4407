package main

import (
	"log/slog"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// The default memory limit of the process is the lower of two values. One is the memory of the machine times
// shareOfMachine, and the other is the memory limit of the cgroup times shareOfCgroup. The rest of the machine's
// memory is for the application and other programs.
const (
	shareOfCgroup  = 0.9
	shareOfMachine = 0.5
)

// limitMemory sets the soft memory limit of the Go runtime and returns it in bytes, or 0 if there is no limit. The
// parameter setting is the limit in the settings. If setting is 0, the default limit applies. If the environment
// variable GOMEMLIMIT is set, the Go runtime has already applied it, and limitMemory does not change the limit. It
// then returns the limit in GOMEMLIMIT, or setting if the value of GOMEMLIMIT is "off".
func limitMemory(setting int64, log *slog.Logger) int64 {
	if os.Getenv("GOMEMLIMIT") != "" {
		if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
			return limit
		}
		return setting
	}
	limit := setting
	if limit == 0 {
		limit = defaultMemory(memlimit.FromCgroup, memlimit.FromSystem)
	}
	if limit == 0 {
		log.Warn("the memory of this machine cannot be determined; the process has no memory limit", "hint",
			"set --memory-limit")
		return 0
	}
	debug.SetMemoryLimit(limit)
	log.Debug("memory limit", "bytes", limit)
	return limit
}

// defaultMemory returns the default memory limit in bytes, or 0 if the memory of the machine is unknown.
func defaultMemory(cgroup, machine memlimit.Provider) int64 {
	limit, err := memlimit.ApplyRatio(machine, shareOfMachine)()
	if err != nil {
		limit = 0
	}
	if own, err := memlimit.ApplyRatio(cgroup, shareOfCgroup)(); err == nil && own > 0 && (limit == 0 || own < limit) {
		limit = own
	}
	return int64(min(limit, math.MaxInt64)) //nolint:gosec // bounded
}
