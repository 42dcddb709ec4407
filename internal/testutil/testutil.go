// Package testutil has helpers for tests of many packages. For example, the helpers end a test after an error, wait for
// a condition, and collect the output of a program. The package owns only these helpers.
package testutil

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Patience is how long a test waits for an event before the test fails. It is much longer than any event takes, so a
// test fails only if the event never happens.
const Patience = 2 * time.Minute

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually calls check every few milliseconds until check returns nil. If check still returns an error after
// Patience, the test fails with that error.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(Patience)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %v", Patience, err)
		}
	}
}

// Output collects what a program or a log writes. It is safe for concurrent use.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer. It never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns what was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
