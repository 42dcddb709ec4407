package membership_test

import (
	"context"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
)

func TestGossip_KilledMemberFails(t *testing.T) {
	all := cluster(t, 5)
	for _, g := range all {
		must(t, g.Joined(t.Context()))
	}
	must(t, all[4].Close())
	for _, g := range all[:4] {
		sees(t, g, "n1 alive, n2 alive, n3 alive, n4 alive, n5 failed")
	}
}

func TestDismiss_FailedMemberHasLeft(t *testing.T) {
	all := cluster(t, 4)
	for _, g := range all {
		must(t, g.Joined(t.Context()))
	}
	gone := all[3].Roster().Self().ServerID
	all[0].Dismiss(gone) // the server is alive, so nothing changes
	must(t, all[3].Close())
	for _, g := range all[:3] {
		sees(t, g, "n1 alive, n2 alive, n3 alive, n4 failed")
	}
	all[0].Dismiss(gone)
	for _, g := range all[:3] {
		sees(t, g, "n1 alive, n2 alive, n3 alive, n4 left")
	}
}

func TestLeave_IsNeverFailed(t *testing.T) {
	all := clusterWith(t, 3, suspectLong)
	var seen []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r := all[0].Roster()
			seen = append(seen, view(r))
			if strings.Contains(view(r), "n3 left") {
				return
			}
			select {
			case <-r.Changed():
			case <-time.After(patience):
				t.Error("n1 does not see n3 leave")
				return
			}
		}
	}()
	must(t, all[2].Leave(t.Context()))
	must(t, all[2].Leave(t.Context()))
	if got := all[2].Roster().Self().State; got != membership.Left {
		t.Errorf("n3 takes itself for %v", got)
	}
	<-done
	if all := strings.Join(seen, "; "); strings.Contains(all, "failed") {
		t.Errorf("n1 saw %s", all)
	}
	sees(t, all[1], "n1 alive, n2 alive, n3 left")
	must(t, all[2].Close())
	must(t, all[2].Close())
	must(t, all[2].Leave(t.Context()))
}

func TestRestart_IsAliveAtNewAddress(t *testing.T) {
	all := cluster(t, 3)
	before, _ := all[0].Roster().Node("n3")
	must(t, all[2].Close())
	f := facts("n3")
	f.PeerAddr = "127.0.0.1:9999"
	again := open(t, options(f, all[0]))
	must(t, again.Joined(t.Context()))
	for _, g := range all[:2] {
		until(t, "n3 has not its new address", func() bool {
			m, _ := g.Roster().Node("n3")
			addr, ok := g.Roster().PeerAddr("n3.d1")
			return m.State == membership.Alive && m.Gossip == again.Addr() && m.BootID > before.BootID && ok &&
				addr == "127.0.0.1:9999"
		})
	}
	if again.Addr() == before.Gossip {
		t.Fatal("the restart has the old address, the test shows nothing")
	}
}

func TestDuplicates_AreRefusedWithBothAddresses(t *testing.T) {
	var log record
	o := options(facts("n1"))
	o.Logger = logTo(&log)
	first := open(t, o)
	second := open(t, options(facts("n2"), first))
	sees(t, first, "n1 alive, n2 alive")

	for name, disk := range map[string]string{"another data directory": "n2.d2",
		"a copy of the data directory": "n2.d1"} {
		t.Run(name, func(t *testing.T) {
			f := facts("n2")
			f.ServerID = disk
			twin := open(t, options(f, first))
			err := twin.Joined(t.Context())
			if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Text(err), second.Addr().String()) ||
				!strings.Contains(fault.Text(err), twin.Addr().String()) {
				t.Fatalf("the error of the newcomer is: %v", err)
			}
			until(t, "the other side does not say whom it refused", func() bool {
				return log.count("reason=duplicate_id", "n2", second.Addr().String()) > 0
			})
			if m, _ := first.Roster().Node("n2"); m.Gossip != second.Addr() {
				t.Errorf("n2 is at %s now, it was at %s", m.Gossip, second.Addr())
			}
		})
	}
}

func TestJoin_RefusesContradictingClusters(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*membership.Facts)
		code   fault.Code
		reason string
		words  []string
	}{
		{"another cluster id", func(f *membership.Facts) {
			f.ClusterID = "c2"
		}, fault.Denied, "foreign_cluster", []string{"c1 on n1 (", ", n2", "c2 on n3 ("}},
		{"another epoch", func(f *membership.Facts) {
			f.Epoch = 2
		}, fault.Denied, "older_epoch", []string{"n1 (", "epoch 0", "n3 (", "epoch 2",
			"move the data directory of n1 away"}},
		{"another number of partitions", func(f *membership.Facts) {
			f.Partitions = 4
		}, fault.Invalid, "partitions", []string{"--partitions differs", "1 on n1 (", ", n2", "4 on n3 ("}},
		{"a server that is too old", func(f *membership.Facts) {
			f.Format, f.NewestFormat = 0, 1
		}, fault.Invalid, "older_format", []string{"n3 (", "up to format 1", "holds format 2",
			"run version v2 of the program on n3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log, newLog record
			in := func(node string) membership.Facts {
				f := facts(node)
				f.ClusterID, f.Format, f.NewestFormat, f.Version = "c1", 2, 2, "v2"
				return f
			}
			o := options(in("n1"))
			o.Logger = logTo(&log)
			first := open(t, o)
			second := open(t, options(in("n2"), first))
			sees(t, first, "n1 alive, n2 alive")
			f := in("n3")
			c.change(&f)
			o = options(f, second, first)
			o.Logger = logTo(&newLog)
			stranger := open(t, o)

			err := stranger.Joined(t.Context())
			if !fault.Is(err, c.code) {
				t.Errorf("the error of the newcomer is: %v", err)
			}
			for _, w := range c.words {
				if !strings.Contains(fault.Text(err), w) {
					t.Errorf("%q does not say %q", fault.Text(err), w)
				}
			}
			until(t, "the cluster does not log the refusal", func() bool {
				return log.count("reason="+c.reason, "n3 (", stranger.Addr().String()) == 1
			})
			until(t, "the newcomer does not log the refusal", func() bool {
				return newLog.count("WARN", "reason="+c.reason, "n1 (") == 1
			})
			if got := view(stranger.Roster()) + "; " + view(first.Roster()); got != "n3 alive; n1 alive, n2 alive" {
				t.Errorf("they see %s", got)
			}
			if metric(t, o, "quorate_gossip_refused_total", c.reason) == 0 {
				t.Error("the refusal is not counted")
			}
		})
	}
}

func TestJoin_UnformedMemberDoesNotBridgeClusters(t *testing.T) {
	f := facts("n1")
	f.ClusterID = "c1"
	first := open(t, options(f))
	door := open(t, options(facts("n2"), first))
	sees(t, first, "n1 alive, n2 alive")
	sees(t, door, "n1 alive, n2 alive")
	f = facts("n3")
	f.ClusterID = "c2"
	stranger := open(t, options(f, door))
	if err := stranger.Joined(t.Context()); !fault.Is(err, fault.Denied) ||
		!strings.Contains(fault.Text(err), first.Addr().String()) {
		t.Errorf("the error of the newcomer is: %v", err)
	}
	if got := view(door.Roster()) + "; " + view(stranger.Roster()); got != "n1 alive, n2 alive; n3 alive" {
		t.Errorf("they see %s", got)
	}
}

func TestJoin_UnformedNodesJoinAnyCluster(t *testing.T) {
	f := facts("n1")
	f.ClusterID, f.Partitions = "c1", 4
	first := open(t, options(f))
	f = facts("n2")
	f.Partitions = 0
	second := open(t, options(f, first))
	must(t, second.Joined(t.Context()))
	must(t, second.UpdateFacts(func(f *membership.Facts) { f.ClusterID, f.Partitions = "c1", 4 }))
	until(t, "n1 does not hear that n2 belongs to the cluster", func() bool {
		m, _ := first.Roster().Node("n2")
		return m.ClusterID == "c1" && m.Partitions == 4
	})
}

func TestJoin_IgnoresOtherClusterName(t *testing.T) {
	first := open(t, options(facts("n1")))
	o := options(facts("n2"), first)
	o.Label = "other"
	stranger := open(t, o)
	until(t, "no attempt has been made", func() bool {
		return metric(t, o, "quorate_gossip_joins_total", "unanswered") > 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := stranger.Joined(ctx); !fault.Is(err, fault.Timeout) {
		t.Errorf("joining another cluster ended with %v", err)
	}
	if got := view(first.Roster()) + "; " + view(stranger.Roster()); got != "n1 alive; n2 alive" {
		t.Errorf("they see %s", got)
	}
}

func TestGossip_FactsReachAllMembers(t *testing.T) {
	all := cluster(t, 3)
	must(t, all[1].UpdateFacts(func(f *membership.Facts) { f.Leads, f.DiskLow = 3, true }))
	if self := all[1].Roster().Self(); self.Leads != 3 || !self.DiskLow || self.DiskSlow {
		t.Errorf("the own roster does not have the change: %+v", self)
	}
	for _, g := range all {
		until(t, "the change has not come", func() bool {
			m, _ := g.Roster().Node("n2")
			return m.Leads == 3 && m.DiskLow && !m.DiskSlow
		})
	}
}

func TestUpdate_RefusesChangedIdentity(t *testing.T) {
	f := facts("n1")
	f.ClusterID = "c1"
	g := open(t, options(f))
	before := g.Roster().Self()
	for name, c := range map[string]struct {
		change func(*membership.Facts)
		code   fault.Code
	}{
		"node id":             {func(f *membership.Facts) { f.NodeID = "n2" }, fault.Invalid},
		"boot id":             {func(f *membership.Facts) { f.BootID = membership.NewBootID() }, fault.Invalid},
		"server id":           {func(f *membership.Facts) { f.ServerID = "n1.d2" }, fault.Invalid},
		"cluster id":          {func(f *membership.Facts) { f.ClusterID = "c2" }, fault.Invalid},
		"cluster id to none":  {func(f *membership.Facts) { f.ClusterID = "" }, fault.Invalid},
		"partitions":          {func(f *membership.Facts) { f.Partitions = 2 }, fault.Invalid},
		"peer address to bad": {func(f *membership.Facts) { f.PeerAddr = "here" }, fault.Invalid},
		"version too long":    {func(f *membership.Facts) { f.Version = strings.Repeat("v", 500) }, fault.TooLarge},
	} {
		if err := g.UpdateFacts(c.change); !fault.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if g.Roster().Self() != before {
		t.Error("a refused change was made")
	}
	must(t, g.Leave(t.Context()))
	if err := g.UpdateFacts(func(f *membership.Facts) { f.Leads = 1 }); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after leaving: %v", err)
	}
}

func TestRestart_SidecarBecomesServer(t *testing.T) {
	first := open(t, options(facts("n1")))
	f := facts("n2")
	f.Role, f.ServerID = membership.Sidecar, ""
	g := open(t, options(f, first))
	sees(t, first, "n1 alive, n2 alive")
	if n := len(first.Roster().Sidecars()); n != 1 {
		t.Errorf("%d sidecars", n)
	}
	must(t, g.UpdateFacts(func(f *membership.Facts) { f.Role, f.ServerID = membership.Server, "n2.d9" }))
	until(t, "n1 does not see two servers", func() bool { return len(first.Roster().Servers()) == 2 })
	if m, ok := first.Roster().Server("n2.d9"); !ok || m.NodeID != "n2" {
		t.Errorf("the new server is not found: %+v", m)
	}
	if _, ok := first.Roster().Server(""); ok {
		t.Error("the empty server id is somebody's")
	}
}

func TestOpen_PortInUse(t *testing.T) {
	first := open(t, options(facts("n1")))
	o := options(facts("n2"))
	o.Port = first.Addr().Port()
	_, err := membership.Open(t.Context(), o)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Text(err), "--gossip-port") {
		t.Errorf("a taken port: %v", err)
	}
	o.PortFallback = true
	if second := open(t, o); second.Addr().Port() == first.Addr().Port() {
		t.Error("two nodes have one port")
	}
}

func TestOpen_RefusesInvalidOptions(t *testing.T) {
	seed := func(addr string) membership.SeedFunc {
		return func(context.Context) ([]netip.AddrPort, error) {
			return []netip.AddrPort{netip.MustParseAddrPort(addr)}, nil
		}
	}
	for name, c := range map[string]struct {
		change func(*membership.Options)
		word   string
	}{
		"a bad node id": {func(o *membership.Options) {
			o.Facts.NodeID, o.Facts.ServerID = "a/b", "a/b.d"
		}, "node id"},
		"a bad boot id":          {func(o *membership.Options) { o.Facts.BootID = "now" }, "boot id"},
		"a server without an id": {func(o *membership.Options) { o.Facts.ServerID = "" }, "server id"},
		"a sidecar with one":     {func(o *membership.Options) { o.Facts.Role = membership.Sidecar }, "server id"},
		"a foreign server id":    {func(o *membership.Options) { o.Facts.ServerID = "n2.d1" }, "server id"},
		"no role":                {func(o *membership.Options) { o.Facts.Role = 0 }, "role"},
		"a peer address of nowhere": {func(o *membership.Options) {
			o.Facts.PeerAddr = "0.0.0.0:7947"
		}, "peer address"},
		"a peer without a port": {func(o *membership.Options) { o.Facts.PeerAddr = "127.0.0.1" }, "peer address"},
		"a long cluster id": {func(o *membership.Options) {
			o.Facts.ClusterID = strings.Repeat("c", 33)
		}, "cluster id"},
		"a long cluster name": {func(o *membership.Options) {
			o.Label = strings.Repeat("c", 256)
		}, "cluster name"},
		"channel 0": {func(o *membership.Options) {
			o.Channels = map[byte]membership.Channel{0: nil}
		}, "channel 0"},
		"loopback and a far seed": {func(o *membership.Options) { o.Seeds = seed("192.0.2.7:7946") }, "192.0.2.7"},
		"an unspecified address": {func(o *membership.Options) {
			o.Advertise = netip.MustParseAddrPort("0.0.0.0:7946")
		}, "--advertise-address"},
		"a far address and a loopback peer": {func(o *membership.Options) {
			o.Advertise = netip.MustParseAddrPort("192.0.2.8:7946")
		}, "peer address"},
	} {
		o := options(facts("n1"))
		c.change(&o)
		_, err := membership.Open(t.Context(), o)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(err), c.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpen_FailureReleasesEverything(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := options(facts("n1"))
	o.Registerer = reg
	first := open(t, o)
	twin := options(facts("n2"))
	twin.Registerer = reg
	if _, err := membership.Open(t.Context(), twin); !fault.Is(err, fault.Internal) {
		t.Fatalf("metrics registered twice: %v", err)
	}
	must(t, first.Close())
	o.Port = first.Addr().Port()
	open(t, o) // port and metrics are free again
}

func TestMetrics_CountMembersByStateAndRole(t *testing.T) {
	all := cluster(t, 2)
	f := facts("n3")
	f.Role, f.ServerID = membership.Sidecar, ""
	o := options(f, all[0])
	open(t, o)
	until(t, "two servers and a sidecar are not counted", func() bool {
		return metric(t, o, "quorate_gossip_members", "alive", "server") == 2 &&
			metric(t, o, "quorate_gossip_members", "alive", "sidecar") == 1
	})
	must(t, all[1].Leave(t.Context()))
	until(t, "a server that left is not counted", func() bool {
		return metric(t, o, "quorate_gossip_members", "left", "server") == 1 &&
			metric(t, o, "quorate_gossip_members", "alive", "server") == 1
	})
	if metric(t, o, "quorate_gossip_health_score") > 7 || metric(t, o, "quorate_gossip_joins_total", "joined") == 0 {
		t.Error("health or joins are wrong")
	}
}

func TestLogLimit_StrangerDoesNotFillLog(t *testing.T) {
	var log record
	o := options(facts("n1"))
	o.Logger = logTo(&log)
	first := open(t, o)
	other := options(facts("n2"), first)
	other.Label, other.Logger = "other", logTo(io.Discard)
	open(t, other)
	until(t, "too few attempts", func() bool {
		return metric(t, other, "quorate_gossip_joins_total", "unanswered") > 4
	})
	if n := log.count("level=ERROR"); n > 0 {
		t.Errorf("%d errors:\n%s", n, log.String())
	}
	if n := log.count("unacceptable label"); n == 0 || n > 10 {
		t.Errorf("%d lines about a stranger:\n%s", n, log.String())
	}
}

// A seed that left keeps its address. The remaining node must not mistake that address for its own, or it would never
// try the seed again.
func TestJoin_RetriesSeedThatLeft(t *testing.T) {
	first := open(t, options(facts("n1")))
	second := open(t, options(facts("n2"), first))
	sees(t, second, "n1 alive, n2 alive")
	must(t, first.Leave(t.Context()))
	sees(t, second, "n1 left, n2 alive")
	must(t, first.Close())
	until(t, "the seed is not tried", func() bool {
		err := second.Trouble()
		return err != nil && strings.Contains(fault.Text(err), "no connection to "+first.Addr().String())
	})
	again := options(facts("n1")) // without seeds, so n2 has to find it
	again.Port = first.Addr().Port()
	sees(t, open(t, again), "n1 alive, n2 alive")
}
