package raftfsm

import (
	"testing"

	"github.com/quorate/quorate/raftfsm/session"
)

func TestMergeSessions_CoverBothTokens(t *testing.T) {
	node := &membership{}
	node.tag.Store(7)
	h := &Host{node: node, router: &router{node: node, replica: &server{node: node}}}
	token := func(list ...session.Seen) string { return session.Session(list).Token(7) }
	for _, c := range []struct{ a, b, want string }{
		{"", "", ""},
		{token(at(0, 1, 5, true)), "", token(at(0, 1, 5, true))},
		{"", token(at(0, 1, 5, false)), token(at(0, 1, 5, false))},
		{token(at(0, 1, 5, true), at(2, 1, 1, true)), token(at(0, 1, 9, false), at(1, 3, 3, true)),
			token(at(0, 1, 9, false), at(1, 3, 3, true), at(2, 1, 1, true))},
		{token(at(0, 1, 5, false)), token(at(0, 1, 5, true)), token(at(0, 1, 5, true))},
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			if got, ok := h.MergeSessions(pair[0], pair[1]); !ok || got != c.want {
				t.Errorf("%q and %q: %q %v, want %q", pair[0], pair[1], got, ok, c.want)
			}
		}
	}
	for _, bad := range []string{"x", session.Session{at(0, 1, 1, true)}.Token(8)} {
		if _, ok := h.MergeSessions(token(at(0, 1, 5, true)), bad); ok {
			t.Errorf("%q was merged", bad)
		}
	}
}
