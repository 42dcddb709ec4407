package placement_test

import (
	"strings"
	"time"

	"github.com/quorate/quorate/raftfsm/placement"
)

// start is the time of every fixture.
func start() time.Time { return time.Date(2030, 1, 2, 3, 0, 0, 0, time.UTC) }

func limits() placement.Limits {
	return placement.Limits{MaxLag: 100, Stable: 10 * time.Second, Settle: time.Minute, Forget: time.Hour}
}

// event changes a fixture.
type event func(*placement.Input)

// group returns a fixture: a group led by its first voter that wants three voters. The first argument
// lists the voters, the second the non-voters that keep up. Every server of node n is n.a, and every
// node is alive.
func group(voters, nonVoters string, events ...event) placement.Input {
	in := placement.Input{Voters: 3, Now: start(), Watching: start().Add(-time.Hour), Limits: limits()}
	for _, n := range strings.Fields(voters) {
		configure(&in, placement.Server{ID: n + ".a", Voter: true, LagKnown: true})
	}
	for _, n := range strings.Fields(nonVoters) {
		configure(&in, placement.Server{ID: n + ".a", LagKnown: true, Lag: 3,
			SteadySince: start().Add(-20 * time.Second)})
	}
	if len(in.Servers) > 0 {
		in.Leader = in.Servers[0].ID
	}
	for _, e := range events {
		e(&in)
	}
	return in
}

func configure(in *placement.Input, s placement.Server) {
	in.Servers = append(in.Servers, s)
	in.Members = append(in.Members, placement.Member{Node: placement.NodeOf(s.ID), Server: s.ID,
		State: placement.Alive, Since: start().Add(-time.Hour)})
}

func want(n int) event { return func(in *placement.Input) { in.Voters = n } }

func leader(node string) event { return func(in *placement.Input) { in.Leader = node + ".a" } }

func noLeader() event { return func(in *placement.Input) { in.Leader = "" } }

// member changes what gossip says about a node.
func member(node string, f func(*placement.Member)) event {
	return func(in *placement.Input) {
		for i := range in.Members {
			if in.Members[i].Node == node {
				f(&in.Members[i])
			}
		}
	}
}

// server changes one entry of the configuration.
func server(node string, f func(*placement.Server)) event {
	return func(in *placement.Input) {
		for i := range in.Servers {
			if in.Servers[i].ID == node+".a" {
				f(&in.Servers[i])
			}
		}
	}
}

func failed(node string, ago time.Duration) event {
	return member(node, func(m *placement.Member) { m.State, m.Since = placement.Failed, start().Add(-ago) })
}

func stopped(node string, ago time.Duration) event {
	return member(node, func(m *placement.Member) { m.State, m.Since = placement.Left, start().Add(-ago) })
}

// wiped returns the event that a node has come back with another data directory.
func wiped(node string) event {
	return member(node, func(m *placement.Member) { m.Server, m.Since = node+".b", start().Add(-5*time.Second) })
}

// demotedToSidecar returns the event that a node has come back without data.
func demotedToSidecar(node string, ago time.Duration) event {
	return member(node, func(m *placement.Member) { m.Server, m.Since = "", start().Add(-ago) })
}

func low(node string) event {
	return member(node, func(m *placement.Member) { m.LowDisk = true })
}

func slow(node string) event {
	return member(node, func(m *placement.Member) { m.SlowDisk = true })
}

// unseen returns the event that gossip does not know a node.
func unseen(node string) event {
	return func(in *placement.Input) {
		var rest []placement.Member
		for _, m := range in.Members {
			if m.Node != node {
				rest = append(rest, m)
			}
		}
		in.Members = rest
	}
}

// arrives returns the event that a node is alive and not in the configuration. With an empty id, the node is a
// sidecar.
func arrives(node, id string) event {
	return func(in *placement.Input) {
		m := placement.Member{Node: node, State: placement.Alive, Since: start()}
		if id != "" {
			m.Server = node + "." + id
		}
		in.Members = append(in.Members, m)
	}
}

func removed(server string) event {
	return func(in *placement.Input) { in.Removed = append(in.Removed, server) }
}

func lag(node string, entries uint64) event {
	return server(node, func(s *placement.Server) { s.Lag, s.SteadySince = entries, time.Time{} })
}

func lagUnknown(node string) event {
	return server(node, func(s *placement.Server) { s.LagKnown, s.Lag, s.SteadySince = false, 0, time.Time{} })
}

func steadyFor(node string, d time.Duration) event {
	return server(node, func(s *placement.Server) { s.SteadySince = start().Add(-d) })
}

// replacement adds the server of a node's new data directory to the configuration.
func replacement(node string, ready bool) event {
	return func(in *placement.Input) {
		s := placement.Server{ID: node + ".b", LagKnown: true}
		if ready {
			s.SteadySince = start().Add(-20 * time.Second)
		}
		in.Servers = append(in.Servers, s)
	}
}

func watchingFor(d time.Duration) event {
	return func(in *placement.Input) { in.Watching = start().Add(-d) }
}

func voting(id string) event {
	return func(in *placement.Input) {
		for i := range in.Servers {
			if in.Servers[i].ID == id {
				in.Servers[i].Voter = true
			}
		}
	}
}
