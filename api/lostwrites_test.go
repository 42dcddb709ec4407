package api_test

import (
	"context"
	"slices"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

// positions is a merger of session tokens of a cluster with one group.
type positions struct{ cache session.Cache }

var cluster = session.Cluster{Tag: 7, Groups: 1} //nolint:gochecknoglobals // constant

func (p *positions) MergeSessions(a, b string) (string, bool) { return p.cache.Merge(a, b, cluster) }

func (p *positions) AnswerSession(own, sent, got string) (string, bool) {
	return p.cache.Answer(own, sent, got, cluster, func(n session.Seen) (session.Seen, bool) { return n, false })
}

func (p *positions) ShareSession(token, sent string) string {
	return p.cache.Shared(token, sent, cluster)
}

func (p *positions) VerifySession(_ context.Context, own, _ string) (string, error) { return own, nil }

func decoded(token string) session.Session {
	s, _, err := session.Parse(token, cluster)
	if err != nil {
		panic(err)
	}
	return s
}

func position(term, index uint64, committed bool) session.Seen {
	return session.Seen{Pos: raftlog.Position{Term: term, Index: index}, Committed: committed}
}

// store is a store whose leader of term 1 has lost all uncommitted writes. The leader of term 2 loses none. Each
// request adds an entry.
type store struct {
	index uint64
	stale int // reads that have reported a loss
}

// request is a request to the node whose sessions are s. It returns the token of the answer.
func (s *store) request(at *api.Sessions, app api.App, trace, token string, write bool) string {
	s.index++
	begun := at.Begin(app, trace, token)
	return at.End(app, trace, token, begun, s.answer(begun, write))
}

func (s *store) answer(begun string, write bool) string {
	have := decoded(begun)
	if write {
		return have.With(position(2, s.index, false)).Token(cluster.Tag)
	}
	if slices.ContainsFunc(have, func(n session.Seen) bool { return n.Pos.Term == 1 && !n.Committed }) {
		s.stale++
	}
	return session.Session{position(2, s.index, true)}.Token(cluster.Tag)
}

// lost is the token of an eventual write that is lost.
func lost() string { return session.Session{position(1, 9, false)}.Token(cluster.Tag) }

func TestSessions_NodeReportsLostWriteOnce(t *testing.T) {
	app := api.App{ID: "a"}
	for name, requests := range map[string][]string{ // of the client; its requests go to two nodes in turn
		"reads":                     {"read", "read"},
		"writes at the first node":  {"write", "read"},
		"writes at the second node": {"read", "write"},
		"writes at both nodes":      {"write", "read", "read", "write", "read", "read"},
	} {
		for start, trace := range map[uint64]string{10: "", 11: "t", 2: "", 3: "t"} { // above and below the lost write
			nodes := []*api.Sessions{api.NewSessions(&positions{}), api.NewSessions(&positions{})}
			nodes[0].End(app, "", "", "", lost()) // the client's write, at the leader of term 1
			nodes[0].Follow(app, trace, lost())
			s, token := &store{index: start}, lost()
			for i := range 40 {
				token = s.request(nodes[i%2], app, trace, token, requests[i%len(requests)] == "write")
			}
			if s.stale == 0 || s.stale > 2 {
				t.Errorf("%s, trace %q: %d answers have reported the loss, want one of each node", name, trace, s.stale)
			}
		}
	}
}

func TestSessions_ConcurrentRequestsReportLostWriteOnce(t *testing.T) {
	app, at, s := api.App{ID: "a"}, api.NewSessions(&positions{}), &store{index: 10}
	at.End(app, "", "", "", lost())
	begun := at.Begin(app, "", "")
	s.request(at, app, "", "", false) // overtakes the first request
	at.End(app, "", "", begun, s.answer(begun, true))
	if s.request(at, app, "", "", false); s.stale != 1 {
		t.Errorf("%d answers have reported the loss", s.stale)
	}
}

// An application calls another one before and after its requests. Each of them gets one report of the loss, although
// the sessions of both have the position for long, and the called application returns it with its answers.
func TestSessions_CallsBringNoLossBack(t *testing.T) {
	caller, callee := api.App{ID: "caller"}, api.App{ID: "callee"}
	for name, reads := range map[string]struct {
		caller, callee bool
		start          uint64 // index of the store, above or below the lost write
	}{
		"only the caller reads": {true, false, 10}, "only the called application reads": {false, true, 10},
		"both read": {true, true, 10}, "only the caller reads a short log": {true, false, 2},
		"only the called application reads a short log": {false, true, 2}, "both read a short log": {true, true, 2},
	} {
		here, there, s := api.NewSessions(&positions{}), api.NewSessions(&positions{}), &store{index: reads.start}
		here.End(caller, "", "", "", lost())
		call := func(trace string) {
			token := here.Share(caller, trace, "")
			there.Inbound(callee, trace, token)
			there.Follow(callee, trace, token)
			s.request(there, callee, trace, "", !reads.callee)
			here.Inbound(caller, trace, there.Share(callee, trace, token))
		}
		for range 5 {
			for _, trace := range []string{"t", "u", "v", ""} {
				call(trace)
				s.request(here, caller, trace, "", !reads.caller)
				call(trace)
			}
		}
		if s.stale == 0 || s.stale > 2 {
			t.Errorf("%s: %d answers have reported the loss", name, s.stale)
		}
	}
}

func TestSessions_ShareWhatCallerMustSee(t *testing.T) {
	token := func(list ...session.Seen) string { return session.Session(list).Token(cluster.Tag) }
	app, at := api.App{ID: "a"}, api.NewSessions(&positions{})
	at.End(app, "", "", "", lost())
	at.Inbound(app, "", token(position(2, 5, true))) // a read at index 5 does not show the write
	if got := at.Share(app, "", ""); got != lost() {
		t.Errorf("the write that may exist is shared as %v", decoded(got))
	}
	later := token(position(2, 12, false))
	at.Inbound(app, "", later)
	if got := at.Share(app, "", ""); got != later {
		t.Errorf("with a later position: %v", decoded(got))
	}
	if got := at.Begin(app, "", ""); len(decoded(got)) != 2 {
		t.Errorf("the application itself gets no report of the loss any more: %v", decoded(got))
	}
	if got := at.Share(app, "", lost()); len(decoded(got)) != 2 {
		t.Errorf("the position in the request is not passed on: %v", decoded(got))
	}
}

// A client that sends its newest token gets the report of its lost write, whatever answers come in between.
func TestSessions_ClientKeepsItsLostWrite(t *testing.T) {
	token := func(list ...session.Seen) string { return session.Session(list).Token(cluster.Tag) }
	app, at, s := api.App{ID: "a"}, api.NewSessions(&positions{}), &store{index: 10}
	if got := at.Extend(lost(), token(position(2, 15, true))); len(decoded(got)) != 2 {
		t.Errorf("a call leaves %v", decoded(got))
	}
	if got := at.Extend("?", lost()); got != lost() {
		t.Errorf("a call with a token that cannot be read leaves %q", got)
	}
	at.End(app, "", "", "", lost()) // of another connection of the client, which has sent the same token before
	older := token(position(1, 5, true))
	if got := s.request(at, app, "", older, true); len(decoded(got)) != 2 {
		t.Errorf("a write after the loss leaves %v", decoded(got))
	}
	if got := s.request(at, app, "", token(position(2, 11, true)), true); len(decoded(got)) != 1 {
		t.Errorf("a client that has read from the later leader gets %v", decoded(got))
	}
}
