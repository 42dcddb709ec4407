package raftfsm

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/raftlog"
)

func at(g uint32, term, index uint64, committed bool) seen {
	return seen{group: g, pos: raftlog.Position{Term: term, Index: index}, committed: committed}
}

func TestSession_KeepsNewestPositions(t *testing.T) {
	for name, c := range map[string]struct {
		have session
		next seen
		want seen
	}{
		"first":   {nil, at(0, 1, 5, true), at(0, 1, 5, true)},
		"further": {session{at(0, 1, 5, true)}, at(0, 1, 9, true), at(0, 1, 9, true)},
		"behind":  {session{at(0, 1, 9, true)}, at(0, 1, 5, true), at(0, 1, 9, true)},
		"a later term that is behind": {session{at(0, 4, 150, true)}, at(0, 5, 90, true),
			at(0, 4, 150, true)},
		"an eventual write": {session{at(0, 1, 5, true)}, at(0, 1, 9, false),
			at(0, 1, 9, false)},
		"the eventual write was committed": {session{at(0, 1, 9, false)}, at(0, 1, 9, true), at(0, 1, 9, true)},
		"a read below an eventual write": {session{at(0, 1, 9, false)}, at(0, 1, 7, true),
			at(0, 1, 9, false)},
		"a read above an eventual write": {session{at(0, 1, 9, false)}, at(0, 1, 12, true),
			at(0, 1, 12, true)},
		"another leader's write in the same place": {session{at(0, 1, 9, false)}, at(0, 2, 9, false),
			at(0, 2, 9, false)},
		"committed is not undone by its equal": {session{at(0, 1, 9, true)}, at(0, 1, 9, false), at(0, 1, 9, true)},
	} {
		got, ok := c.have.with(c.next).of(0)
		if !ok || got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestToken_RoundTrips(t *testing.T) {
	in := session{at(0, 1, 2, true), at(3, 1<<40, 1<<60, false), at(255, 0, 0, true)}
	out, foreign, err := parseSession(in.token(7), 7)
	if err != nil || foreign {
		t.Fatalf("foreign %v, %v", foreign, err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(seen{})); diff != "" {
		t.Error(diff)
	}
	if s, foreign, err := parseSession(in.token(7), 8); err != nil || !foreign || len(s) != 0 {
		t.Errorf("a token of another cluster: %v %v %v", s, foreign, err)
	}
	if s, _, err := parseSession("", 7); err != nil || len(s) != 0 {
		t.Errorf("no token: %v %v", s, err)
	}
}

func FuzzParseSession(f *testing.F) {
	f.Add(session{at(0, 1, 2, true)}.token(7))
	f.Add("")
	f.Add("Ad6l")
	f.Fuzz(func(t *testing.T, token string) {
		s, foreign, err := parseSession(token, 7)
		if err != nil || foreign {
			return
		}
		again, _, err := parseSession(s.token(7), 7)
		if err != nil || !cmp.Equal(s, again, cmp.AllowUnexported(seen{})) {
			t.Fatalf("%q: %+v becomes %+v, %v", token, s, again, err)
		}
	})
}

func TestToken_IsReusedIfUnchanged(t *testing.T) {
	var remembered tokens
	for name, c := range map[string]struct {
		have session
		next seen
	}{
		"nothing new":           {session{at(0, 1, 5, true), at(2, 1, 9, true)}, at(2, 1, 9, true)},
		"older":                 {session{at(0, 1, 5, true)}, at(0, 1, 4, true)},
		"further":               {session{at(0, 1, 5, true)}, at(0, 1, 9, true)},
		"another group":         {session{at(0, 1, 5, true)}, at(1, 1, 5, true)},
		"committed now":         {session{at(0, 1, 5, false)}, at(0, 1, 5, true)},
		"another leader's":      {session{at(0, 1, 5, false)}, at(0, 2, 5, false)},
		"the first":             {nil, at(0, 1, 5, true)},
		"an uncommitted follow": {session{at(0, 1, 5, true)}, at(0, 1, 6, false)},
	} {
		token := c.have.token(7)
		for range 2 { // the second time it is in the cache
			s, foreign, err := remembered.parse(token, 7)
			if err != nil || foreign || !cmp.Equal(s, c.have, cmp.AllowUnexported(seen{})) {
				t.Fatalf("%s: read as %+v, %v, %v", name, s, foreign, err)
			}
			if got, want := remembered.after(token, s, c.next, 7), c.have.with(c.next).token(7); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if s, foreign, err := remembered.parse(token, 8); err != nil || !foreign || s != nil {
			t.Errorf("%s: the token is valid in another cluster: %+v, %v, %v", name, s, foreign, err)
		}
	}
}
