package browsertest

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestConsole_GroupIsComparedAndLeadershipTransferred(t *testing.T) {
	nodes, dir := startCluster(t, "--console-write"), artefacts(t)
	nodes[0].save(t, `[{"key":"order-1","value":1}]`)
	b := openBrowser(t, nodes[0])
	b.open("/groups/0")
	b.press("#comparison button")
	begun := time.Now()
	wait(t, "the result of the comparison is shown", func() bool {
		return strings.Contains(b.text("#comparison"), "All servers have the same state.")
	})
	t.Logf("shown after %v", time.Since(begun).Round(time.Millisecond))
	if n := strings.Count(b.text("#comparison"), "same as the majority"); n != len(nodes) {
		t.Errorf("%d servers were compared:\n%s", n, b.text("#comparison"))
	}
	before := b.text("#leaders tbody")
	wait(t, "all servers vote", func() bool { return !strings.Contains(b.text("#members"), "non-voter") })
	b.press("#transfer button")
	wait(t, "the new leader is in the history", func() bool {
		return b.text("#leaders tbody") != before &&
			strings.Count(b.text("#leaders tbody"), "UTC") == 2
	})
	if problems := b.audit(); len(problems) > 0 {
		t.Error(strings.Join(problems, "\n"))
	}
	b.shoot(dir, "group-compared")
	code := nodes[1].post(t, "/v1.0/state/statestore", `[{"key":"order-2","value":1}]`)
	if code != http.StatusNoContent {
		t.Errorf("a save after the transfer: %d", code)
	}
	b.check()
}
