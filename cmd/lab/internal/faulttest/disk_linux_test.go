package faulttest_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

const diskSize = 1 << 30

// All guarantees hold while disks hang, are slow, or lose unflushed data, on one node or on all.
func TestCampaign_Disks(t *testing.T) {
	t.Parallel()
	campaign(t, 3, faulttest.Options{DiskSize: diskSize}, faulttest.Random(seed(t), rounds(t, 2),
		faulttest.Stall(true), faulttest.Stall(false), faulttest.Slow(true, 400*time.Millisecond),
		faulttest.Slow(false, time.Second),
		faulttest.Power(true), faulttest.Power(false), faulttest.PowerAll(),
	))
}

// A leader whose disk hangs loses its leadership, and the cluster continues without it. If the disk
// does not recover, the process ends itself. With a working disk it is a member again.
func TestCluster_ReplacesALeaderWhoseDiskHangs(t *testing.T) {
	t.Parallel()
	tune := quick()
	tune.Timing.StallFatal = 12 * time.Second // the default is 20 s
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
		must(t, leader.Disk.Resume()) // before the process ends: it becomes a follower
	} else {
		endsItself(t, leader)
		t.Logf("the process with the hanging disk had ended itself after %s",
			time.Since(begin).Round(10*time.Millisecond))
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

// carriesOn makes a write and a strong read on every node except hangs, the leader whose disk has just started to
// hang. The nodes forward the requests to that leader first, and then to the next one. Each request must succeed at
// the first attempt, within the default request timeout.
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

// endsItself waits until the node no longer answers. It does not wait for the end of the process, because its last
// thread ends only when the disk recovers.
func endsItself(t *testing.T, n *faulttest.Node) {
	t.Helper()
	must(t, faulttest.Until(within(t, time.Minute), func() error {
		if _, err := n.Status(t.Context()); err == nil {
			return errors.New(n.Name + " still answers")
		}
		return nil
	}))
}

// A process whose disk fails must end itself, because the state of that disk is unknown. The
// cluster continues.
func TestNode_EndsWhenItsDiskFails(t *testing.T) {
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

// A single node keeps every acknowledged write, strong or eventual, when power is lost.
func TestSingleNode_SurvivesPowerLoss(t *testing.T) {
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
