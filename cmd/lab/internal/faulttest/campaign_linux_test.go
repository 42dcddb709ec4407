package faulttest_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

// checkTime limits the search for a linearization, which takes well under a second.
const checkTime = 2 * time.Minute

// campaign forms a cluster with this many servers, runs a schedule under every kind of load, and checks all
// guarantees. It returns the cluster.
func campaign(t *testing.T, servers int, o faulttest.Options, s faulttest.Schedule) *faulttest.Cluster {
	t.Helper()
	t.Log(s)
	actors, topics := faulttest.NewActors(s.Seed), faulttest.NewTopics(s.Seed)
	workflows := faulttest.NewWorkflows(s.Seed)
	o.Application = func(n *faulttest.Node) http.Handler {
		workflows.Attend(n)
		return topics.Application(n, actors.Application(n))
	}
	resources, err := topics.Flags(t.TempDir())
	must(t, err)
	o.Flags = append(append(o.Flags, "--request-timeout", "2s", "--app-id", "app"), resources...)
	c := formed(t, servers, o)
	strong := faulttest.StartStrong(c, s.Seed, 6, 0)
	sessions := faulttest.StartSessions(c, s.Seed, 6)
	ledger := faulttest.StartLedger(c, s.Seed, 2, faulttest.Strong, 30*time.Second, 0)
	locks := faulttest.StartLocks(c, s.Seed, 4)
	watches, err := faulttest.StartWatches(within(t, time.Minute), c, s.Seed, 2)
	must(t, err)
	actors.Start(c, 3)
	topics.Start(c, 2)
	workflows.Start(c, 2)
	err = s.Play(t.Context(), c, 30*time.Second, t.Logf)
	ledger.Stop()
	locks.Stop()
	wrong, fired := actors.Stop(within(t, time.Minute), err == nil)
	bad := topics.Stop(within(t, time.Minute), err == nil)
	bad = append(bad, workflows.Stop(within(t, time.Minute), err == nil)...)
	bad = append(bad, sessions.Stop()...)
	if err == nil {
		err = sessions.Settle(within(t, time.Minute))
	}
	bad = append(bad, watches.Stop(within(t, time.Minute))...)
	if stopped := strong.Stop(within(t, time.Minute)); err == nil {
		err = stopped
	}
	t.Logf("strong operations: %s", strong.History)
	t.Logf("sessions: %s", sessions)
	t.Logf("ledger: %s", ledger)
	t.Logf("locks: %s", locks.History)
	t.Logf("watches: %s", watches)
	t.Logf("actors: %s", actors.History)
	t.Logf("due: %s", actors.Due)
	t.Logf("topics: %s", topics.History)
	t.Logf("workflows: %s", workflows.History)
	for _, w := range slices.Concat(wrong, fired) {
		t.Errorf("actors: %s", w)
	}
	if err := locks.History.Check(checkTime, os.TempDir()); err != nil {
		t.Errorf("locks: %v", err)
	}
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
	return c
}

// tidy waits until no node has more open files and connections than an idle node may have.
func tidy(t *testing.T, c *faulttest.Cluster) {
	t.Helper()
	const most = 150 // databases, logs, listeners, and some connections to each of a few nodes
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

// All guarantees hold with several applications on each node and four partitions.
func TestCampaign_PartitionsAndApplications(t *testing.T) {
	t.Parallel()
	// together with the first one they are in all partitions
	apps := []string{"app1", "app2", "app3", "app4", "app5", "app6", "app7"}
	o := faulttest.Options{Apps: apps, Flags: []string{"--partitions", "4"}}
	c := campaign(t, 3, o, faulttest.Random(seed(t), rounds(t, 2),
		faulttest.Kill(true), faulttest.Pause(true), faulttest.Isolate(), faulttest.KillAll(), faulttest.Restart(false),
		faulttest.Bridge(), faulttest.Kill(false), faulttest.Mute()))
	leader, err := c.Leader(within(t, time.Minute), 0)
	must(t, err)
	for app := range len(apps) + 1 { // the campaign may have deleted what it wrote
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

// Operations on all nodes are linearizable, no acknowledged write is lost, sessions never go back, and every node
// serves again after every fault. The faults kill, stop, pause and restart processes, and break links in every way.
func TestCampaign_ProcessesAndNetwork(t *testing.T) {
	t.Parallel()
	campaign(t, 3, faulttest.Options{}, faulttest.Random(seed(t), rounds(t, 3),
		faulttest.Kill(true), faulttest.Kill(false), faulttest.KillAll(),
		faulttest.Pause(true), faulttest.Pause(false), faulttest.Restart(true), faulttest.Restart(false),
		faulttest.Isolate(), faulttest.Deafen(), faulttest.Mute(), faulttest.Bridge(), faulttest.IsolateAll(),
		faulttest.Bad(faulttest.Link{Delay: 20 * time.Millisecond, Jitter: 60 * time.Millisecond}),
		faulttest.Bad(faulttest.Link{Loss: 0.2}),
		faulttest.Together(faulttest.Bad(faulttest.Link{Loss: 0.1, Jitter: 20 * time.Millisecond}),
			faulttest.Kill(true)),
		faulttest.Together(faulttest.Bridge(), faulttest.Restart(false)),
		faulttest.Together(faulttest.Mute(), faulttest.Kill(false)),
	))
}
