//go:build !race

package testutil

// raceDetector reports whether the race detector is on.
const raceDetector = false
