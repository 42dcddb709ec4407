package membership_test

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
)

const boot = "0193b2c4d5e1a2b3c4d"

// full returns facts with every field set.
func full() membership.Facts {
	return membership.Facts{NodeID: "n1", ServerID: "n1.0123456789abcdef", BootID: boot, Role: membership.Server,
		PeerAddr:  "10.1.2.3:7947",
		ClusterID: "fedcba9876543210", Partitions: 16, BootstrapExpect: 3,
		NewestFormat: 300, Leads: 5, DiskSlow: true, Version: "v1.2.3", MetricsAddr: "10.1.2.3:9090"}
}

// TestFacts_EncodingIsStable compares with bytes of version 1, because nodes of one cluster may be
// one version apart.
func TestFacts_EncodingIsStable(t *testing.T) {
	small := membership.Facts{NodeID: "s1", BootID: boot, Role: membership.Sidecar, PeerAddr: "h:1"}
	for name, c := range map[string]struct {
		facts membership.Facts
		bytes string
	}{
		"every field": {full(), "01" + "010101" + "0210" + hex.EncodeToString([]byte("0123456789abcdef")) + "030d" +
			hex.EncodeToString([]byte("10.1.2.3:7947")) +
			"0410" + hex.EncodeToString([]byte("fedcba9876543210")) + "050110" + "060103" + "0702ac02" +
			"080105" + "090101" + "0a06" +
			hex.EncodeToString([]byte("v1.2.3")) + "0d04" + hex.EncodeToString([]byte("9090"))},
		"metrics elsewhere": {func() membership.Facts {
			f := small
			f.MetricsAddr = "[fd00::7]:9090"
			return f
		}(), "01" + "010102" + "0303" + hex.EncodeToString([]byte("h:1")) + "0d0e" +
			hex.EncodeToString([]byte("[fd00::7]:9090"))},
		"after a rescue": {func() membership.Facts {
			f := small
			f.Epoch = 1<<20 + 3
			return f
		}(), "01" + "010102" + "0303" + hex.EncodeToString([]byte("h:1")) + "0b03838040"},
		"newer log entries": {func() membership.Facts {
			f := small
			f.Format = 2
			return f
		}(), "01" + "010102" + "0303" + hex.EncodeToString([]byte("h:1")) + "0c0102"},
		"with voters": {func() membership.Facts {
			f := small
			f.Voters = 5
			return f
		}(), "01" + "010102" + "0303" + hex.EncodeToString([]byte("h:1")) + "0e0105"},
		"only what must be": {small, "01" + "010102" + "0303" + hex.EncodeToString([]byte("h:1"))},
	} {
		if diff := cmp.Diff(c.bytes, hex.EncodeToString(c.facts.Encode())); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		got, err := membership.Decode(c.facts.Name(), c.facts.Encode())
		must(t, err)
		if diff := cmp.Diff(c.facts, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestFacts_SkipUnknownFields(t *testing.T) {
	f := full()
	meta := append(f.Encode(), 99, 3, 'n', 'e', 'w', 200, 1, 0xff)
	got, err := membership.Decode(f.Name(), meta)
	must(t, err)
	if diff := cmp.Diff(f, got); diff != "" {
		t.Error(diff)
	}
}

func TestFacts_RefuseDamage(t *testing.T) {
	f := full()
	good := f.Encode()
	for name, c := range map[string]struct {
		name string
		meta []byte
	}{
		"nothing":              {f.Name(), nil},
		"another version":      {f.Name(), append([]byte{2}, good[1:]...)},
		"a field twice":        {f.Name(), append(bytes.Clone(good), good[len(good)-6:]...)},
		"tags out of order":    {f.Name(), []byte{1, 3, 3, 'h', ':', '1', 1, 1, 2}},
		"a cut field":          {f.Name(), good[:len(good)-1]},
		"a cut length":         {f.Name(), append(bytes.Clone(good), 17)},
		"an empty text":        {f.Name(), append(bytes.Clone(good[:len(good)-6]), 13, 0)},
		"a number of no bytes": {f.Name(), []byte{1, 1, 0}},
		"a number of zero":     {f.Name(), []byte{1, 1, 1, 0}},
		"a number too large": {f.Name(), []byte{1, 1, 1, 2, 3, 3, 'h', ':', '1', 5, 5, 0xff, 0xff, 0xff, 0xff,
			0x7f}},
		"a role beyond a byte":   {f.Name(), []byte{1, 1, 2, 0x81, 0x02}},
		"an unknown role":        {f.Name(), []byte{1, 1, 1, 9, 3, 3, 'h', ':', '1'}},
		"no peer address":        {f.Name(), []byte{1, 1, 1, 2}},
		"a name without a boot":  {"n1", good},
		"a name of another kind": {"n 1/" + boot, good},
		"too many bytes": {f.Name(), append(bytes.Clone(good),
			append([]byte{99, 0xff, 0x07}, make([]byte, 1023)...)...)},
		"a metrics port of no use": {f.Name(), append(bytes.Clone(good[:len(good)-6]), 13, 1, '0')},
		"metrics without a port":   {f.Name(), append(bytes.Clone(good[:len(good)-6]), 13, 2, 'a', ':')},
		"a boot id too long":       {"n1/" + boot + "0", good},
	} {
		if _, err := membership.Decode(c.name, c.meta); !fault.Is(err, fault.Unimplemented) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFacts_FitOrAreRefused tries lengths on both sides of every limit. Facts that Open accepts must also fit with
// the longest values of their changing fields.
func TestFacts_FitOrAreRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := func(most int) string { return strings.Repeat("x", 1+rng.IntN(most)) }
	took, refused := 0, 0
	for range 400 {
		f := facts(text(membership.MaxNodeID + 10))
		f.ServerID = f.NodeID + "." + text(200)
		f.PeerAddr = text(270) + ":65535"
		f.Version = text(200)
		f.MetricsAddr = text(60) + ":65535"
		f.Partitions, f.BootstrapExpect, f.NewestFormat = rng.Uint32(), rng.Uint32(), rng.Uint32()
		f.BootID = membership.NewBootID()
		g, err := membership.Open(t.Context(), options(f))
		if err != nil {
			if code := fault.CodeOf(err); code != fault.TooLarge && code != fault.Invalid {
				t.Fatalf("refused with %v", err)
			}
			refused++
			continue
		}
		took++
		must(t, g.UpdateFacts(func(f *membership.Facts) {
			f.ClusterID, f.Leads, f.DiskSlow = strings.Repeat("c", 32), 1<<32-1, true
			f.Epoch, f.Format, f.Voters = 1<<32-1, 1<<8-1, 1<<32-1
		}))
		if n := len(g.Roster().Self().Encode()); n > memberlist.MetaMaxSize {
			t.Errorf("%d bytes were taken", n)
		}
		must(t, g.Close())
	}
	if took < 20 || refused < 20 {
		t.Errorf("%d taken, %d refused: the lengths tried are one-sided", took, refused)
	}
}

func TestFacts_TooLongNamesWhatToShorten(t *testing.T) {
	f := facts("n1")
	f.Version = strings.Repeat("v", 480)
	_, err := membership.Open(t.Context(), options(f))
	if !fault.Is(err, fault.TooLarge) || !strings.Contains(fault.Text(err), "the version (480)") {
		t.Errorf("%v", err)
	}
}

func TestBootID_SortsByTime(t *testing.T) {
	seen := map[string]bool{}
	last := ""
	for range 1000 {
		id := membership.NewBootID()
		if seen[id] || len(id) != len(boot) || id[:11] < last {
			t.Fatalf("boot id %q after one that begins with %q", id, last)
		}
		seen[id], last = true, id[:11]
	}
}

func TestRoleAndState_String(t *testing.T) {
	got := []string{membership.Server.String(), membership.Sidecar.String(), membership.Role(7).String(),
		membership.Alive.String(), membership.Left.String(), membership.Failed.String(), membership.State(7).String()}
	if diff := cmp.Diff([]string{"server", "sidecar", "role(7)", "alive", "left", "failed", "state(7)"},
		got); diff != "" {
		t.Error(diff)
	}
}

func FuzzFacts(f *testing.F) {
	all := full()
	f.Add(all.Name(), all.Encode())
	f.Add("n1/"+boot, []byte{1, 1, 1, 2, 3, 3, 'h', ':', '1'})
	f.Add("", []byte{1})
	f.Fuzz(func(t *testing.T, name string, meta []byte) {
		facts, err := membership.Decode(name, meta)
		if err != nil {
			if len(fault.Text(err)) > 2_000 {
				t.Errorf("an error of %d bytes", len(fault.Text(err)))
			}
			return
		}
		again, err := membership.Decode(facts.Name(), facts.Encode())
		if diff := cmp.Diff(facts, again); err != nil || diff != "" || facts.Name() != name {
			t.Errorf("%v %s", err, diff)
		}
	})
}

// A duplicate node without a cluster has a newer incarnation than the node whose id it uses, and members know both
// for a while. A node of another cluster must still be refused.
func TestAgree_NewerIncarnationDoesNotHideCluster(t *testing.T) {
	incarnation := func(node, boot, cluster string) membership.Member {
		return membership.Member{Facts: membership.Facts{NodeID: node, BootID: boot, Role: membership.Server,
			ClusterID: cluster}, State: membership.Alive}
	}
	old, young := incarnation("n1", "1", "a"), incarnation("n1", "2", "")
	for name, c := range map[string]struct {
		members, others []membership.Member
		want            membership.Reason
	}{
		"seen by the stranger": {[]membership.Member{incarnation("x", "3", "b")}, []membership.Member{old, young},
			membership.ForeignCluster},
		"in the other order": {[]membership.Member{incarnation("x", "3", "b")}, []membership.Member{young, old},
			membership.ForeignCluster},
		"the younger is known": {[]membership.Member{incarnation("x", "3", "b"), young}, []membership.Member{old},
			membership.ForeignCluster},
		"seen by the cluster": {[]membership.Member{old, young}, []membership.Member{incarnation("x", "3", "b")},
			membership.ForeignCluster},
		"a wiped disk comes back": {[]membership.Member{incarnation("n2", "1", "a"), old}, []membership.Member{young},
			""},
		"a restart in the same cluster": {[]membership.Member{old}, []membership.Member{incarnation("n1", "2", "a")},
			""},
		"one that belongs to none joins": {[]membership.Member{old}, []membership.Member{incarnation("x", "3", "")},
			""},
	} {
		if got := membership.Agree(c.members, c.others); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
