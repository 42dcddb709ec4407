package faulttest_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/faulttest"
)

const diskSize = 1 << 30

// Disks that hang for a while, are slow, or lose all that was not forced to them, of one
// node or of all at once, break no promise.
func TestEveryPromiseHoldsWhileDisksFail(t *testing.T) {
	t.Parallel()
	c := formed(t, 3, faulttest.Options{DiskSize: diskSize, Flags: []string{"--request-timeout", "2s"}})
	campaign(t, c, faulttest.Random(seed(t), rounds(t, 2),
		faulttest.Stall(true), faulttest.Stall(false), faulttest.Slow(true, 400*time.Millisecond), faulttest.Slow(false, time.Second),
		faulttest.Power(true), faulttest.Power(false), faulttest.PowerAll(),
	))
}

// A leader whose disk hangs makes room for another: the cluster goes on without it. When
// the disk does not come back the process ends itself, and on a good disk it is a member
// like before.
func TestAClusterGoesOnWithoutALeaderWhoseDiskHangs(t *testing.T) {
	t.Parallel()
	tune := quick()
	tune.Timing.StallFatal = 12 * time.Second // 20 s else
	c := formed(t, 3, faulttest.Options{DiskSize: diskSize, Program: as(t, tune)})
	l := faulttest.StartLedger(c, seed(t), 4, faulttest.Strong, 20*time.Second, 100)
	progress(t, l, 100)
	leader, err := c.Leader(within(t, time.Minute), 0)
	must(t, err)
	begin := time.Now()
	must(t, leader.Disk.Stall())
	carriesOn(t, c, leader)
	if _, err := leader.Status(t.Context()); err != nil {
		t.Errorf("the leader kept its place until its process ended: %v", err)
	}
	if rounds(t, 0) == 0 {
		must(t, leader.Disk.Resume()) // in time: it becomes a follower
	} else {
		endsItself(t, leader)
		t.Logf("the process with the hanging disk had ended itself after %s", time.Since(begin).Round(10*time.Millisecond))
		progress(t, l, 100)
		must(t, leader.Disk.Resume())
		<-leader.Ended()
		must(t, leader.Start())
	}
	must(t, c.Ready(within(t, time.Minute)))
	l.Stop()
	t.Log(l)
	intact(t, l)
	must(t, c.Agree(within(t, time.Minute)))
}

// carriesOn makes a write and a strong read at every node but the leader, which has just
// begun to hang. They go to it, and from there to the next leader: each is done at the
// first attempt, within the time-out that a request has by default.
func carriesOn(t *testing.T, c *faulttest.Cluster, hangs *faulttest.Node) {
	t.Helper()
	begin, ctx := time.Now(), within(t, time.Minute)
	var asked sync.WaitGroup
	for _, n := range c.Running() {
		if n == hangs {
			continue
		}
		for name, r := range map[string]faulttest.Request{
			"a write":       faulttest.Set("carried-"+n.Name, "1", faulttest.Strong),
			"a strong read": faulttest.Get("carried-"+n.Name, faulttest.Strong),
		} {
			asked.Go(func() {
				if err := n.Do(ctx, r).Err(); err != nil {
					t.Errorf("%s at %s, begun when the leader had just begun to hang: %v", name, n.Name, err)
				}
				t.Logf("%s at %s was done after %s", name, n.Name, time.Since(begin).Round(10*time.Millisecond))
			})
		}
	}
	asked.Wait()
}

// endsItself waits until the process answers no more. Its last thread is gone only when the
// disk lets go of it.
func endsItself(t *testing.T, n *faulttest.Node) {
	t.Helper()
	must(t, faulttest.Until(within(t, time.Minute), func() error {
		if _, err := n.Status(t.Context()); err == nil {
			return errors.New(n.Name + " still answers")
		}
		return nil
	}))
}

// A process whose disk fails ends itself rather than go on: what is on that disk is not
// known. The cluster goes on.
func TestANodeWhoseDiskFailsEndsItself(t *testing.T) {
	t.Parallel()
	c := formed(t, 3, faulttest.Options{DiskSize: diskSize})
	l := faulttest.StartLedger(c, seed(t), 4, faulttest.Strong, 20*time.Second, 100)
	for range rounds(t, 1) {
		progress(t, l, 50)
		leader, err := c.Leader(within(t, time.Minute), 0)
		must(t, err)
		must(t, leader.Disk.Break())
		select {
		case <-leader.Ended():
		case <-time.After(30 * time.Second):
			t.Fatalf("%s goes on without a disk", leader.Name)
		}
		progress(t, l, 50)
		must(t, leader.PowerOn(t.Context()))
		must(t, c.Ready(within(t, time.Minute)))
	}
	l.Stop()
	t.Log(l)
	intact(t, l)
	must(t, c.Agree(within(t, time.Minute)))
}

// A single node keeps everything it acknowledged, strong or eventual, when the power goes.
func TestASingleNodeLosesNothingWithItsPower(t *testing.T) {
	t.Parallel()
	for _, log := range []string{"boltdb", "wal"} {
		t.Run(log, func(t *testing.T) {
			chance := seed(t)
			c := cluster(t, faulttest.Options{DiskSize: diskSize, Flags: []string{"--log-store", log}})
			n, err := c.Add(0)
			must(t, err)
			must(t, n.Start())
			must(t, c.Ready(within(t, time.Minute)))
			for range rounds(t, 3) {
				strong := faulttest.StartLedger(c, chance, 3, faulttest.Strong, time.Minute, 100)
				eventual := faulttest.StartLedger(c, chance, 3, faulttest.Eventual, time.Minute, 100)
				progress(t, strong, 200)
				progress(t, eventual, 200)
				must(t, n.PowerOff())
				must(t, n.PowerOn(t.Context()))
				must(t, c.Ready(within(t, time.Minute)))
				strong.Stop()
				eventual.Stop()
				intact(t, strong)
				intact(t, eventual)
			}
		})
	}
}
