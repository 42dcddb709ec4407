package membership

import (
	"fmt"
	"testing"
	"time"
)

func TestLogLimiter_ExpectsClosedProbesOnly(t *testing.T) {
	for msg, want := range map[string]bool{
		"memberlist: Failed fallback TCP ping: EOF":                                 true,
		"memberlist: Failed fallback TCP ping: dial tcp 10.0.0.2:7946: i/o timeout": false,
		"memberlist: Suspect b has failed, no acks received":                        false,
	} {
		if expected(msg) != want {
			t.Errorf("expected(%q) = %v", msg, !want)
		}
	}
}

func TestBudget_LogsEachWarningOncePerMinute(t *testing.T) {
	var b budget
	begun := time.Unix(0, 0)
	count := func(at time.Duration, kinds int) (logged int) {
		for i := range 100 {
			if b.spend(begun.Add(at), fmt.Sprint(i%kinds)) {
				logged++
			}
		}
		return logged
	}
	if got := count(0, 3); got != 3 {
		t.Errorf("%d of three warnings that repeat are logged", got)
	}
	if got := count(59*time.Second, 50); got != warningsAMinute-3 {
		t.Errorf("%d further warnings are logged, want %d in a minute", got, warningsAMinute)
	}
	if got := count(time.Minute, 3); got != 3 {
		t.Errorf("%d of three warnings are logged in the next minute", got)
	}
}
