package group

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/testutil"
)

// contacts answers questions about leaders for one server of a cluster. The hosts of servers that are stopped refuse
// connections; a server behind a cut link does not answer.
type contacts struct {
	c    *cluster
	self raft.ServerID
	lies bool // it reports that every leader has ended
}

func (x contacts) LeaderLost(_ context.Context, server, leader raft.ServerID) bool {
	if x.lies && server == leader {
		return true
	}
	if x.c.target(link{x.self, server}) == nil {
		return server == leader && x.c.group(server) == nil
	}
	g := x.c.group(server)
	return g != nil && g.LeaderLost(leader)
}

// slowElections makes raft's own timeouts longer than any test, so that only watchLeader can start an election.
func slowElections(c *cluster, lies bool) func(raft.ServerID, *Options) {
	return func(id raft.ServerID, o *Options) {
		o.Timing.Heartbeat, o.Timing.Election, o.Timing.Lease = time.Hour, time.Hour, time.Hour
		o.Timing.Silent = 200 * time.Millisecond
		o.Contacts = contacts{c, id, lies}
	}
}

func TestElection_StartsEarlyWhenTheLeaderHasEnded(t *testing.T) {
	var logs testutil.Output
	const started = "the leader has ended, this server starts an election"
	c := newClusterWith(t, func(c *cluster) func(raft.ServerID, *Options) {
		slow := slowElections(c, false)
		return func(id raft.ServerID, o *Options) {
			slow(id, o)
			// On a busy machine the two followers may divide the votes. Then raft starts the next election.
			o.Timing.Heartbeat, o.Timing.Election = 20*time.Second, 20*time.Second
			o.Timing.Lease = o.Timing.Heartbeat
			o.Logger = slog.New(slog.NewTextHandler(&logs, nil))
		}
	})
	for range 3 {
		c.put("k", "before")
		old, _ := c.leader(testIDs...)
		before := strings.Count(logs.String(), started)
		c.stop(old)
		c.put("k", "after", others(old)...) // waits for a new leader
		if strings.Count(logs.String(), started) == before {
			t.Errorf("no follower of %s has started an election before its timeout", old)
		}
		c.start(old)
		c.converge()
	}
}

// A follower that alone has lost the leader must not depose it, even if the leader's host refuses connections.
func TestElection_NotWhileAnotherVoterHearsTheLeader(t *testing.T) {
	c := newClusterWith(t, func(c *cluster) func(raft.ServerID, *Options) { return slowElections(c, true) })
	leader, g := c.leader(testIDs...)
	term := g.Term()
	lonely := others(leader)[0]
	c.set(link{leader, lonely}, true)
	c.set(link{lonely, leader}, true)
	f := c.group(lonely)
	eventually(t, func() error {
		if !f.LeaderLost(leader) {
			return errors.New("the follower still hears the leader")
		}
		return nil
	})
	if lost, _ := f.silentLeader(); lost != leader {
		t.Fatalf("the lost leader is %q, want %q", lost, leader)
	}
	if f.leaderEnded(leader, time.Minute) {
		t.Error("the leader counts as ended although another voter hears it")
	}
	c.put("k", "v", leader)
	if id, g := c.leader(testIDs...); id != leader || g.Term() != term {
		t.Errorf("%s leads in term %d, want %s in term %d", id, g.Term(), leader, term)
	}
}

// A leader that is unreachable, and not known to have ended, may come back: raft's own timeouts decide.
func TestElection_NotEarlyWhenTheLeaderIsUnreachable(t *testing.T) {
	c := newClusterWith(t, func(c *cluster) func(raft.ServerID, *Options) { return slowElections(c, false) })
	leader, _ := c.leader(testIDs...)
	c.isolate(leader)
	for _, id := range others(leader) {
		f := c.group(id)
		eventually(t, func() error {
			if !f.LeaderLost(leader) {
				return errors.New("the follower still hears the leader")
			}
			return nil
		})
		if f.leaderEnded(leader, time.Minute) {
			t.Errorf("at %s the unreachable leader counts as ended", id)
		}
	}
}

func TestLeaderLost_WhoeverIsAsked(t *testing.T) {
	c := newCluster(t, nil)
	leader, g := c.leader(testIDs...)
	follower := c.group(others(leader)[0])
	eventually(t, func() error { // on a busy machine the follower may have missed messages
		if follower.LeaderLost(leader) || g.LeaderLost(leader) {
			return errors.New("the leader counts as lost")
		}
		return nil
	})
	if !follower.LeaderLost(follower.opts.ServerID) {
		t.Error("a follower counts as a leader that is not lost")
	}
	if g.LeaderLost(others(leader)[0]) {
		t.Error("the leader reports another leader as lost while it leads")
	}
}
