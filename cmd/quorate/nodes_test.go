package main

import (
	"testing"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/testutil"
)

// launch starts a node, or starts it again, and adds its output to log. When the test ends, it kills the node. If the
// test has failed, it then prints the end of the log.
func launch(t testing.TB, n *launcher.Node, log *testutil.Output, flags ...string) {
	t.Helper()
	n.Options.Stdout, n.Options.Stderr = log, log
	must(t, n.Start(flags...))
	t.Cleanup(func() {
		n.Kill()
		if text := log.String(); t.Failed() && len(text) > 0 {
			t.Logf("the end of the log of %s:\n%s", n.ID, text[max(0, len(text)-4000):])
		}
	})
}
