package session

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/raftlog"
)

func at(g uint32, term, index uint64, committed bool) Seen {
	return Seen{Group: g, Pos: raftlog.Position{Term: term, Index: index}, Committed: committed}
}

func TestSession_KeepsNewestPositions(t *testing.T) {
	for name, c := range map[string]struct {
		have Session
		next Seen
		want Session
	}{
		"first":   {nil, at(0, 1, 5, true), Session{at(0, 1, 5, true)}},
		"further": {Session{at(0, 1, 5, true)}, at(0, 1, 9, true), Session{at(0, 1, 9, true)}},
		"behind":  {Session{at(0, 1, 9, true)}, at(0, 1, 5, true), Session{at(0, 1, 9, true)}},
		"a later term that is behind": {Session{at(0, 4, 150, true)}, at(0, 5, 90, true),
			Session{at(0, 4, 150, true)}},
		"an eventual write": {Session{at(0, 1, 5, true)}, at(0, 1, 9, false),
			Session{at(0, 1, 9, false)}},
		"the eventual write was committed": {Session{at(0, 1, 9, false)}, at(0, 1, 9, true),
			Session{at(0, 1, 9, true)}},
		"a read below an eventual write": {Session{at(0, 1, 9, false)}, at(0, 1, 7, true),
			Session{at(0, 1, 9, false)}},
		"a read above an eventual write": {Session{at(0, 1, 9, false)}, at(0, 1, 12, true),
			Session{at(0, 1, 12, true)}},
		"committed is not undone by its equal": {Session{at(0, 1, 9, true)}, at(0, 1, 9, false),
			Session{at(0, 1, 9, true)}},
		"another leader's write in the same place": {Session{at(0, 1, 9, false)}, at(0, 2, 9, false),
			Session{at(0, 1, 9, false), at(0, 2, 9, false)}},
		"another leader's write": {Session{at(0, 1, 9, false)}, at(0, 2, 12, false),
			Session{at(0, 1, 9, false), at(0, 2, 12, false)}},
		"another leader's shorter log": {Session{at(0, 1, 20, false)}, at(0, 2, 12, false),
			Session{at(0, 1, 20, false), at(0, 2, 12, false)}},
		"a read from another leader": {Session{at(0, 1, 9, false), at(1, 1, 5, true)}, at(0, 2, 12, true),
			Session{at(0, 1, 9, false), at(0, 2, 12, true), at(1, 1, 5, true)}},
		"an earlier leader's write": {Session{at(0, 2, 12, true)}, at(0, 1, 9, false),
			Session{at(0, 1, 9, false), at(0, 2, 12, true)}},
		"a fourth leader": {Session{at(0, 1, 9, false), at(0, 2, 12, false), at(0, 3, 14, false), at(1, 1, 1, true)},
			at(0, 4, 16, false),
			Session{at(0, 2, 12, false), at(0, 3, 14, false), at(0, 4, 16, false), at(1, 1, 1, true)}},
	} {
		got := c.have.With(c.next)
		if !cmp.Equal(got, c.want) || !got.Holds(c.next) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if again := got.With(c.next); !cmp.Equal(again, got) {
			t.Errorf("%s: %+v becomes %+v", name, got, again)
		}
	}
}

func TestAnswer_RemovesWhatIsSettled(t *testing.T) {
	lost, read := at(0, 1, 9, false), at(0, 2, 12, true)
	write := at(0, 2, 12, false)
	for name, c := range map[string]struct{ own, sent, got, want Session }{
		"the first answer": {nil, nil, Session{read}, Session{read}},
		"the write was committed": {Session{lost}, Session{lost}, Session{at(0, 1, 12, true)},
			Session{at(0, 1, 12, true)}},
		"a write at a later leader": {Session{lost}, Session{lost}, Session{lost, write}, Session{lost, write}},
		"a read at a later leader":  {Session{lost}, Session{lost}, Session{read}, Session{read}},
		"a read without the position": {Session{lost}, nil, Session{read},
			Session{lost, read}},
		"an earlier write of the same leader": {Session{at(0, 1, 7, false)}, Session{lost}, Session{read},
			Session{read}},
		"a later write of the same leader": {Session{at(0, 1, 10, false)}, Session{lost}, Session{read},
			Session{at(0, 1, 10, false), read}},
		"an invented later write": {Session{lost}, Session{at(0, 1, 1<<40, false)}, Session{at(0, 1, 8, true)},
			Session{lost}},
		"another group": {Session{lost, at(1, 1, 9, false)}, Session{lost, at(1, 1, 9, false)},
			Session{read, at(1, 1, 9, false)}, Session{read, at(1, 1, 9, false)}},
		"a write that drops the position": {Session{lost}, Session{lost, at(0, 7, 5, false), at(0, 8, 5, false)},
			Session{write, at(0, 7, 5, false), at(0, 8, 5, false)}, Session{lost, write}},
		"what the client sent is not added": {nil, Session{at(0, 1, 9, true)},
			Session{at(0, 1, 9, true), at(1, 1, 1, true)},
			Session{at(1, 1, 1, true)}},
	} {
		var cache Cache
		got, ok := cache.Answer(token(c.own), token(c.sent), token(c.got), here,
			func(n Seen) (Seen, bool) { return n, false })
		if !ok || got != token(c.want) {
			s, _, err := Parse(got, here)
			t.Errorf("%s: %v %v %v, want %v", name, ok, s, err, c.want)
		}
	}
	var cache Cache
	got, ok := cache.Answer("", token(Session{at(0, 9, 5, true)}), token(Session{at(0, 9, 5, true)}), here,
		func(n Seen) (Seen, bool) { n.Pos.Term = 1; return n, true })
	if !ok || got != token(Session{at(0, 1, 5, true)}) {
		t.Errorf("a position that the node confirms: %q, %v", got, ok)
	}
	if _, ok := cache.Answer("x", "", got, here, nil); ok {
		t.Error("a session that cannot be read was changed")
	}
}

// A client can invent positions of later leaders. The token of an answer covers the answer nevertheless.
func TestAfter_CoversPositionOfAnswer(t *testing.T) {
	invented := Session{at(0, 2, 10, false), at(0, 3, 12, false), at(0, 4, 14, false), at(1, 1, 1, true)}
	var cache Cache
	got, _, err := Parse(cache.After("", invented, at(0, 1, 9, false), here), here)
	want := Session{at(0, 1, 9, false), at(0, 3, 12, false), at(0, 4, 14, false), at(1, 1, 1, true)}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
}

// token is the token of a session; empty for an empty one.
func token(s Session) string {
	if len(s) == 0 {
		return ""
	}
	return s.Token(here.Tag)
}

func TestShared_LeavesOutEarlierLeaders(t *testing.T) {
	lost, later := at(0, 1, 9, false), at(0, 2, 12, true)
	for name, c := range map[string]struct{ have, sent, want Session }{
		"the only position":       {Session{lost}, nil, Session{lost}},
		"a later leader":          {Session{lost, later}, nil, Session{later}},
		"a later write":           {Session{lost, at(0, 2, 9, false)}, nil, Session{at(0, 2, 9, false)}},
		"a later leader below it": {Session{lost, at(0, 2, 5, true)}, nil, Session{lost, at(0, 2, 5, true)}},
		"another group": {Session{lost, at(1, 2, 12, true)}, nil,
			Session{lost, at(1, 2, 12, true)}},
		"a later write below it":             {Session{lost, at(0, 2, 5, false)}, nil, Session{at(0, 2, 5, false)}},
		"the receiver sent it":               {Session{lost, later}, Session{lost}, Session{lost, later}},
		"the receiver sent an earlier write": {Session{lost, later}, Session{at(0, 1, 7, false)}, Session{lost, later}},
		"the receiver sent another":          {Session{lost, later}, Session{at(0, 2, 7, false)}, Session{later}},
		"the receiver sent a read":           {Session{lost, later}, Session{at(0, 1, 7, true)}, Session{lost, later}},
		"the receiver sent a later read":     {Session{lost, later}, Session{at(0, 2, 7, true)}, Session{later}},
		"the receiver sent another group":    {Session{lost, later}, Session{at(1, 1, 7, true)}, Session{later}},
		"three leaders": {Session{lost, at(0, 2, 10, false), at(0, 3, 12, false)}, Session{at(0, 2, 10, false)},
			Session{at(0, 2, 10, false), at(0, 3, 12, false)}},
	} {
		var cache Cache
		if got := cache.Shared(token(c.have), token(c.sent), here); got != token(c.want) {
			s, _, err := Parse(got, here)
			t.Errorf("%s: %v %v, want %v", name, s, err, c.want)
		}
	}
	var cache Cache
	if got := cache.Shared("x", "", here); got != "x" {
		t.Errorf("a token that cannot be read is sent as %q", got)
	}
	if got := cache.Shared(token(Session{lost, later}), "x", here); got != token(Session{later}) {
		t.Errorf("a receiver whose token cannot be read gets %q", got)
	}
}

// here is the cluster to which the tokens in these tests belong.
var here = Cluster{Tag: 7, Groups: MaxGroups} //nolint:gochecknoglobals // constant

func TestToken_RoundTrips(t *testing.T) {
	in := Session{at(0, 1, 2, true), at(3, 7, 9, false), at(3, 1<<40, 1<<60, false), at(255, 0, 0, true)}
	out, foreign, err := Parse(in.Token(7), here)
	if err != nil || foreign {
		t.Fatalf("foreign %v, %v", foreign, err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(Seen{})); diff != "" {
		t.Error(diff)
	}
	if s, foreign, err := Parse(in.Token(7), Cluster{Tag: 8}); err != nil || !foreign || len(s) != 0 {
		t.Errorf("a token of another cluster: %v %v %v", s, foreign, err)
	}
	if s, _, err := Parse("", here); err != nil || len(s) != 0 {
		t.Errorf("no token: %v %v", s, err)
	}
}

func FuzzParseSession(f *testing.F) {
	f.Add(Session{at(0, 1, 2, true)}.Token(7))
	f.Add("")
	f.Add("Ad6l")
	f.Fuzz(func(t *testing.T, token string) {
		s, foreign, err := Parse(token, here)
		if err != nil || foreign {
			return
		}
		again, _, err := Parse(s.Token(7), here)
		if err != nil || !cmp.Equal(s, again, cmp.AllowUnexported(Seen{})) {
			t.Fatalf("%q: %+v becomes %+v, %v", token, s, again, err)
		}
	})
}

func TestToken_IsReusedIfUnchanged(t *testing.T) {
	var remembered Cache
	for name, c := range map[string]struct {
		have Session
		next Seen
	}{
		"nothing new":           {Session{at(0, 1, 5, true), at(2, 1, 9, true)}, at(2, 1, 9, true)},
		"older":                 {Session{at(0, 1, 5, true)}, at(0, 1, 4, true)},
		"further":               {Session{at(0, 1, 5, true)}, at(0, 1, 9, true)},
		"another group":         {Session{at(0, 1, 5, true)}, at(1, 1, 5, true)},
		"committed now":         {Session{at(0, 1, 5, false)}, at(0, 1, 5, true)},
		"another leader's":      {Session{at(0, 1, 5, false)}, at(0, 2, 5, false)},
		"the first":             {nil, at(0, 1, 5, true)},
		"an uncommitted follow": {Session{at(0, 1, 5, true)}, at(0, 1, 6, false)},
	} {
		token := c.have.Token(7)
		for range 2 { // the second time, the token is in the cache
			s, foreign, err := remembered.Parse(token, here)
			if err != nil || foreign || !cmp.Equal(s, c.have, cmp.AllowUnexported(Seen{})) {
				t.Fatalf("%s: read as %+v, %v, %v", name, s, foreign, err)
			}
			if got, want := remembered.After(token, s, c.next, here), c.have.With(c.next).Token(7); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if s, foreign, err := remembered.Parse(token, Cluster{Tag: 8}); err != nil || !foreign || s != nil {
			t.Errorf("%s: the token is valid in another cluster: %+v, %v, %v", name, s, foreign, err)
		}
	}
}

func TestParse_BoundIsThatOfWriter(t *testing.T) {
	var all Session
	for g := range uint32(MaxGroups) {
		for leader := range uint64(maxLeaders) {
			all = append(all, at(g, math.MaxUint64-maxLeaders+leader, math.MaxUint64>>1, false))
		}
	}
	got, foreign, err := Parse(all.Token(7), here)
	if err != nil || foreign || !cmp.Equal(got, all) {
		t.Errorf("the longest token of a cluster: %d positions, foreign %v, %v", len(got), foreign, err)
	}
	if _, _, err := Parse(all.Token(7)+strings.Repeat("A", 1<<10), here); err == nil {
		t.Error("a longer token was read")
	}
}

func TestParse_RefusesPositionsThatNoSessionHas(t *testing.T) {
	for name, s := range map[string]Session{
		"groups in descending order": {at(1, 1, 5, true), at(0, 1, 5, true)},
		"a position twice":           {at(0, 1, 5, true), at(0, 1, 5, true)},
		"terms in descending order":  {at(0, 2, 5, false), at(0, 1, 9, false)},
		"too many of a group": {at(0, 1, 5, false), at(0, 2, 6, false), at(0, 3, 7, false),
			at(0, 4, 8, false)},
	} {
		if got, _, err := Parse(s.Token(7), here); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestParse_TokenWithMissingGroupIsForeign(t *testing.T) {
	token := Session{at(0, 1, 5, true), at(3, 1, 5, true)}.Token(7)
	for groups, want := range map[uint32]bool{0: false, 1: true, 3: true, 4: false} {
		s, foreign, err := Parse(token, Cluster{Tag: 7, Groups: groups})
		if err != nil || foreign != want || foreign == (len(s) > 0) {
			t.Errorf("%d groups: foreign %v with %d positions, %v", groups, foreign, len(s), err)
		}
	}
	var c Cache
	if merged, ok := c.Merge("", token, Cluster{Tag: 7, Groups: 1}); ok {
		t.Errorf("merged to %q", merged)
	}
}
