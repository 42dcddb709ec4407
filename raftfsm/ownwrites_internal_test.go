package raftfsm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
)

func at(g uint32, term, index uint64, committed bool) session.Seen {
	return session.Seen{Group: g, Pos: raftlog.Position{Term: term, Index: index}, Committed: committed}
}

func get(store, key string) *query { return &query{kind: queryGet, store: store, keys: []string{key}} }

func TestOwnWrites_AreKeptPerApplication(t *testing.T) {
	var o ownWrites
	wrote := at(0, 1, 7, false)
	o.note(application{"s", "mine"}, wrote)
	for name, q := range map[string]*query{
		"another application": get("s", "other||k"),
		"another store":       get("t", "mine||k"),
		"no application":      get("s", "k"),
	} {
		if own := o.positions(q); len(own) != 0 {
			t.Errorf("%s has to wait for %+v", name, *own[0])
		}
		o.settle(q, o.positions(q))
	}
	for name, q := range map[string]*query{
		"get":         get("s", "mine||k"),
		"many":        {kind: queryMany, store: "s", keys: []string{"other||k", "mine||k"}},
		"own keys":    {kind: queryList, store: "s", prefix: "mine||"},
		"all of them": {kind: queryList, store: "s", prefix: "m"},
	} {
		own := o.positions(q)
		if len(own) != 1 || *own[0] != wrote {
			t.Errorf("%s: has to wait for %v, want the write", name, own)
		}
	}
	q := get("s", "mine||k")
	own := o.positions(q)
	o.note(application{"s", "mine"}, at(0, 1, 9, false))
	if o.settle(q, own); len(o.positions(q)) != 1 {
		t.Error("a newer write was forgotten")
	}
	if o.settle(q, o.positions(q)); len(o.positions(q)) != 0 {
		t.Error("a settled position is still waited for")
	}
}

// An uncommitted write of an earlier leader may be lost, so no position of a later leader may replace it.
func TestOwnWrites_KeepUncommittedWritesOfEarlierLeaders(t *testing.T) {
	app, q := application{"s", "mine"}, get("s", "mine||k")
	for name, c := range map[string]struct{ noted, want []session.Seen }{
		"a later write of the same leader": {
			[]session.Seen{at(0, 1, 10, false), at(0, 1, 12, false)}, []session.Seen{at(0, 1, 12, false)}},
		"a write of a later leader": {
			[]session.Seen{at(0, 1, 10, false), at(0, 2, 12, false), at(0, 2, 13, false)},
			[]session.Seen{at(0, 1, 10, false), at(0, 2, 13, false)}},
		"a shorter log of a later leader": {
			[]session.Seen{at(0, 1, 20, false), at(0, 2, 12, false)},
			[]session.Seen{at(0, 1, 20, false), at(0, 2, 12, false)}},
		"a read from a later leader": {
			[]session.Seen{at(0, 1, 10, false), at(0, 2, 12, true)},
			[]session.Seen{at(0, 1, 10, false), at(0, 2, 12, true)}},
		"a read that ends before the write": {
			[]session.Seen{at(0, 2, 12, true), at(0, 1, 10, false)},
			[]session.Seen{at(0, 2, 12, true), at(0, 1, 10, false)}},
		"a read under the same leader": {
			[]session.Seen{at(0, 1, 10, false), at(0, 1, 10, true)}, []session.Seen{at(0, 1, 10, true)}},
		"a write after committed ones": {
			[]session.Seen{at(0, 1, 10, true), at(0, 2, 12, false)}, []session.Seen{at(0, 2, 12, false)}},
		"an older read": {
			[]session.Seen{at(0, 2, 12, true), at(0, 2, 11, true)}, []session.Seen{at(0, 2, 12, true)}},
	} {
		var o, shared ownWrites
		for _, s := range c.noted {
			o.note(app, s)
			shared.shareAll(&s)
		}
		for _, own := range [][]*session.Seen{o.positions(q), shared.positions(q)} {
			var got []session.Seen
			for _, s := range own {
				got = append(got, *s)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: has to wait for %v, want %v", name, got, c.want)
			}
		}
	}
	var o ownWrites
	for term := range uint64(3 * maxLeaders) {
		o.note(app, at(0, term+1, 10*term+1, false))
	}
	if own := o.positions(q); len(own) != maxLeaders || own[maxLeaders-1].Pos.Term != 3*maxLeaders {
		t.Errorf("%d positions, the last is %v", len(own), *own[len(own)-1])
	}
	if got := o.newest().Pos.Term; got != 3*maxLeaders {
		t.Errorf("the newest write has term %d", got)
	}
	if o.settle(q, o.positions(q)); len(o.positions(q)) != 0 || len(o.by) != 0 {
		t.Error("settled positions are still waited for")
	}
}

func TestOwnWrites_MoreApplicationsThanTheBound(t *testing.T) {
	var o ownWrites
	const n = 3 * maxOwn
	for i := range uint64(n) {
		o.note(application{"s", fmt.Sprint(i)}, at(0, 1, i+1, false))
	}
	if len(o.by) > maxOwn {
		t.Errorf("%d applications are kept separately, the bound is %d", len(o.by), maxOwn)
	}
	for i := range uint64(n) {
		most := uint64(0)
		for _, s := range o.positions(get("s", fmt.Sprint(i)+"||k")) {
			most = max(most, s.Pos.Index)
		}
		if most < i+1 {
			t.Fatalf("application %d waits up to %d, and has written at %d", i, most, i+1)
		}
	}
	if got := o.newest().Pos.Index; got != n {
		t.Errorf("the newest write is at %d, want %d", got, n)
	}
}

func TestOwnWrites_SidecarReadsOfTwoApplications(t *testing.T) {
	var o ownWrites
	list := &query{kind: queryList, store: "s"}
	o.moveTo(list, at(0, 1, 9, true), false) // the listing has shown keys of all applications
	for _, app := range []string{"a", "b"} {
		q := get("s", app+"||k")
		own := o.positions(q)
		if len(own) == 0 || own[0].Pos.Index != 9 {
			t.Fatalf("reads of %s may go back: they wait for %v", app, own)
		}
		shared := o.shares(own)
		o.settle(q, own)
		o.moveTo(q, at(0, 1, 9, true), shared)
	}
}

func TestOwnWrites_EncodingRoundTrip(t *testing.T) {
	first, second := at(3, 1, 7, false), at(3, 2, 9, true)
	f := peercalls.NewFrame(append(peercalls.AppendOwn(nil, []*session.Seen{&first, &second}), 5))
	got := f.Own(3)
	if len(got) != 2 || *got[0] != first || *got[1] != second || f.Bad || f.Byte() != 5 {
		t.Errorf("got %v", got)
	}
	cut := peercalls.NewFrame(peercalls.AppendOwn(nil, []*session.Seen{&first})[:1])
	if cut.Own(3); !cut.Bad {
		t.Error("a truncated message was decoded")
	}
}
