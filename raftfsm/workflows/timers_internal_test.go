package workflows

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/raftfsm/kv"
)

// A timer is stored while the timers of its bucket are read. The page that was read before does not have the timer.
// The Keeper still knows when the timer is due.
func TestTimers_PageReadEarlierHidesNoTimer(t *testing.T) {
	p := place{app: "shop"}
	for name, found := range map[string][]kv.Record{
		"empty": nil, "with a later timer": {{Key: Ref{"shop", "a"}.dueKey(100, dueTimer, 1),
			Value: (&dueRecord{}).encode()}}} {
		k := openOutbox(deadGroup{})
		k.mu.Lock()
		k.timers.add(k, dueItem{50, p})
		k.timers.fire(k, p, found, 10)
		if got := k.timers.next[p]; got != 50 {
			t.Errorf("%s: the first timer fires at %d, want 50", name, got)
		}
		k.mu.Unlock()
		k.Close()
	}
}

// timers.first returns the earliest timer of all buckets, however often the first timers of the buckets change.
func TestTimers_KnowFirst(t *testing.T) {
	ts := &timers{next: map[place]uint64{}}
	if _, any := ts.first(); any {
		t.Error("there is a first timer without any")
	}
	const buckets, rounds = 50, 40
	for round := range uint64(rounds) {
		for n := range uint64(buckets) {
			p := place{app: fmt.Sprint(n)}
			ts.note(dueItem{1 + (n*7919+round*104_729)%1000, p})
			if n%3 == round%3 {
				delete(ts.next, p)
			}
			least, found := uint64(1<<63), false
			for _, at := range ts.next {
				least, found = min(least, at), true
			}
			if got, any := ts.first(); any != found || any && (got.at != least || ts.next[got.place] != least) {
				t.Fatalf("the first timer is %v, want %d", got, least)
			}
		}
	}
	if most := 2*len(ts.next) + minOrder; len(ts.order) > most {
		t.Errorf("%d items are kept, want at most %d", len(ts.order), most)
	}
}

// Noting a timer does not look at the timers of all other buckets. In the test, these timers are not in the order, so
// first can find only the timer that was noted.
func TestTimers_NoteReadsNoOtherBucket(t *testing.T) {
	ts := &timers{next: map[place]uint64{{app: "another one"}: 5}}
	ts.note(dueItem{9, place{app: "shop"}})
	if got, _ := ts.first(); got.at != 9 {
		t.Errorf("the first timer is %v, want the one that was noted", got)
	}
}
