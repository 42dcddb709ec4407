package raftfsm

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

func TestFrame_RoundTripsQueries(t *testing.T) {
	for name, q := range map[string]query{
		"get": {kind: queryGet, store: "ns/s", keys: []string{"app||k"},
			values: []kv.Value{{Found: true, Value: []byte{}, ContentType: "t", Revision: 7, ExpireAt: 9}}},
		"absent": {kind: queryGet, store: "ns/s", keys: []string{"app||k"}, values: []kv.Value{{}}},
		"many": {kind: queryMany, store: "/s", keys: []string{"a", "b"},
			values: []kv.Value{{Found: true, Value: []byte("v"), Revision: 1}, {}}},
		"list": {kind: queryList, store: "/s", prefix: "p", after: "q", limit: 3,
			listed: []kv.Listed{{Key: "r", Revision: 2, ExpireAt: 3, Size: 4}}, more: true},
	} {
		asked, err := readQuery(peercalls.NewFrame(q.append(nil)))
		if err != nil {
			t.Fatal(name, err)
		}
		if err := asked.readFound(peercalls.NewFrame(q.appendFound(nil))); err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(&q, asked, cmp.AllowUnexported(query{}), cmpopts.EquateEmpty()); diff != "" {
			t.Error(name, diff)
		}
	}
}

func TestFrame_RoundTripsGiven(t *testing.T) {
	at := session.Seen{Group: 3, Pos: raftlog.Position{Term: 2, Index: 9}, Committed: true}
	for _, g := range []given{
		{level: state.Linearizable, at: at}, {level: state.Bounded, age: time.Second, at: at, ownDone: true},
		{level: state.Stale, age: -1, at: at, reason: staleLost, forgive: true}, {level: state.SessionLevel,
			age: 1, at: at},
	} {
		f := peercalls.NewFrame(appendGiven(nil, &g))
		if got := readGiven(f, 3); f.Bad || got != g {
			t.Errorf("%+v became %+v (bad %v)", g, got, f.Bad)
		}
	}
}

func FuzzFrames(f *testing.F) {
	q := query{kind: queryMany, store: "s", keys: []string{"a"}}
	f.Add(q.append(nil))
	f.Add(appendGiven(nil, &given{level: state.Stale, reason: "r"}))
	f.Add([]byte{2, 1, 'a', 1, 1, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, b []byte) {
		if q, err := readQuery(peercalls.NewFrame(b)); err == nil && !bytes.Equal(q.append(nil), b) {
			again, err := readQuery(peercalls.NewFrame(q.append(nil)))
			if err != nil || len(again.keys) != len(q.keys) {
				panic("a query changed by encoding")
			}
		}
		_ = readGiven(peercalls.NewFrame(b), 0)
		_ = (&query{kind: queryList}).readFound(peercalls.NewFrame(b))
		_ = (&query{kind: queryMany, keys: []string{"a", "b"}}).readFound(peercalls.NewFrame(b))
	})
}
