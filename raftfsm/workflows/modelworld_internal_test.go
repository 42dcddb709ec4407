package workflows

import (
	"fmt"
	"log/slog"

	"github.com/quorate/quorate/raftfsm/grouptest"
)

// server is one server of the group with its Keeper.
type server struct {
	*grouptest.Member
	model  *model
	keeper *Keeper // guarded by Group.Mu
}

// open starts a server with a wall clock that is wrong by up to a minute.
func (s *server) open() {
	k := NewKeeper(Options{Logger: slog.New(slog.DiscardHandler), AfterFunc: s.AfterFunc, Rand: s.random,
		Gate: s.Gate})
	s.StartClocks(60_000, 5_000)
	s.Mu.Lock()
	s.keeper = k
	s.Mu.Unlock()
	k.Attach(s)
}

func (m *model) server(of *grouptest.Member) *server { return m.servers[of.ID-1] }

// restart ends a server and starts it again.
func (m *model) restart(s *server) {
	m.End(s.Member)
	s.keeper.Close()
	m.Group.Settle()
	s.open()
	m.Group.Settle()
}

// random returns the next number of a sequence that depends only on the seed.
func (s *server) random() uint64 {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.model.chance++
	return s.model.seed<<32 + s.model.chance*2654435761
}

// dump adds what the Keeper of a server has in memory to the trace.
func (m *model) dump(s *server) {
	k := s.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	for r, i := range k.instances {
		line := fmt.Sprintf("%s: driving %t, inbox %d, ready %t, folds %t, retry %v, status %d", r.ID, i.driving,
			len(i.inbox.list), i.ready, i.folds, i.retryAt, i.head.status)
		if i.out != nil {
			line += fmt.Sprintf(", turn %d at %v", i.out.number, i.out.stream.streamID)
		}
		m.Note("%s", line)
	}
	for id, t := range k.tasks {
		lease := streamID{}
		if t.lease != nil {
			lease = t.lease.streamID
		}
		m.Note("activity %d of %s: attempt %d, done %t, lease %v", id.task, id.ID, t.attempt, t.done, lease)
	}
	for _, a := range k.apps {
		m.Note("app %s: %d streams, %d ready, %d tasks, more %t %t; grace %t, scanning %t", a.name, len(a.streams),
			len(a.ready), len(a.tasks), a.moreReady, a.moreTasks, k.endGrace != nil, k.scanning)
	}
	for _, n := range m.nodes {
		m.Note("%s: session %s, joined %t, pulling %t, held %d, again %d (%v), sending %d", n, n.session, n.joined,
			n.pulling, len(n.held), len(n.again), n.refused, len(n.sending))
	}
}
