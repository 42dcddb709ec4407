package records_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quorate/quorate/discovery/records"
)

// The limits that the runs below must keep. docs/performance-details.md has them.
const (
	some        = 150
	appsEach    = 6
	soon        = 2 * time.Second // for a change to reach all nodes
	soonWithout = 5 * time.Second // with every fifth packet lost
	idleRate    = 1000            // bytes per second that an idle node sends
	busyRate    = 30_000          // upper limit in bytes per second
)

// many returns the number of nodes of the largest world. QUORATE_MEMBERS=500 gives the numbers in the docs, and
// takes half a minute.
func many(t *testing.T) int {
	text := os.Getenv("QUORATE_MEMBERS")
	if text == "" {
		return some
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// settled returns a world whose nodes serve six applications each, and in which every node has the records of all
// others.
func settled(t *testing.T, seed uint64, members int) *world {
	t.Helper()
	t.Parallel()
	w := newWorld(t, seed, members)
	for _, s := range w.live {
		s.serves(t, appsEach, 0)
	}
	begun := w.now
	took := w.until(2*time.Minute, "the start", w.complete)
	mean, most := w.rate(w.now.Sub(begun))
	t.Logf("start of %d nodes with %d applications each: all know all after %s; %.0f B/s per node, at most %.0f "+
		"B/s, %d pulls", members, appsEach, took, mean, most, w.pulls)
	if most > 10*busyRate {
		t.Errorf("a node sent %.0f B/s", most)
	}
	w.pulls = 0
	w.run(time.Minute) // until nodes no longer send what all know
	w.rate(time.Second)
	return w
}

func TestRecords_ChangeReachesAllNodesSoon(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates thousands of nodes")
	}
	w := settled(t, 1, many(t))
	w.run(60 * time.Second)
	mean, most := w.rate(60 * time.Second)
	t.Logf("idle: %.0f B/s per node, at most %.0f B/s, %d pulls in a minute", mean, most, w.pulls)
	if mean > idleRate || w.pulls > 0 {
		t.Errorf("%.0f B/s and %d pulls while nothing happens", mean, w.pulls)
	}

	w.live[17].serves(t, appsEach, 1)
	took := w.until(soon, "one change", func() bool { return w.agree() && w.knows(w.live[17], 2) })
	t.Logf("one change is known to all after %s", took)

	for round := range 10 { // fifty nodes change at a time, repeatedly
		for i := range 50 {
			w.live[(i*7+round)%len(w.live)].serves(t, appsEach, round+2)
		}
		w.run(time.Second)
	}
	mean, most = w.rate(10 * time.Second)
	took = w.until(10*time.Second, "fifty changes a second", w.complete)
	t.Logf("fifty changes a second: %.0f B/s per node, at most %.0f B/s; the last is known to all after %s", mean,
		most, took)
	if most > busyRate {
		t.Errorf("a node sent %.0f B/s", most)
	}
}

// knows reports whether all nodes have the record of owner, in the given version or a newer one.
func (w *world) knows(owner *site, version uint64) bool {
	for _, s := range w.live {
		ok := s == owner
		for _, r := range s.Records() {
			ok = ok || r.Incarnation == owner.incarnation && r.Version >= version
		}
		if !ok {
			return false
		}
	}
	return true
}

func TestRecords_LostPacketsDelayChangeLittle(t *testing.T) {
	w := settled(t, 2, some)
	w.loss = 0.2
	worst := time.Duration(0)
	for i := range 20 {
		s := w.live[i*7]
		s.serves(t, appsEach, 1)
		worst = max(worst, w.until(soonWithout, "a change", func() bool { return w.agree() && w.knows(s, 2) }))
	}
	t.Logf("with 20%% of packets lost the slowest of 20 changes is known to all after %s, %d pulls", worst, w.pulls)

	w.loss = 1 // packets only: the peer port and the exchanges still work
	w.live[3].serves(t, appsEach, 1)
	w.run(3 * time.Second)
	w.loss = 0
	t.Logf("after 3 s without any packet all agree again after %s",
		w.until(30*time.Second, "after the loss", w.complete))
}

func TestRecords_RestartsLeaveNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates thousands of nodes")
	}
	w := settled(t, 3, some)
	begun := w.now
	var again []*site
	for i := range some / 10 {
		s := w.restart(w.live[i], 2)
		s.serves(t, appsEach+1, 0)
		again = append(again, s)
	}
	w.tellMembersWithin(1500 * time.Millisecond)
	w.run(1500 * time.Millisecond)
	took := w.until(20*time.Second, "restarts", w.complete)
	mean, most := w.rate(w.now.Sub(begun))
	t.Logf("a tenth of %d nodes restart, all are seen within 1.5 s; all know all %s later; %.0f B/s per node, at "+
		"most %.0f B/s", some, took, mean, most)
	for _, s := range w.live {
		if n, _ := s.Size(); n != some-1 {
			t.Fatalf("%s holds %d records", s.incarnation, n)
		}
	}
	if most > busyRate {
		t.Errorf("a node sent %.0f B/s", most)
	}
	if !w.knows(again[0], 1) {
		t.Error("a restarted node's record is missing somewhere")
	}
}

func TestRecords_PartitionedHalvesAgreeAndMerge(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates thousands of nodes")
	}
	w := settled(t, 4, some)
	half := func(s *site) bool { return s.number < some/2 }
	w.cut = func(a, b *site) bool { return half(a) != half(b) }
	w.tellMembersWithin(3 * time.Second)
	w.run(3 * time.Second)
	for _, s := range w.live {
		if n := len(s.Records()); n != some/2 {
			t.Fatalf("%s shows %d records while the network is cut", s.incarnation, n)
		}
	}
	for i := range 100 {
		w.live[i].serves(t, appsEach+1, i)
	}
	w.run(time.Minute)
	w.rate(time.Second)
	begun := w.now
	w.cut = func(_, _ *site) bool { return false }
	w.tellMembersWithin(3 * time.Second)
	w.run(3 * time.Second)
	took := w.until(15*time.Second, "healing", w.complete)
	mean, most := w.rate(w.now.Sub(begun))
	t.Logf("halves with 100 changes meet again: all know all %s after all see all; %.0f B/s per node, at most "+
		"%.0f B/s, %d pulls", took, mean, most, w.pulls)
	if most > 2*busyRate {
		t.Errorf("a node sent %.0f B/s", most)
	}
}

func TestRecords_LongRecordSpreadsByPulls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5, 50)
	for _, s := range w.live {
		s.serves(t, 300, 0)
	}
	t.Logf("50 nodes with 300 applications each know all after %s, %d pulls",
		w.until(30*time.Second, "the start", w.complete), w.pulls)
	w.run(10 * time.Second)
	w.pulls = 0
	s := w.live[7]
	list := s.Served()
	list[42].Healthy = !list[42].Healthy
	must(t, s.Serve(append(list, records.Entry{App: records.App{ID: "new"}, Protocol: records.GRPC})))
	took := w.until(soon, "one of 300", func() bool { return w.complete() && w.knows(s, 2) })
	t.Logf("one change of 300 is known to all after %s, %d pulls", took, w.pulls)
	if w.pulls > 10 {
		t.Errorf("%d pulls for a change that fits a packet", w.pulls)
	}
}

// TestRecords_RandomFaultsEndInAgreement injects random faults for a while. Afterwards all nodes must have the same
// records.
func TestRecords_RandomFaultsEndInAgreement(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, 100+seed, 24)
			for _, s := range w.live {
				s.serves(t, 3, 0)
			}
			boot := 1
			for range 60 {
				s := w.live[w.rng.IntN(len(w.live))]
				switch w.rng.IntN(6) {
				case 0, 1:
					s.serves(t, 1+w.rng.IntN(60), w.rng.IntN(9))
				case 2:
					boot++
					w.restart(s, boot).serves(t, 1+w.rng.IntN(5), 0)
				case 3:
					w.loss = []float64{0, 0.3, 0.9}[w.rng.IntN(3)]
				case 4:
					n := w.rng.IntN(24)
					w.cut = func(a, b *site) bool { return (a.number%24 < n) != (b.number%24 < n) }
				case 5:
					w.cut = func(_, _ *site) bool { return false }
				}
				w.tellMembersWithin(time.Second)
				w.run(time.Duration(w.rng.Int64N(int64(3 * time.Second))))
			}
			w.loss, w.cut = 0, func(_, _ *site) bool { return false }
			w.tellMembersWithin(time.Second)
			w.run(time.Second)
			t.Logf("all agree after %s", w.until(45*time.Second, "after the trouble", w.complete))
		})
	}
}
