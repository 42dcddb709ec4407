package testutil

import "testing"

// ManyBubbles is a reason for SkipUnderRace: the test runs whole clusters or thousands of goroutines in virtual time.
const ManyBubbles = "many bubbles of virtual time with many timers crash the detector (golang.org/issue/78156)"

// ManyBytes is a reason for SkipUnderRace: the test would take minutes, because the detector tracks each byte.
const ManyBytes = "moves a hundred megabytes and more"

// SkipUnderRace skips a test if the race detector is on. reason explains why the test cannot run with the detector, or
// why the detector would find nothing in it.
func SkipUnderRace(t testing.TB, reason string) {
	t.Helper()
	if raceDetector {
		t.Skip("not with the race detector: " + reason)
	}
}
