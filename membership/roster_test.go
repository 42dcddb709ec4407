package membership_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/quorate/quorate/membership"
)

// differing starts count nodes and returns the roster of the first one. change sets the facts of the node with the
// number i, which begins at 1.
func differing(t *testing.T, count int, change func(i int, f *membership.Facts)) *membership.Roster {
	t.Helper()
	net := newNetwork(t)
	var all []*membership.Gossip
	for i := range count {
		f := facts(fmt.Sprintf("n%d", i+1))
		change(i+1, &f)
		if f.Role == membership.Sidecar {
			f.ServerID = ""
		}
		all = append(all, net.open(t, lan(f, all[:min(i, 1)]...)))
	}
	within(t, 45*time.Second, all, states(all))
	return all[0].Roster()
}

func texts(list []membership.Difference) []string {
	var out []string
	for _, d := range list {
		out = append(out, d.String())
	}
	return out
}

func TestRosterDifferences_NameNodes(t *testing.T) {
	for name, c := range map[string]struct {
		count  int
		change func(i int, f *membership.Facts)
		want   []string
	}{
		"none": {3, func(_ int, f *membership.Facts) { f.BootstrapExpect = 3 }, nil},
		"bootstrap-expect": {3, func(i int, f *membership.Facts) {
			if f.BootstrapExpect = 3; i == 2 {
				f.BootstrapExpect = 5
			}
		}, []string{"bootstrap-expect differs: 3 on n1, n3; 5 on n2"}},
		"a node that forms no cluster does not count": {4, func(i int, f *membership.Facts) {
			switch i {
			case 1, 2:
				f.BootstrapExpect = 3
			case 3:
				f.BootstrapExpect, f.Role = 5, membership.Sidecar
			}
		}, nil},
		"once there is a cluster it does not matter": {2, func(i int, f *membership.Facts) {
			if f.BootstrapExpect = uint32(i); i == 1 {
				f.ClusterID = "c1"
			}
		}, nil},
		"voters": {4, func(i int, f *membership.Facts) {
			switch i {
			case 1, 2:
				f.Voters = 3
			case 3:
				f.Voters = 5
			case 4:
				f.Voters, f.Role = 7, membership.Sidecar
			}
		}, []string{"voters differs: 3 on n1, n2; 5 on n3; --voters counts only when the cluster forms, and " +
			"quorate voters changes the number later"}},
		"versions": {8, func(i int, f *membership.Facts) {
			if i == 8 {
				f.Version = "v2"
			}
		}, []string{"version differs: v1 on n1, n2, n3, n4, n5 and 2 more; v2 on n8"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if diff := cmp.Diff(c.want, texts(differing(t, c.count, c.change).Differences())); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestRoster_FindsMembersByEveryName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := differing(t, 3, func(i int, f *membership.Facts) {
			f.PeerAddr = fmt.Sprintf("10.0.0.%d:7947", i)
			if i == 3 {
				f.Role = membership.Sidecar
			}
		})
		if m, ok := r.Node("n2"); !ok || m.ServerID != "n2.d1" {
			t.Errorf("n2: %+v", m)
		}
		if addr, ok := r.PeerAddr("n2.d1"); !ok || addr != "10.0.0.2:7947" {
			t.Errorf("n2.d1 is at %q", addr)
		}
		for _, unknown := range []string{"n2.d0", "n9.d1", "n2", ""} {
			if addr, ok := r.PeerAddr(unknown); ok {
				t.Errorf("%q is at %q", unknown, addr)
			}
		}
		if _, ok := r.Node("n9"); ok {
			t.Error("n9 is known")
		}
		if len(r.Servers()) != 2 || len(r.Sidecars()) != 1 || len(r.Alive()) != 3 || r.Self().NodeID != "n1" {
			t.Errorf("%+v", r.Members())
		}
		r.Members()[0].NodeID = "changed"
		if r.Self().NodeID != "n1" {
			t.Error("a caller changed the roster")
		}
	})
}

func TestMetrics_AreWellFormed(t *testing.T) {
	o := options(facts("n1"))
	open(t, o)
	families, err := o.Registerer.(*prometheus.Registry).Gather()
	must(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if len(families) != 4 {
		t.Errorf("%d families, 4 are documented", len(families))
	}
}
