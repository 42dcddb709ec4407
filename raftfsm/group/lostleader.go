package group

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Contacts queries other servers about the leader of the group. Its methods are safe for concurrent use.
type Contacts interface {
	// LeaderLost asks server whether it has lost the given leader, and returns the answer (see Group.LeaderLost). If
	// server is the leader itself, LeaderLost also returns true when the host of the leader refuses connections. This
	// proves that the process has ended. LeaderLost returns false if there is no answer before ctx ends.
	LeaderLost(ctx context.Context, server, leader raft.ServerID) bool
}

// looksPerSilence is the number of times per Timing.Silent that a follower checks for a silent leader.
const looksPerSilence = 3

// watchLeader starts an election soon after the process of the leader has ended. It runs until the group closes.
// Without watchLeader, raft would start the election only after one to two times Timing.Heartbeat.
//
// An unnecessary election is safe, but it interrupts writes. So this server starts an election only if all of these
// conditions are met:
//
//   - This server has heard nothing from the leader for Timing.Silent. A leader sends a heartbeat every tenth to fifth
//     of Timing.Heartbeat, so at least one heartbeat is missing.
//   - Connections to the leader's port are refused, or the leader answers that it does not lead. Neither happens with a
//     leader that is only slow or unreachable.
//   - A majority of voters, including this server, have heard nothing from the leader for Timing.Silent. Otherwise a
//     server that has lost only its own connection would depose the leader.
//
// The election skips the pre-vote (see transport.Guard.Campaign), because servers that still know a leader refuse a
// pre-vote. The queries to the other voters replace the pre-vote.
func (g *Group) watchLeader() {
	look := g.opts.Timing.Silent / looksPerSilence
	for {
		// The leader cannot have been silent for Timing.Silent before this wait has passed.
		wait := g.opts.Timing.Silent
		if g.raft.State() == raft.Follower {
			wait = max(look, wait-time.Since(g.raft.LastContact()))
		}
		select {
		case <-time.After(wait):
		case <-g.stop:
			return
		}
		term := g.raft.CurrentTerm()
		lost, rank := g.silentLeader()
		if lost == "" || !g.leaderEnded(lost, look) {
			continue
		}
		// Voters start elections one after the other, so that they do not split the votes. If another voter has
		// started an election in the meantime, the term has changed. This server then starts none, because it would
		// depose that candidate.
		select {
		case <-time.After(time.Duration(rank) * look):
		case <-g.stop:
			return
		}
		if id := g.Leader(); g.raft.State() != raft.Follower || g.raft.CurrentTerm() != term || id != "" && id != lost {
			continue
		}
		g.opts.Logger.Info("the leader has ended, this server starts an election", "group", g.opts.ID, "leader", lost,
			"silent", time.Since(g.raft.LastContact()).Round(time.Millisecond))
		g.guard.Campaign()
	}
}

// silentLeader returns the leader if nothing has arrived from it for Timing.Silent and this server may start an
// election. Otherwise it returns "". rank is the number of other voters with a lower id, not counting the leader. The
// higher the rank of a server, the longer it waits before its election.
func (g *Group) silentLeader() (leader raft.ServerID, rank int) {
	leader = g.Leader()
	if leader == "" || g.raft.State() != raft.Follower || !g.silent() || (follower{g}).Abstains() {
		return "", 0
	}
	others, voter := g.reader.voters()
	if !voter {
		return "", 0
	}
	for _, s := range others {
		if s.ID != leader && s.ID < g.opts.ServerID {
			rank++
		}
	}
	return leader, rank
}

// silent reports whether this follower has heard nothing from a leader for Timing.Silent.
func (g *Group) silent() bool { return time.Since(g.raft.LastContact()) > g.opts.Timing.Silent }

// leaderEnded reports whether the given leader no longer leads, and a majority of voters have lost contact with it. It
// queries the leader and the other voters, and counts this server as one that has lost contact. It returns false if too
// few answers arrive within limit.
func (g *Group) leaderEnded(leader raft.ServerID, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(g.closing, limit)
	defer cancel()
	if !g.opts.Contacts.LeaderLost(ctx, leader, leader) {
		return false
	}
	others, _ := g.reader.voters()
	var lost atomic.Int64
	var wg sync.WaitGroup
	for _, s := range others {
		if s.ID == leader {
			continue
		}
		wg.Go(func() {
			if g.opts.Contacts.LeaderLost(ctx, s.ID, leader) {
				lost.Add(1)
			}
		})
	}
	wg.Wait()
	voters := len(others) + 1
	return int(lost.Load())+1 > voters/2 // 1 is this server
}

// LeaderLost reports whether the given server has stopped leading, as far as this server knows. If the given server is
// this server, LeaderLost returns true unless this server leads. For any other server, LeaderLost returns true in two
// cases:
//
//   - This server knows no leader.
//   - The given server is the leader that this server knows, but nothing has arrived from it for Timing.Silent.
func (g *Group) LeaderLost(leader raft.ServerID) bool {
	switch id := g.Leader(); {
	case leader == g.opts.ServerID:
		return g.raft.State() != raft.Leader
	case id == leader:
		return g.silent()
	default:
		return id == ""
	}
}
