package clusterctl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

func TestQuorum_LossIsLoggedWithReason(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a group has had no leader for long")
	}
	nodes, configs := nodetest.ThreeWith(t, func(c *node.Config) { c.API.RequestTimeout = 2 * time.Second })
	nodetest.Close(t, nodes[0])
	var log nodetest.Log
	begun := time.Now()
	nodes[0] = nodetest.OpenLogged(t, configs[0], &log)
	nodetest.Ready(t, nodes[0])
	for _, i := range []int{1, 2} {
		nodetest.Close(t, nodes[i])
	}
	words := []string{"group 0 has no leader: 2 of 3 voters unreachable: n2 (", " since ", "), n3 ("}
	loss := append([]string{"level=ERROR", "quorate rescue"}, words...)
	nodetest.Poll(t, func() error {
		if !log.Has(loss...) {
			return errors.New("the loss of the quorum is not logged")
		}
		return nil
	})
	nodetest.Poll(t, func() error { // until gossip has noticed that both servers have left
		code, body := nodetest.Save(t, nodes[0], "k", "1")
		for _, want := range append(words, "no quorum") {
			if code < 500 || !strings.Contains(body, want) {
				return fmt.Errorf("%q is missing in %d %s", want, code, body)
			}
		}
		if strings.Contains(body, "does not lead the group") {
			return fmt.Errorf("the answer speaks of this server only: %s", body)
		}
		return nil
	})
	nodes[1] = nodetest.Open(t, configs[1])
	nodetest.Poll(t, func() error {
		if !log.Has("level=INFO", "the group has a leader again", "leader=n") {
			return errors.New("the end of the loss is not logged")
		}
		return nil
	})
	losses := 0
	for line := range strings.Lines(log.String()) {
		if !slices.ContainsFunc(loss, func(word string) bool { return !strings.Contains(line, word) }) {
			losses++
		}
	}
	if losses != 1 {
		t.Errorf("the loss is logged %d times:\n%s", losses, log.String())
	}
	if time.Since(begun) > time.Minute { // on a busy machine; then the lines below may be logged again
		return
	}
	for _, line := range []string{"pre-vote campaign failed", "Election timeout reached", "entering candidate state"} {
		if n := strings.Count(log.String(), line); n > 1 {
			t.Errorf("%q is logged %d times within a minute", line, n)
		}
	}
}

func TestQuorum_CommandsNameTheReason(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a group has had no leader for long")
	}
	nodes, _ := nodetest.Three(t)
	for _, i := range []int{1, 2} {
		nodetest.Close(t, nodes[i])
	}
	nodetest.Poll(t, func() error {
		if s := nodetest.Status(t, nodes[0]); s.Groups[0].Leader != "" {
			return errors.New("there is a leader")
		}
		if m := nodetest.Members(t, nodes[0]); m["n2"].State == "alive" || m["n3"].State == "alive" {
			return fmt.Errorf("gossip has not noticed that both servers have left: %+v", m)
		}
		return nil
	})
	a := nodes[0].Admin()
	for name, command := range map[string]func(context.Context) error{
		"voters":   func(ctx context.Context) error { _, err := a.Voters(ctx); return err },
		"remove":   func(ctx context.Context) error { _, err := a.Remove(ctx, "n2"); return err },
		"transfer": func(ctx context.Context) error { _, err := a.TransferLeader(ctx, 0, ""); return err },
		"backup":   func(context.Context) error { return a.SaveBackup(context.Background(), io.Discard) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := command(ctx)
		cancel()
		if text := fault.Text(err); err == nil || !strings.Contains(text, "2 of 3 voters unreachable: n2 (") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
