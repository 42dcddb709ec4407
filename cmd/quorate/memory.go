package main

import (
	"log/slog"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// The default memory limit of the process is the lower of two values: the memory of the machine times shareOfMachine,
// and the memory limit of the cgroup times shareOfCgroup. The rest of the memory is for the application and other
// programs.
const (
	shareOfCgroup  = 0.9
	shareOfMachine = 0.5
)

// limitMemory sets the soft memory limit of the Go runtime to setting, or to the default limit if setting is 0. It
// returns the limit in bytes, or 0 if there is no limit.
//
// If the environment variable GOMEMLIMIT is set, the Go runtime has already applied it. limitMemory then changes
// nothing, and returns the limit of the runtime. If the value of GOMEMLIMIT is "off", it returns setting.
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

// defaultMemory returns the default memory limit in bytes. It returns 0 if neither the memory of the machine nor a
// limit of the cgroup is known.
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
