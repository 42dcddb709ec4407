package membership

import "testing"

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
