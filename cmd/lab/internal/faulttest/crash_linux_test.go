package faulttest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

// A leader is paused for longer than the election timeout. Meanwhile another leader acknowledges a write. After it
// resumes, the first leader must not answer a strong read with an older value, even if the request was already in its
// socket.
func TestLeader_PausedNeverServesStaleReads(t *testing.T) {
	t.Parallel()
	c := formed(t, 3, faulttest.Options{})
	answered, refused := 0, 0
	for round := range rounds(t, 2) {
		ctx := within(t, time.Minute)
		leader, err := c.Leader(ctx, 0)
		must(t, err)
		must(t, leader.Do(ctx, faulttest.Set("clock", fmt.Sprint("old", round), faulttest.Strong)).Err())
		var conns []net.Conn
		for range 30 {
			conn, err := leader.Dial(ctx)
			must(t, err)
			defer conn.Close()
			conns = append(conns, conn)
		}
		must(t, leader.Pause())
		others, err := c.Followers(ctx, 0) // there is a new leader
		must(t, err)
		want := fmt.Sprint("new", round)
		for _, n := range others {
			if n != leader {
				must(t, faulttest.Until(ctx, func() error {
					return n.Do(ctx, faulttest.Set("clock", want, faulttest.Strong)).Err()
				}))
			}
		}
		for _, conn := range conns {
			_, err := io.WriteString(conn, "GET /v1.0/state/statestore/clock?consistency=strong HTTP/1.1\r\n"+
				"Host: 127.0.0.1\r\n\r\n")
			must(t, err)
		}
		must(t, leader.Resume())
		for _, conn := range conns {
			must(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			must(t, err)
			body, err := io.ReadAll(resp.Body)
			must(t, err)
			switch {
			case resp.StatusCode != http.StatusOK:
				refused++
			case string(body) != `"`+want+`"`:
				t.Fatalf("round %d: %s answered a strong read with %s after %q had been acknowledged", round,
					leader.Name, body, want)
			default:
				answered++
			}
		}
		must(t, c.Ready(ctx))
	}
	t.Logf("%d strong reads answered with the newest value, %d refused", answered, refused)
}

// Clients that retry a write until it is done see only a delay when nodes are restarted in turn,
// and when the leader is killed.
func TestClients_RetriesHideNodeFailures(t *testing.T) {
	t.Parallel()
	c := formed(t, 3, faulttest.Options{})
	for name, gone := range map[string]func(t *testing.T, l *faulttest.Ledger){
		"all restarted in turn":       func(t *testing.T, l *faulttest.Ledger) { rolling(t, c, l) },
		"the leader killed":           func(t *testing.T, l *faulttest.Ledger) { killLeader(t, c, l) },
		"all killed at the same time": func(t *testing.T, l *faulttest.Ledger) { killAll(t, c, l) },
	} {
		t.Run(name, func(t *testing.T) {
			l := faulttest.StartLedger(c, seed(t), 4, faulttest.Strong, 30*time.Second, 100)
			progress(t, l, 100)
			gone(t, l)
			progress(t, l, 100)
			l.Stop()
			t.Log(l)
			for _, f := range l.Failed() {
				t.Errorf("not done in 30 s: %s", f)
			}
			intact(t, l)
			must(t, c.Agree(within(t, time.Minute)))
		})
	}
}

// progress waits for this many more acknowledgements.
func progress(t *testing.T, l *faulttest.Ledger, more int) {
	t.Helper()
	want := l.Acknowledged() + more
	must(t, faulttest.Until(within(t, time.Minute), func() error {
		if have := l.Acknowledged(); have < want {
			return fmt.Errorf("%d acknowledged, waiting for %d", have, want)
		}
		return nil
	}))
}

func intact(t *testing.T, l *faulttest.Ledger) {
	t.Helper()
	missing, err := l.Missing(within(t, time.Minute))
	must(t, err)
	if len(missing) > 0 {
		t.Errorf("%d of %d acknowledged writes are lost, among them %v", len(missing), l.Acknowledged(),
			missing[:min(10, len(missing))])
	}
}

func rolling(t *testing.T, c *faulttest.Cluster, l *faulttest.Ledger) {
	t.Helper()
	for _, n := range c.Nodes() {
		must(t, n.Stop())
		progress(t, l, 20)
		must(t, n.Start())
		must(t, c.Ready(within(t, time.Minute)))
		must(t, caughtUp(within(t, time.Minute), c))
	}
}

// caughtUp waits until the leader of group 0 reports a small lag of all others.
func caughtUp(ctx context.Context, c *faulttest.Cluster) error {
	return faulttest.Until(ctx, func() error {
		leader, err := c.Leader(ctx, 0)
		if err != nil {
			return err
		}
		s, err := leader.Status(ctx)
		if err != nil {
			return err
		}
		for _, server := range s.Groups[0].Servers {
			if server.Node != leader.Name && (server.Lag == nil || *server.Lag > 1000) {
				return errors.New(server.Node + " is behind")
			}
		}
		return nil
	})
}

func killLeader(t *testing.T, c *faulttest.Cluster, _ *faulttest.Ledger) {
	t.Helper()
	for range rounds(t, 2) {
		leader, err := c.Leader(within(t, time.Minute), 0)
		must(t, err)
		must(t, leader.Kill())
		t.Logf("writes resumed %s after kill -9 of the leader", resumes(t, c, leader))
		must(t, leader.Start())
		must(t, c.Ready(within(t, time.Minute)))
	}
}

// resumes waits until all nodes except one accept strong writes again, and returns how long that
// took.
func resumes(t *testing.T, c *faulttest.Cluster, gone *faulttest.Node) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx := within(t, time.Minute)
	for _, n := range c.Running() {
		if n != gone {
			must(t, faulttest.Until(ctx, func() error {
				return n.Do(ctx, faulttest.Set("resumed", "1", faulttest.Strong)).Err()
			}))
		}
	}
	return time.Since(begin).Round(10 * time.Millisecond)
}

func killAll(t *testing.T, c *faulttest.Cluster, l *faulttest.Ledger) {
	t.Helper()
	kill := faulttest.KillAll()
	heal, err := kill.Inflict(t.Context(), c, nil)
	must(t, err)
	must(t, heal(t.Context()))
	begin := time.Now()
	progress(t, l, 1)
	t.Logf("writes resumed %s after all were killed and started again", time.Since(begin).Round(10*time.Millisecond))
	must(t, c.Ready(within(t, time.Minute)))
}
