package membership_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/membership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

// eventually polls until check passes.
func eventually(t testing.TB, check func() error) { t.Helper(); testutil.Eventually(t, check) }

// facts returns the facts of a server with a node id.
func facts(node string) membership.Facts {
	return membership.Facts{NodeID: node, ServerID: node + ".d1", Role: membership.Server, PeerAddr: "127.0.0.1:7947",
		Version:    "v1",
		Partitions: 1, NewestFormat: 1}
}

// record is a log that tests can read.
type record struct {
	mu sync.Mutex
	b  strings.Builder
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// count returns how many lines contain all words.
func (r *record) count(words ...string) int {
	n := 0
	for line := range strings.Lines(r.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			n++
		}
	}
	return n
}

func logTo(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// options returns the options of a node on loopback that joins the given members.
func options(f membership.Facts, seeds ...*membership.Gossip) membership.Options {
	o := membership.Options{Facts: f, Bind: netip.MustParseAddr("127.0.0.1"), Label: "test",
		Timing: membership.Loopback(),
		Logger: logTo(io.Discard), Registerer: prometheus.NewRegistry()}
	if len(seeds) > 0 {
		o.Seeds = func(context.Context) ([]netip.AddrPort, error) {
			var out []netip.AddrPort
			for _, s := range seeds {
				out = append(out, s.Addr())
			}
			return out, nil
		}
	}
	return o
}

// suspectLong makes a node suspect a silent member for so long that no node of a busy machine is declared failed.
func suspectLong(o *membership.Options) { o.Timing.SuspicionMult = 40 }

// open starts a node that is closed at the end of the test.
func open(t testing.TB, o membership.Options) *membership.Gossip {
	t.Helper()
	g, err := membership.Open(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// cluster starts n nodes n1, n2 and so on; all join the first.
func cluster(t testing.TB, n int) []*membership.Gossip {
	t.Helper()
	return clusterWith(t, n, func(*membership.Options) {})
}

// clusterWith is cluster, but first passes the options of each node to change.
func clusterWith(t testing.TB, n int, change func(*membership.Options)) []*membership.Gossip {
	t.Helper()
	var all []*membership.Gossip
	for i := range n {
		o := options(facts(fmt.Sprintf("n%d", i+1)), all[:min(i, 1)]...)
		change(&o)
		all = append(all, open(t, o))
	}
	for _, g := range all {
		sees(t, g, states(all))
	}
	return all
}

// states returns the view of a cluster whose nodes are all alive.
func states(all []*membership.Gossip) string {
	var out []string
	for _, g := range all {
		out = append(out, g.Roster().Self().NodeID+" alive")
	}
	return strings.Join(out, ", ")
}

// view formats a roster: "n1 alive, n2 failed".
func view(r *membership.Roster) string {
	var out []string
	for _, m := range r.Members() {
		out = append(out, m.NodeID+" "+m.State.String())
	}
	return strings.Join(out, ", ")
}

// sees waits until a node has the given view.
func sees(t testing.TB, g *membership.Gossip, want string) {
	t.Helper()
	eventually(t, func() error {
		if got := view(g.Roster()); got != want {
			return fmt.Errorf("%s sees %q, want %q", g.Roster().Self().NodeID, got, want)
		}
		return nil
	})
}

// metric returns the value of a metric with these label values.
func metric(t testing.TB, o membership.Options, name string, labels ...string) float64 {
	t.Helper()
	families, err := o.Registerer.(*prometheus.Registry).Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			slices.Sort(have)
			want := slices.Sorted(slices.Values(labels))
			if f.GetName() == name && slices.Equal(have, want) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no metric %s %q", name, labels)
	return 0
}

// until waits until cond returns true. what is the error if that takes too long.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	eventually(t, func() error {
		if !cond() {
			return errors.New(what)
		}
		return nil
	})
}
