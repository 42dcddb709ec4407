package workflows

import (
	"bytes"
	"slices"
	"testing"

	"github.com/quorate/quorate/internal/testutil"
)

// deposedGroup is a Raft group that reports the given leadership and term.
type deposedGroup struct {
	deadGroup
	leads bool
	term  uint64
}

func (g deposedGroup) Leading() bool { return g.leads }
func (g deposedGroup) Term() uint64  { return g.term }

// Before its Keeper resigns, a deposed leader may read an activity that a later leader has scheduled. The later leader
// may have handed out this activity. So the Keeper of the deposed leader gives it to no stream.
func TestFill_HandsOutNothingAfterTheTerm(t *testing.T) {
	for name, c := range map[string]struct {
		group deposedGroup
		want  int
	}{
		"leads":              {deposedGroup{leads: true, term: 1}, 1},
		"does not lead":      {deposedGroup{leads: false, term: 1}, 0},
		"leads again, later": {deposedGroup{leads: true, term: 3}, 0},
	} {
		k := openOutbox(deadGroup{})
		k.mu.Lock()
		a, s := k.application("shop"), &session{wake: make(chan struct{}, 1)}
		a.moreReady, a.moreTasks = false, false
		a.streams = append(a.streams, &stream{session: s, app: "shop"})
		k.queueTask(&task{id: taskID{Ref: Ref{"shop", "a"}}, app: "shop"})
		k.group = c.group
		k.fill("shop")
		if len(s.out) != c.want {
			t.Errorf("%s: %d activities were handed out, want %d", name, len(s.out), c.want)
		}
		k.group = deadGroup{}
		k.mu.Unlock()
	}
}

// An item that arrives is compared only with items of the same instance or activity, because a node may have 100,000
// items. In the test, another item is nil.
func TestBroker_ArrivalLooksAtSameWorkOnly(t *testing.T) {
	b := NewBroker(nil, BrokerOptions{})
	s := &Stream{b: b, id: 1, app: "shop", changed: make(chan struct{}, 1)}
	b.streams[s.id] = s
	b.items["another one"] = nil
	l, r := &link{b: b}, Ref{"shop", "a"}
	arrive := func(i item) {
		i.stream, i.ref = s.id, r
		b.arrived(t.Context(), l, "session", &i)
	}
	arrive(item{kind: itemTask, task: 1, birth: 5, number: 1})
	arrive(item{kind: itemTask, task: 1, birth: 5, number: 2}) // the node has this activity
	arrive(item{kind: itemTask, task: 1, birth: 6, number: 3}) // an activity of a later execution
	arrive(item{kind: itemTurn, number: 4})
	arrive(item{kind: itemTurn, number: 5}) // replaces the previous turn
	s.queue[2].sending = true
	arrive(item{kind: itemTurn, number: 6}) // the answer to the previous turn is on its way
	arrive(item{kind: itemTurn, number: 7}) // replaces the previous turn
	var got []uint64
	for _, d := range s.queue {
		got = append(got, d.number)
	}
	if want := []uint64{1, 3, 5, 7}; !slices.Equal(got, want) {
		t.Errorf("the stream has the items %v, want %v", got, want)
	}
	for _, d := range slices.Clone(s.queue) {
		b.forget(d)
	}
	if len(b.held) > 0 || len(b.items) != 1 {
		t.Errorf("%d items are left, and %d of them by their work", len(b.items)-1, len(b.held))
	}
}

// An answer may have the work of many instances. A small event that the node keeps must not keep the whole answer in
// memory.
func TestBroker_EventsHaveMemoryOfTheirOwn(t *testing.T) {
	b := NewBroker(nil, BrokerOptions{})
	s := &Stream{b: b, id: 1, app: "shop", changed: make(chan struct{}, 1)}
	b.streams[s.id] = s
	text := func(events [][]byte) string { return string(bytes.Join(events, []byte(" "))) }
	receive := func(i item) {
		i.stream, i.ref, i.exec = 1, Ref{"shop", "a"}, "x"
		whole := appendAnswer([]byte{1}, &answer{number: 1, items: []*item{&i}})
		_, a, err := readAnswer(whole)
		testutil.Must(t, err)
		b.arrived(t.Context(), &link{b: b}, "session", a.items[0])
		clear(whole)
	}
	one, two, three, four := []byte("one"), []byte("two"), []byte("three"), []byte("four")
	receive(item{kind: itemTask, task: 1, birth: 5, number: 1, fresh: [][]byte{four}})
	receive(item{kind: itemTurn, number: 2, past: [][]byte{one, two}, fresh: [][]byte{three}})
	receive(item{kind: itemTurn, number: 3, from: 2, past: [][]byte{one, two, three}, fresh: [][]byte{four}})
	if got := text(b.cached[Ref{"shop", "a"}].events); got != "one two three" {
		t.Errorf("the node keeps the history %q", got)
	}
	for n, want := range []string{"four", "four"} {
		if got := text(s.queue[n].fresh); got != want {
			t.Errorf("item %d has the events %q, want %q", n, got, want)
		}
	}
}
