package group

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// abstaining starts a cluster in which a server leaves elections to others if the returned function returns true for
// its id. The test sets this function later. If timing is zero, the cluster uses the timing of newCluster.
func abstaining(t *testing.T, timing Timing) (*cluster, *atomic.Pointer[func(raft.ServerID) bool]) {
	t.Helper()
	var abstains atomic.Pointer[func(raft.ServerID) bool]
	return newCluster(t, func(id raft.ServerID, o *Options) {
		if timing != (Timing{}) {
			o.Timing = timing
		}
		o.Server = abstainer{id: id, abstains: &abstains}
	}), &abstains
}

// abstainer leaves elections to others while abstains returns true for its id.
type abstainer struct {
	NoServer
	id       raft.ServerID
	abstains *atomic.Pointer[func(raft.ServerID) bool]
}

func (a abstainer) Abstain() bool {
	f := a.abstains.Load()
	return f != nil && (*f)(a.id)
}

func TestElection_AbstainingServerIsNotElectedWhereAnotherIs(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	// The server abstains for 12 s (see abstainElections). Even a busy machine elects the other server in that time.
	c, abstains := abstaining(t, Timing{Heartbeat: 2 * time.Second, Election: 2 * time.Second,
		Commit: 5 * time.Millisecond})
	c.converge() // both followers have every entry, so both could be elected
	leader, _ := c.leader(testIDs...)
	var rest []raft.ServerID
	for _, id := range testIDs {
		if id != leader {
			rest = append(rest, id)
		}
	}
	f := func(id raft.ServerID) bool { return id == rest[0] }
	abstains.Store(&f)
	c.stop(leader)
	if next, _ := c.leader(rest...); next != rest[1] {
		t.Errorf("%s leads, which abstains", next)
	}
}

func TestElection_AbstainingServersStandIfNoOtherIsElected(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	c, abstains := abstaining(t, Timing{})
	leader, _ := c.leader(testIDs...)
	f := func(raft.ServerID) bool { return true }
	abstains.Store(&f)
	c.stop(leader)
	var rest []raft.ServerID
	for _, id := range testIDs {
		if id != leader {
			rest = append(rest, id)
		}
	}
	c.leader(rest...) // fails the test if there is none
}
