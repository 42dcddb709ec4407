package peercalls

import (
	"strings"
	"testing"
)

// A method whose calls wait has more slots than one whose calls do not. So waiting calls never queue at a server.
func TestConcurrency_OfMethodsThatWait(t *testing.T) {
	for _, method := range Methods() {
		want := concurrency
		if strings.HasSuffix(method, "-wait") {
			want = 1024
		}
		if got := Concurrency(method); got != want {
			t.Errorf("%s: %d", method, got)
		}
	}
}
