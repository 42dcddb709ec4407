package topics

import (
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
	k := NewKeeper(Options{Logger: slog.New(slog.DiscardHandler), AfterFunc: s.AfterFunc, open: s.model.most})
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
