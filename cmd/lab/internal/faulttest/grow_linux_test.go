package faulttest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/faulttest"
)

// Under load, a single node grows to a cluster of three voters, and then of five. Then a lost node is removed and the
// leader leaves. The remaining three voters tolerate the loss of one. No guarantee is violated.
func TestCluster_GrowsAndShrinksUnderLoad(t *testing.T) {
	t.Parallel()
	chance := seed(t)
	c := cluster(t, faulttest.Options{Flags: []string{"--request-timeout", "5s"}})
	add := func() *faulttest.Node {
		n, err := c.Add(0)
		must(t, err)
		must(t, n.Start())
		return n
	}
	first := add()
	must(t, c.Ready(within(t, time.Minute)))
	strong := faulttest.StartStrong(c, chance, 4, 0)
	sessions := faulttest.StartSessions(c, chance, 4)
	ledger := faulttest.StartLedger(c, chance, 2, faulttest.Strong, 30*time.Second, 1000)
	for _, size := range []int{3, 5} {
		_, err := first.Command(within(t, time.Minute), "voters", strconv.Itoa(size))
		must(t, err)
		for len(c.Nodes()) < size {
			add()
		}
		begin := time.Now()
		must(t, c.Ready(within(t, time.Minute)))
		must(t, c.Voters(within(t, time.Minute), size))
		t.Logf("%d voters after %s", size, time.Since(begin).Round(10*time.Millisecond))
		progress(t, ledger, 100)
	}
	must(t, first.Kill()) // the oldest
	t.Logf("writes resumed after %s", resumes(t, c, first))
	must(t, c.Running()[0].Remove(within(t, time.Minute), first))
	must(t, c.Without(within(t, time.Minute), first, 4))
	progress(t, ledger, 100)
	leader, err := c.Leader(within(t, time.Minute), 0)
	must(t, err)
	must(t, leader.Leave(within(t, time.Minute)))
	must(t, c.Without(within(t, time.Minute), leader, 3))
	must(t, c.Voters(within(t, time.Minute), 3))
	t.Logf("writes resumed %s after the leader had left", resumes(t, c, leader))
	progress(t, ledger, 100)
	leader, err = c.Leader(within(t, time.Minute), 0)
	must(t, err)
	must(t, leader.Kill()) // two of three remain
	t.Logf("writes resumed after %s", resumes(t, c, leader))
	progress(t, ledger, 100)
	ledger.Stop()
	for _, b := range sessions.Stop() {
		t.Error(b)
	}
	must(t, strong.Stop(within(t, time.Minute)))
	t.Logf("strong operations: %s", strong.History)
	t.Logf("sessions: %s", sessions)
	t.Logf("ledger: %s", ledger)
	if err := strong.History.Check(checkTime, ""); err != nil {
		t.Error(err)
	}
	intact(t, ledger)
	must(t, c.Agree(within(t, time.Minute)))
}

// When a voter is away for longer than the settling time, an up-to-date non-voter takes its place.
// This is repeated until none of the first three votes.
func TestCluster_MovesVotesToReplacements(t *testing.T) {
	t.Parallel()
	c := formed(t, 3, faulttest.Options{})
	first := c.Nodes()
	ledger := faulttest.StartLedger(c, seed(t), 2, faulttest.Strong, 30*time.Second, 1000)
	for i, dead := range first[:min(len(first), rounds(t, 1))] {
		fresh, err := c.Add(0)
		must(t, err)
		must(t, fresh.Start())
		must(t, c.Ready(within(t, time.Minute)))
		must(t, dead.Kill())
		must(t, faulttest.Until(within(t, time.Minute), func() error {
			for _, n := range c.Running() {
				s, err := n.Status(t.Context())
				if err != nil || s.Groups[0].State != "leader" {
					continue
				}
				votes := map[string]bool{}
				for _, server := range s.Groups[0].Servers {
					votes[server.Node] = server.Voter
				}
				if len(s.Groups[0].Servers) != 3 || !votes[fresh.Name] || votes[dead.Name] {
					return fmt.Errorf("votes: %v", votes)
				}
				return nil
			}
			return errors.New("there is no leader")
		}))
		t.Logf("%d of 3 replaced", i+1)
	}
	progress(t, ledger, 100)
	ledger.Stop()
	t.Log(ledger)
	for _, f := range ledger.Failed() {
		t.Errorf("not done in 30 s: %s", f)
	}
	intact(t, ledger)
	must(t, c.Agree(within(t, time.Minute)))
}

// Five nodes, with the leader in a minority of two, at one end of a bridge, or with the loss of two
// nodes.
func TestCampaign_FiveNodesWithPartitions(t *testing.T) {
	t.Parallel()
	campaign(t, 5, faulttest.Options{Flags: []string{"--voters", "5"}}, faulttest.Random(seed(t), rounds(t, 2),
		faulttest.Halves(), faulttest.Bridge(), faulttest.Isolate(), faulttest.IsolateAll(), faulttest.KillAll(),
		faulttest.Together(faulttest.Kill(true), faulttest.Kill(false)),
		faulttest.Together(faulttest.Halves(), faulttest.Pause(false))))
}

// replay returns how long a server may take to replay thousands of entries on a busy machine. QUORATE_FAULT_REPLAY can
// set a shorter duration, because the server of a mutant may never serve.
func replay(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("QUORATE_FAULT_REPLAY")
	if text == "" {
		return 5 * time.Minute
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// Followers that need log entries which the leader has truncated catch up with a snapshot while writes continue. They
// also do if they are killed during the installation.
func TestCluster_InstallsSnapshotsUnderLoad(t *testing.T) {
	t.Parallel()
	tune := quick()
	tune.Bounds.SnapshotLogBytes, tune.Bounds.SnapshotEntries = 256<<10, 200
	tune.Bounds.TrailingBytes, tune.Bounds.TrailingEntries = 128<<10, 50
	tune.Timing.SnapshotPoll = 20 * time.Millisecond
	chance := seed(t)
	rnd := rand.New(rand.NewPCG(chance, 3)) //nolint:gosec // chance, not a secret
	c := formed(t, 3, faulttest.Options{Program: as(t, tune), Flags: []string{"--request-timeout", "5s"}})
	strong := faulttest.StartStrong(c, chance, 4, 500)
	sessions := faulttest.StartSessions(c, chance, 4)
	ledger := faulttest.StartLedger(c, chance, 4, faulttest.Strong, 30*time.Second, 4000)
	installed, wanted := 0.0, rounds(t, 2)
	for round := 0; round < wanted || (installed == 0 && round < 10*wanted); round++ {
		followers, err := c.Followers(within(t, time.Minute), 0)
		must(t, err)
		behind := followers[rnd.IntN(len(followers))]
		must(t, behind.Kill())
		progress(t, ledger, 300)
		for _, n := range c.Nodes() { // a slow network, so that it takes a while
			c.Net.Set(n.Addr, behind.Addr, faulttest.Link{Delay: time.Duration(rnd.IntN(3)) * 20 * time.Millisecond})
		}
		must(t, behind.Start())
		pause := time.NewTimer(time.Duration(rnd.IntN(2000)) * time.Millisecond)
		<-pause.C
		installed += received(t, behind)
		must(t, behind.Kill()) // probably during the installation
		c.Net.Heal()           // over the slow network, the follower may catch up more slowly than the leader writes
		must(t, behind.Start())
		must(t, c.Ready(within(t, replay(t))))
		installed += received(t, behind)
	}
	ledger.Stop()
	for _, b := range sessions.Stop() {
		t.Error(b)
	}
	must(t, strong.Stop(within(t, time.Minute)))
	t.Logf("%.0f snapshots installed; strong operations: %s; ledger: %s; sessions: %s", installed, strong.History,
		ledger, sessions)
	if installed == 0 {
		t.Error("no snapshot was installed")
	}
	if err := strong.History.Check(checkTime, ""); err != nil {
		t.Error(err)
	}
	intact(t, ledger)
	must(t, c.Agree(within(t, time.Minute)))
}

// received returns how many snapshots the process of a node has installed.
func received(t *testing.T, n *faulttest.Node) float64 {
	t.Helper()
	count, err := n.Metric(within(t, 2*time.Second), "quorate_raft_snapshots_installed_total")
	if err != nil {
		return 0 // the process has just started
	}
	return count
}

// An acknowledged eventual write is not lost as long as its leader stays leader, whatever happens
// to the other nodes.
func TestEventualWrites_SurviveFollowerFailures(t *testing.T) {
	t.Parallel()
	chance := seed(t)
	rnd := rand.New(rand.NewPCG(chance, 3)) //nolint:gosec // chance, not a secret
	c := formed(t, 3, faulttest.Options{})
	ledger := faulttest.StartLedger(c, chance, 4, faulttest.Eventual, 30*time.Second, 100)
	begun := term(t, c)
	for range rounds(t, 1) {
		for _, fault := range []faulttest.Fault{faulttest.Kill(false), faulttest.Pause(false)} {
			heal, err := fault.Inflict(t.Context(), c, rnd)
			must(t, err)
			progress(t, ledger, 30)
			must(t, heal(t.Context()))
			must(t, c.Ready(within(t, time.Minute)))
		}
	}
	ledger.Stop()
	t.Log(ledger)
	if ended := term(t, c); ended != begun {
		t.Skipf("the leader changed, from term %d to %d: eventual writes may be lost then", begun, ended)
	}
	intact(t, ledger)
}

func term(t *testing.T, c *faulttest.Cluster) uint64 {
	t.Helper()
	leader, err := c.Leader(within(t, time.Minute), 0)
	must(t, err)
	s, err := leader.Status(t.Context())
	must(t, err)
	return s.Groups[0].Term
}
