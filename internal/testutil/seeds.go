package testutil

import (
	"os"
	"strconv"
	"testing"
)

// Seeds returns the first seed of a random test, and the number of seeds to run. By default these are 1 and n, so
// every run of the test is the same. The environment variables QUORATE_SIM_SEED and QUORATE_SIM_SEEDS override them.
func Seeds(t testing.TB, n uint64) (first, count uint64) {
	t.Helper()
	return setting(t, "QUORATE_SIM_SEED", 1), setting(t, "QUORATE_SIM_SEEDS", n)
}

func setting(t testing.TB, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	Must(t, err)
	return n
}
