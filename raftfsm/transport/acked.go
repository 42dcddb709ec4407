package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/signal"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// acked records how far the log of each follower is known to equal that of this leader.
type acked struct {
	moved *signal.Signal

	mu   sync.Mutex
	upTo map[raft.ServerID]ack
}

// ack is what a follower has acknowledged to the leader of a term.
type ack struct {
	raftlog.Position
	at time.Time
}

func newAcked() *acked { return &acked{moved: signal.New(), upTo: map[raft.ServerID]ack{}} }

func (a *acked) note(id raft.ServerID, term, index uint64) {
	a.mu.Lock()
	a.upTo[id] = ack{raftlog.Position{Term: term, Index: index}, time.Now()}
	a.mu.Unlock()
	a.moved.Fire()
}

// has reports whether a follower has acknowledged all entries up to the given index. It counts only acknowledgements
// that this server has received as leader of the given term, and not before the time since.
func (a *acked) has(id raft.ServerID, term, index uint64, since time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.upTo[id]
	return p.Term == term && p.Index >= index && !p.at.Before(since)
}
