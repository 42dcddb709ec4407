package testutil

import "testing"

// ManyBubbles is a reason for SkipUnderRace: the test runs whole clusters or thousands of goroutines in virtual time.
const ManyBubbles = "many bubbles of virtual time with many timers crash the detector (golang.org/issue/78156)"

// SkipUnderRace leaves a test out when the race detector is on. The reason says why the detector finds nothing there,
// or why the test cannot run with it.
func SkipUnderRace(t testing.TB, reason string) {
	t.Helper()
	if raceDetector {
		t.Skip("not with the race detector: " + reason)
	}
}
