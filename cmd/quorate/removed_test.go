package main

import (
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
)

// TestRemove_KilledServerIsNotListedAsFailed kills a server. As soon as an operator removes this server, gossip must
// list it as left, and it must not be a scrape target any more.
func TestRemove_KilledServerIsNotListedAsFailed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts three processes, and waits until one is known to have failed")
	}
	m := newMachine(t)
	nodes := []*server{m.server("n1"), m.server("n2"), m.server("n3")}
	seeds := nodes[0].Gossip() + "," + nodes[1].Gossip() + "," + nodes[2].Gossip()
	for _, s := range nodes {
		m.start(s, "--join", seeds, "--bootstrap-expect", "3", "--metrics-port", "0")
	}
	m.voters(nodes[0], 3)
	metrics := regexp.MustCompile(`(?m)^Metrics +(\S+)$`).FindStringSubmatch(m.must(nodes[1], "status"))
	if metrics == nil {
		t.Fatal("status names no metrics address")
	}
	// shows waits until n2 lists n3 in a state, and its targets have or lack n3.
	shows := func(state string, target bool) {
		t.Helper()
		m.until(func() error {
			resp, err := m.http.Get("http://" + metrics[1] + "/targets")
			if err != nil {
				return err
			}
			body, err := io.ReadAll(resp.Body)
			if _ = resp.Body.Close(); err != nil {
				return err
			}
			if got := strings.Contains(string(body), `"__meta_quorate_node":"n3"`); got != target {
				return errors.New("the targets are " + string(body))
			}
			row := regexp.MustCompile(`(?m)^n3 +server +` + state + ` `)
			if list := m.must(nodes[1], "members"); !row.MatchString(list) {
				return errors.New(list)
			}
			return nil
		})
	}
	shows("alive", true)
	nodes[2].Kill()
	shows("failed", true)
	m.must(nodes[1], "remove", "n3")
	shows("left", false)
}
