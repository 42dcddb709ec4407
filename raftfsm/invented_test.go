package raftfsm_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// invented returns a token of the cluster of h with a position that no answer can have contained.
func invented(h *raftfsm.Host, gid uint32, committed bool) string {
	id := h.Identity()
	return session.Session{{Group: gid, Committed: committed, Pos: raftlog.Position{Term: 1, Index: 1 << 61}}}.
		Token(id.Tag())
}

// newerThanLog returns a token whose position is above the log of h. Such a position may exist at another server.
func newerThanLog(h *raftfsm.Host, term uint64, committed bool) string {
	id, index := h.Identity(), h.Groups()[0].LastIndex()+100
	return session.Session{{Committed: committed, Pos: raftlog.Position{Term: term, Index: index}}}.Token(id.Tag())
}

func TestInventedSession_IsNotAdopted(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	lead := c.leader()
	follower := c.others(lead)[0]
	eventually(t, func() error { return follower.Ready(0) })
	side, _ := c.sidecar("side")
	wrote := set(t, lead.Store("", "s"), "app||k", "1", state.Strong)
	id := lead.Identity()
	tokens := map[string]string{
		"far above the log": invented(follower, 0, true), "uncommitted": invented(follower, 0, false),
		"a missing group": invented(follower, 200, true), "just above the log": newerThanLog(lead, 1, true),
		"a later term": newerThanLog(lead, math.MaxUint64, false), "no token": "x",
	}
	for node, h := range map[string]*raftfsm.Host{"leader": lead, "follower": follower, "sidecar": side} {
		for name, token := range tokens {
			got, err := h.VerifySession(t.Context(), wrote.Session, token)
			must(t, err)
			s, _, err := session.Parse(got, session.Cluster{Tag: id.Tag(), Groups: 1})
			must(t, err)
			// An uncommitted position is replaced by a committed one that exists.
			if at := s.Of(0); len(at) != 1 || !at[0].Committed || at[0].Pos.Index > lead.Groups()[0].LastIndex() ||
				name != "uncommitted" && name != "a later term" && got != wrote.Session {
				t.Errorf("%s, %s: verified as %+v", node, name, s)
			}
			var ok bool
			got, ok = h.AnswerSession(wrote.Session, token, token)
			if name != "no token" && name != "a missing group" && (!ok || got != wrote.Session) {
				t.Errorf("%s, %s: an answer leads to %q, %v", node, name, got, ok)
			}
		}
		if got, err := h.VerifySession(t.Context(), "", wrote.Session); err != nil || got == "" {
			t.Errorf("%s: a genuine token is verified as %q, %v", node, got, err)
		}
	}
}

// A follower that lacks what the session has seen asks the leader, and keeps the position.
func TestVerifySession_KeepsPositionsThatOnlyLeaderHas(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	lead := c.leader()
	side, _ := c.sidecar("side")
	for i := range 20 {
		for _, level := range []state.Consistency{state.Strong, state.Eventual} {
			w := set(t, lead.Store("", "s"), "app||k", fmt.Sprint(i), level)
			for name, h := range map[string]*raftfsm.Host{"follower": c.others(lead)[0], "sidecar": side} {
				token, err := h.VerifySession(t.Context(), "", w.Session)
				must(t, err)
				item, err := h.Store("", "s").Get(t.Context(), state.GetRequest{Key: "app||k",
					ReadOptions: state.ReadOptions{Session: token}})
				must(t, err)
				if item.Level != state.Stale && string(item.Value) != fmt.Sprint(i) {
					t.Fatalf("%s: read %q with the verified session of the write of %d", name, item.Value, i)
				}
			}
		}
	}
}

// Another leader may have replaced an uncommitted entry by one of an earlier term, because a leader acknowledges
// eventual writes before it has committed an entry of its own term.
func TestSession_EntryOfEarlierTermReplacesWrite(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	lead := c.leader()
	follower := c.others(lead)[0]
	eventually(t, func() error { return follower.Ready(0) })
	set(t, lead.Store("", "s"), "app||k", "1", state.Strong)
	g, id := lead.Groups()[0], lead.Identity()
	token := session.Session{{Pos: raftlog.Position{Term: g.Term() + 1, Index: g.Machine().Applied()}}}.
		Token(id.Tag())
	for name, h := range map[string]*raftfsm.Host{"leader": lead, "follower": follower} {
		got, err := h.Store("", "s").Get(within(t, time.Minute), state.GetRequest{Key: "app||k",
			ReadOptions: state.ReadOptions{Session: token}})
		must(t, err)
		if got.Level != state.Stale || got.Session == token {
			t.Errorf("%s: the answer is at level %v, and its token is %q", name, got.Level, got.Session)
		}
	}
}

// A client must not invent a committed position at which the node has an uncommitted write, because it would replace
// the position of that write in the session of the application.
func TestInventedSession_GetsTermOfNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	lead := c.leader()
	follower := c.others(lead)[0] // has seen no answer, so it looks at its log
	set(t, lead.Store("", "s"), "app||k", "1", state.Strong)
	g, id := lead.Groups()[0], lead.Identity()
	index := g.Machine().Applied()
	must(t, follower.Groups()[0].WaitApplied(within(t, time.Minute), index))
	term := g.Term() + 1000
	token := session.Session{{Committed: true, Pos: raftlog.Position{Term: term, Index: index}}}.Token(id.Tag())
	for name, h := range map[string]*raftfsm.Host{"leader": lead, "follower": follower} {
		got, err := h.VerifySession(t.Context(), "", token)
		must(t, err)
		s, _, err := session.Parse(got, session.Cluster{Tag: id.Tag(), Groups: 1})
		must(t, err)
		if at := s.Of(0); len(at) != 1 || at[0].Pos.Term == term {
			t.Errorf("%s: the position is verified as %+v", name, at)
		}
	}
}

func TestInventedSession_IsDroppedByReads(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	lead := c.leader()
	follower := c.others(lead)[0]
	eventually(t, func() error { return follower.Ready(0) })
	set(t, lead.Store("", "s"), "app||k", "1", state.Strong)
	id := lead.Identity()
	for name, h := range map[string]*raftfsm.Host{"leader": lead, "follower": follower} {
		for _, level := range []state.Consistency{state.Strong, state.Eventual} {
			got, err := h.Store("", "s").Get(within(t, time.Minute), state.GetRequest{Key: "app||k",
				ReadOptions: state.ReadOptions{Session: invented(h, 0, true), Consistency: level}})
			must(t, err)
			s, _, err := session.Parse(got.Session, session.Cluster{Tag: id.Tag(), Groups: 1})
			must(t, err)
			if at := s.Of(0); len(at) != 1 || at[0].Pos.Index > 1<<20 {
				t.Errorf("%s, %v: the session of the answer still has %+v", name, level, at)
			}
		}
	}
}
