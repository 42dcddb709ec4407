package faulttest_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/faulttest"
)

// checkTime bounds the search for a linearization; it takes well under a second.
const checkTime = 2 * time.Minute

// campaign plays a schedule under every kind of load and checks every promise.
func campaign(t *testing.T, c *faulttest.Cluster, s faulttest.Schedule) {
	t.Helper()
	t.Log(s)
	strong := faulttest.StartStrong(c, s.Seed, 6, 0)
	sessions := faulttest.StartSessions(c, s.Seed, 6)
	ledger := faulttest.StartLedger(c, s.Seed, 2, faulttest.Strong, 30*time.Second, 0)
	err := s.Play(t.Context(), c, 30*time.Second, t.Logf)
	ledger.Stop()
	bad := sessions.Stop()
	if stopped := strong.Stop(within(t, time.Minute)); err == nil {
		err = stopped
	}
	t.Logf("strong operations: %s", strong.History)
	t.Logf("sessions: %s", sessions)
	t.Logf("ledger: %s", ledger)
	if err := strong.History.Check(checkTime, os.TempDir()); err != nil {
		t.Error(err)
	}
	for _, b := range bad {
		t.Error(b)
	}
	must(t, err)
	missing, err := ledger.Missing(within(t, time.Minute))
	must(t, err)
	if len(missing) > 0 {
		t.Errorf("%d acknowledged writes are lost: %v", len(missing), missing[:min(10, len(missing))])
	}
	for _, f := range ledger.Failed() {
		t.Errorf("not done in 30 s: %s", f)
	}
	must(t, c.Agree(within(t, time.Minute)))
	tidy(t, c)
}

// tidy waits until no node has more open than a node at rest may have: the connections of
// clients that went away, and those of faults that are over, are closed.
func tidy(t *testing.T, c *faulttest.Cluster) {
	t.Helper()
	const most = 150 // databases, logs, listeners, and some connections to each of few nodes
	for _, n := range c.Running() {
		n.CloseIdle()
		must(t, faulttest.Until(within(t, time.Minute), func() error {
			open, err := n.Open()
			if err == nil && open > most {
				err = fmt.Errorf("%s has %d files and connections open", n.Name, open)
			}
			return err
		}))
		open, err := n.Open()
		must(t, err)
		t.Logf("%s has %d files and connections open", n.Name, open)
	}
}

// With several applications on each node, in four partitions whose leaders are where they
// like, every promise holds as with one.
func TestEveryPromiseHoldsInSeveralPartitionsAndApplications(t *testing.T) {
	t.Parallel()
	apps := []string{"app1", "app2", "app3", "app4", "app5", "app6", "app7"} // with the first one they lie in all partitions
	c := formed(t, 3, faulttest.Options{Apps: apps, Flags: []string{"--partitions", "4", "--request-timeout", "2s"}})
	campaign(t, c, faulttest.Random(seed(t), rounds(t, 2),
		faulttest.Kill(true), faulttest.Pause(true), faulttest.Isolate(), faulttest.KillAll(), faulttest.Restart(false),
		faulttest.Bridge(), faulttest.Kill(false), faulttest.Mute()))
	leader, err := c.Leader(within(t, time.Minute), 0)
	must(t, err)
	for app := range len(apps) + 1 { // what the campaign wrote it may have deleted
		r := faulttest.Set("last", "1", faulttest.Strong)
		r.App = app
		if a := leader.Do(within(t, time.Minute), r); a.Outcome != faulttest.Done {
			t.Fatalf("application %d: %+v", app, a)
		}
	}
	must(t, faulttest.Until(within(t, time.Minute), func() error {
		s, err := leader.Status(t.Context())
		if err != nil {
			return err
		}
		for _, g := range s.Groups {
			if g.Keys == 0 {
				return fmt.Errorf("group %d holds nothing", g.ID)
			}
		}
		return nil
	}))
}

// Strong operations of all kinds, at all nodes, are linearizable, nothing acknowledged is
// lost, sessions never go back, and every node serves again after every fault: while
// processes are killed, stopped, paused and restarted, and the wire between them is cut
// and spoiled in every way.
func TestEveryPromiseHoldsWhileProcessesAndTheNetworkFail(t *testing.T) {
	t.Parallel()
	c := formed(t, 3, faulttest.Options{Flags: []string{"--request-timeout", "2s"}})
	campaign(t, c, faulttest.Random(seed(t), rounds(t, 3),
		faulttest.Kill(true), faulttest.Kill(false), faulttest.KillAll(),
		faulttest.Pause(true), faulttest.Pause(false), faulttest.Restart(true), faulttest.Restart(false),
		faulttest.Isolate(), faulttest.Deafen(), faulttest.Mute(), faulttest.Bridge(), faulttest.Nobody(),
		faulttest.Bad(faulttest.Link{Delay: 20 * time.Millisecond, Jitter: 60 * time.Millisecond}),
		faulttest.Bad(faulttest.Link{Loss: 0.2}),
		faulttest.Together(faulttest.Bad(faulttest.Link{Loss: 0.1, Jitter: 20 * time.Millisecond}), faulttest.Kill(true)),
		faulttest.Together(faulttest.Bridge(), faulttest.Restart(false)),
		faulttest.Together(faulttest.Mute(), faulttest.Kill(false)),
	))
}
