//go:build !race

// Bubbles with many timers occasionally crash the race detector (golang.org/issue/78156). With the
// race detector, joining, leaving, failing, duplicates and token rotation run over loopback, in
// gossip_test.go and secured_test.go. Partitions, lost packets and slow clocks are tested only here.

package membership_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
)

func TestGossip_FiftyMembersConverge(t *testing.T) {
	if testing.Short() {
		t.Skip("fifty members need much processor time")
	}
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		all := net.fleet(t, 50)
		up := states(all)
		t.Logf("all see all after %s", within(t, 45*time.Second, all, up))

		must(t, all[49].Close())
		t.Logf("all see a failure after %s", within(t, 25*time.Second, all[:49],
			strings.Replace(up, "n50 alive", "n50 failed", 1)))

		must(t, all[48].Leave(t.Context()))
		gone := strings.NewReplacer("n50 alive", "n50 failed", "n49 alive", "n49 left").Replace(up)
		t.Logf("all see a good-bye after %s", within(t, time.Second, all[:48], gone))
	})
}

func TestGossip_HealsPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		all := net.fleet(t, 6)
		up := states(all)
		within(t, 45*time.Second, all, up)
		left := map[netip.AddrPort]bool{all[0].Addr(): true, all[1].Addr(): true, all[2].Addr(): true}
		net.lose(func(from, to netip.AddrPort, _ bool) bool { return left[from] != left[to] })
		within(t, 10*time.Second, all[:3], "n01 alive, n02 alive, n03 alive, n04 failed, n05 failed, n06 failed")
		within(t, 10*time.Second, all[3:], "n01 failed, n02 failed, n03 failed, n04 alive, n05 alive, n06 alive")
		<-time.After(10 * time.Minute) // long enough for memberlist to forget the dead
		net.lose(nil)
		t.Logf("whole again after %s", within(t, 30*time.Second, all, up))
	})
}

func TestJoin_RetriesAndResolvesSeedsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		var seed atomic.Pointer[netip.AddrPort]
		nowhere := netip.MustParseAddrPort("10.9.9.9:1")
		seed.Store(&nowhere)
		var log record
		o := lan(facts("n1"))
		o.Logger = logTo(&log)
		o.Seeds = func(context.Context) ([]netip.AddrPort, error) {
			return []netip.AddrPort{*seed.Load()}, fault.New(fault.Unavailable, "test", "seed b has no address now")
		}
		g := net.open(t, o)
		<-time.After(5*time.Minute + 30*time.Second)
		if n := log.count("level=INFO", "no seed can be joined", "10.9.9.9:1", "seed b has no address now"); n != 1 {
			t.Errorf("%d INFO lines, want 1:\n%s", n, log.String())
		}
		if n := log.count("level=WARN", "no seed can be joined", "10.9.9.9:1"); n != 5 {
			t.Errorf("%d WARN lines in five and a half minutes, want 5:\n%s", n, log.String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Joined(ctx); !fault.Is(err, fault.Timeout) {
			t.Errorf("joined without a seed: %v", err)
		}
		other := net.open(t, lan(facts("n2")))
		at := other.Addr()
		seed.Store(&at)
		met, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		must(t, g.Joined(met))
		within(t, time.Second, []*membership.Gossip{g, other}, "n1 alive, n2 alive")
	})
}

func TestJoin_IgnoresOwnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		var self atomic.Pointer[netip.AddrPort]
		var log record
		o := lan(facts("n1"))
		o.Logger = logTo(&log)
		o.Seeds = func(context.Context) ([]netip.AddrPort, error) {
			if a := self.Load(); a != nil {
				return []netip.AddrPort{*a}, nil
			}
			return nil, nil
		}
		g := net.open(t, o)
		alias := netip.MustParseAddrPort("10.0.0.99:1") // as behind a translated address
		net.mu.Lock()
		net.wires[alias] = net.wires[g.Addr()]
		net.mu.Unlock()
		self.Store(&alias)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := g.Joined(ctx); !fault.Is(err, fault.Timeout) {
			t.Errorf("a node joined itself: %v", err)
		}
		if n := metric(t, o, "quorate_gossip_joins_total", "itself"); n < 3 || n > 6 {
			t.Errorf("it tried itself %v times in a minute", n)
		}
		if n := metric(t, o, "quorate_gossip_refused_total", "duplicate_id"); n != 0 {
			t.Errorf("it took itself for a duplicate")
		}
		if log.count("WARN") > 0 {
			t.Errorf("an operator is warned of a list that is right:\n%s", log.String())
		}
		own := g.Addr()
		self.Store(&own)
		before := metric(t, o, "quorate_gossip_joins_total", "itself")
		<-time.After(time.Minute)
		if n := metric(t, o, "quorate_gossip_joins_total", "itself") - before; n != 0 {
			t.Errorf("it tried its own address %v times", n)
		}
	})
}

// A virtual address of a load balancer may lead to the node itself first, and later to another node.
func TestJoin_RetriesVirtualAddressThatLedToItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		virtual := netip.MustParseAddrPort("10.0.0.99:1")
		lead := func(to *membership.Gossip) {
			net.mu.Lock()
			defer net.mu.Unlock()
			net.wires[virtual] = net.wires[to.Addr()]
		}
		o := lan(facts("n1"))
		o.Seeds = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{virtual}, nil }
		first := net.open(t, o)
		lead(first)
		<-time.After(time.Minute)
		if metric(t, o, "quorate_gossip_joins_total", "itself") == 0 {
			t.Fatal("the virtual address has not led to the node itself")
		}
		second := net.open(t, lan(facts("n2")))
		lead(second)
		within(t, time.Minute, []*membership.Gossip{first, second}, "n1 alive, n2 alive")
	})
}

func TestRefusal_IsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		var log record
		f := facts("n1")
		f.ClusterID = "c1"
		o := lan(f)
		o.Logger = logTo(&log)
		first := net.open(t, o)
		f = facts("n2")
		f.ClusterID = "c2"
		net.open(t, lan(f, first))
		<-time.After(10*time.Minute + time.Second)
		if n := log.count("reason=foreign_cluster"); n < 9 || n > 11 {
			t.Errorf("%d lines in ten minutes", n)
		}
		if n := metric(t, o, "quorate_gossip_refused_total", "foreign_cluster"); n < 30 {
			t.Errorf("%v refusals are counted", n)
		}
	})
}

func TestFarewell_IsGossiped(t *testing.T) {
	for name, lost := range map[string]func(leaving, other netip.AddrPort) func(netip.AddrPort, netip.AddrPort,
		bool) bool{
		"by gossip": func(leaving, other netip.AddrPort) func(netip.AddrPort, netip.AddrPort, bool) bool {
			return func(from, to netip.AddrPort, _ bool) bool { return from == leaving && to == other }
		},
		"by exchange": func(_, other netip.AddrPort) func(netip.AddrPort, netip.AddrPort, bool) bool {
			return func(_, to netip.AddrPort, packet bool) bool { return packet && to == other }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newNetwork(t)
				all := net.fleet(t, 4)
				within(t, 45*time.Second, all, states(all))
				net.lose(lost(all[2].Addr(), all[3].Addr()))
				must(t, all[2].Leave(t.Context()))
				must(t, all[2].Close())
				<-time.After(time.Minute)
				net.lose(nil)
				if m, _ := all[3].Roster().Node("n03"); m.State != membership.Left {
					t.Errorf("n04 takes n03 for %s", m.State)
				}
			})
		})
	}
}

// TestDuplicates_FoundAfterPacketLoss has two incarnations of one node id in the cluster. The second could join,
// because no node could ping the first at that moment.
func TestDuplicates_FoundAfterPacketLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		var log record
		o := lan(facts("n1"))
		o.Logger = logTo(&log)
		first := net.open(t, o)
		second := net.open(t, lan(facts("n2"), first))
		within(t, 45*time.Second, []*membership.Gossip{first, second}, "n1 alive, n2 alive")
		net.lose(func(from, to netip.AddrPort, packet bool) bool {
			return packet && (from == second.Addr() || to == second.Addr())
		})
		<-time.After(time.Millisecond) // boot ids have milliseconds: the second incarnation has the later one
		f := facts("n2")
		f.ServerID = "n2.d2"
		twin := net.open(t, lan(f, first))
		joins(t, twin)
		net.lose(nil)

		var err error
		select {
		case err = <-twin.Duplicate():
		case <-time.After(time.Minute):
		}
		if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Text(err), second.Addr().String()) {
			t.Errorf("within a minute: %v", err)
		}
		select {
		case err := <-second.Duplicate():
			t.Errorf("the older one is to stop: %v", err)
		default:
		}
		must(t, twin.Leave(t.Context()))
		must(t, twin.Close())
		within(t, 10*time.Second, []*membership.Gossip{first, second}, "n1 alive, n2 alive")
		if m, _ := first.Roster().Node("n2"); m.Gossip != second.Addr() {
			t.Errorf("n2 is at %s, not at %s", m.Gossip, second.Addr())
		}
	})
}

// TestDuplicates_CopyOfRunningProcess has one boot id at two addresses.
func TestDuplicates_CopyOfRunningProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		var log record
		o := lan(facts("n1"))
		o.Logger = logTo(&log)
		first := net.open(t, o)
		second := net.open(t, lan(facts("n2"), first))
		within(t, 45*time.Second, []*membership.Gossip{first, second}, "n1 alive, n2 alive")
		twin := net.open(t, lan(second.Roster().Self().Facts, first))
		if err := twin.Joined(aMinute(t)); !fault.Is(err, fault.Conflict) ||
			!strings.Contains(fault.Text(err), second.Addr().String()) {
			t.Errorf("the error of the copy is: %v", err)
		}
		must(t, twin.Close())
		<-time.After(2 * time.Minute)

		net.lose(func(from, to netip.AddrPort, packet bool) bool {
			return packet && (from == second.Addr() || to == second.Addr())
		})
		twin = net.open(t, lan(second.Roster().Self().Facts, first))
		joins(t, twin)
		net.lose(nil)
		said := log.count("reason=duplicate_id")
		<-time.After(2 * time.Minute)
		if log.count("reason=duplicate_id") <= said {
			t.Error("a copy that lost packets hid is never noticed")
		}
		if m, _ := first.Roster().Node("n2"); m.Gossip != second.Addr() {
			t.Errorf("n2 is at %s, not at %s", m.Gossip, second.Addr())
		}
	})
}

func TestDuplicates_SlowClockDoesNotWin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		first := net.open(t, lan(facts("n1")))
		second := net.open(t, lan(facts("n2"), first))
		both := []*membership.Gossip{first, second}
		within(t, 45*time.Second, both, "n1 alive, n2 alive")
		f := facts("n2")
		f.BootID = strings.Repeat("0", 19)
		twin := net.open(t, lan(f, first))
		if err := twin.Joined(aMinute(t)); !fault.Is(err, fault.Conflict) {
			t.Errorf("the error of the newcomer is: %v", err)
		}
		must(t, twin.Close())
		<-time.After(2 * time.Minute)
		select {
		case err := <-second.Duplicate():
			t.Errorf("the older one is to stop: %v", err)
		default:
		}
		if m, _ := first.Roster().Node("n2"); m.Gossip != second.Addr() {
			t.Errorf("n2 is at %s, not at %s", m.Gossip, second.Addr())
		}
	})
}

// TestRestart_WithSlowClockIsAlive restarts a node with an older boot id, as after a clock that was set back.
func TestRestart_WithSlowClockIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		all := net.fleet(t, 3)
		within(t, 45*time.Second, all, states(all))
		must(t, all[2].Close())
		f := facts("n03")
		f.BootID = strings.Repeat("0", 19)
		again := net.open(t, lan(f, all[0]))
		joins(t, again)
		eventuallyAt := func() bool {
			m, _ := all[1].Roster().Node("n03")
			return m.Gossip == again.Addr() && m.State == membership.Alive
		}
		for from := time.Now(); !eventuallyAt(); <-time.After(50 * time.Millisecond) {
			if time.Since(from) > 2*time.Second {
				t.Fatal("the restart is not seen")
			}
		}
		<-time.After(time.Minute)
		if !eventuallyAt() {
			t.Error("the restart is seen no more")
		}
	})
}

func TestRoster_ForgetsMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		with := func(node string, seeds ...*membership.Gossip) membership.Options {
			o := lan(facts(node), seeds...)
			o.Timing.Forget = 10 * time.Minute
			return o
		}
		first := net.open(t, with("n1"))
		second, third := net.open(t, with("n2", first)), net.open(t, with("n3", first))
		within(t, 45*time.Second, []*membership.Gossip{first, second, third}, "n1 alive, n2 alive, n3 alive")
		must(t, second.Close())
		must(t, third.Leave(t.Context()))
		must(t, third.Close())
		within(t, 10*time.Second, []*membership.Gossip{first}, "n1 alive, n2 failed, n3 left")
		<-time.After(9 * time.Minute)
		if got := view(first.Roster()); got != "n1 alive, n2 failed, n3 left" {
			t.Errorf("after nine minutes: %s", got)
		}
		<-time.After(3 * time.Minute)
		if got := view(first.Roster()); got != "n1 alive" {
			t.Errorf("after twelve minutes: %s", got)
		}
	})
}

func TestRosterChanged_NeverMissesLastState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		first := net.open(t, lan(facts("n1")))
		second := net.open(t, lan(facts("n2"), first))
		last := make(chan uint32, 1)
		go func() {
			for {
				r := first.Roster()
				if m, _ := r.Node("n2"); m.Leads == 100 {
					last <- m.Leads
					return
				}
				<-r.Changed()
			}
		}()
		for i := range uint32(100) {
			must(t, second.UpdateFacts(func(f *membership.Facts) { f.Leads = i + 1 }))
		}
		select {
		case <-last:
		case <-time.After(10 * time.Second):
			t.Fatal("the watcher has stopped before the last change")
		}
	})
}

func TestGossip_LogsMemberChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		var log record
		o := lan(facts("n1"))
		o.Logger = logTo(&log)
		first := net.open(t, o)
		second, third := net.open(t, lan(facts("n2"), first)), net.open(t, lan(facts("n3"), first))
		<-time.After(time.Second)
		must(t, second.Close())
		<-time.After(10 * time.Second)
		net.open(t, lan(facts("n2"), first))
		must(t, third.Leave(t.Context()))
		asks := facts("n4")
		asks.Role, asks.ServerID = membership.Sidecar, ""
		fourth := net.open(t, lan(asks, first))
		<-time.After(time.Second)
		must(t, fourth.Leave(t.Context()))
		must(t, fourth.Close())
		net.open(t, lan(facts("n4"), first))
		<-time.After(time.Second)
		for _, words := range [][]string{{"INFO", "member is alive", "node=n2", "version=v1"},
			{"INFO", "member is alive", "node=n3"},
			{"WARN", "member failed", "node=n2"}, {"INFO", "back after a restart", "node=n2"},
			{"INFO", "member left", "node=n3"}, {"INFO", "member is alive", "node=n4", "role=sidecar"},
			{"INFO", "member is alive", "node=n4", "role=server"}} {
			if n := log.count(words...); n != 1 {
				t.Errorf("%d lines with %q", n, words)
			}
		}
	})
}

// shout is a channel that sends one message and keeps what it hears.
type shout struct {
	id    string
	heard chan string
	sent  atomic.Int32
}

// Broadcasts implements membership.Channel.
func (s *shout) Broadcasts(int, int) [][]byte {
	if s.sent.Add(1) > 20 {
		return nil
	}
	return [][]byte{[]byte("news of " + s.id)}
}

// Notify implements membership.Channel.
func (s *shout) Notify(msg []byte) { s.hear(string(msg)) }

// LocalState implements membership.Channel.
func (s *shout) LocalState(bool) []byte { return []byte("state of " + s.id) }

// MergeState implements membership.Channel.
func (s *shout) MergeState(b []byte, join bool) { s.hear(string(b)) }

func (s *shout) hear(text string) {
	select {
	case s.heard <- text:
	default:
	}
}

func TestChannels_CarryOwnData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(t)
		with := func(node string, seeds ...*membership.Gossip) (membership.Options, map[byte]*shout) {
			o := lan(facts(node), seeds...)
			o.Channels = map[byte]membership.Channel{}
			shouts := map[byte]*shout{}
			for _, number := range []byte{1, 200} {
				shouts[number] = &shout{id: node + " on " + string('0'+rune(number/100)),
					heard: make(chan string, 1000)}
				o.Channels[number] = shouts[number]
			}
			return o, shouts
		}
		o, ones := with("n1")
		first := net.open(t, o)
		o, _ = with("n2", first)
		net.open(t, o)
		net.open(t, lan(facts("n3"), first)) // knows no channel
		<-time.After(time.Minute)
		for number, want := range map[byte][]string{1: {"news of n2 on 0", "state of n2 on 0"},
			200: {"news of n2 on 2", "state of n2 on 2"}} {
			got := map[string]bool{}
			for len(ones[number].heard) > 0 {
				got[<-ones[number].heard] = true
			}
			if len(got) != len(want) || !slices.ContainsFunc(want, func(w string) bool { return got[w] }) {
				t.Errorf("channel %d heard %v, want %q", number, got, want)
			}
		}
	})
}
