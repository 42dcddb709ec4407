package membership_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
)

func TestFacingAddress_IsOnNetworkOfSeed(t *testing.T) {
	for seed, want := range map[string]string{"127.0.0.1:7946": "127.0.0.1", "127.3.4.5:1": "127.0.0.1"} {
		got, err := membership.FacingAddress(netip.MustParseAddrPort(seed))
		must(t, err)
		if got.String() != want {
			t.Errorf("%s faces %s, want %s", got, seed, want)
		}
	}
}

func TestAdvertiseAddr_IsReachable(t *testing.T) {
	const near, far = "127.0.0.1:7946", "192.0.2.7:7946"
	for _, c := range []struct {
		name, wanted, bind string
		seeds              []string
		want, refusal      string
	}{
		{"what is wanted counts", "10.0.0.9", "127.0.0.1", []string{near}, "10.0.0.9", ""},
		{"an IPv4 address in IPv6 form is plain", "::ffff:10.0.0.9", "", nil, "10.0.0.9", ""},
		{"then the one that is bound", "", "127.0.0.2", []string{near}, "127.0.0.2", ""},
		{"then the one that faces a seed", "", "0.0.0.0", []string{near}, "127.0.0.1", ""},
		{"also without a bound address", "", "", []string{near}, "127.0.0.1", ""},
		{"an unspecified address is refused", "0.0.0.0", "", nil, "", "cannot reach this node at 0.0.0.0"},
		{"also in IPv6", "::", "", nil, "", "cannot reach this node at ::"},
		{"a multicast address is refused", "224.0.0.1", "", nil, "", "cannot reach this node at 224.0.0.1"},
		{"loopback is refused where a seed is elsewhere", "127.0.0.1", "", []string{near, far}, "",
			"the seed 192.0.2.7:7946 is on another"},
		{"bound loopback too", "", "127.0.0.1", []string{far}, "", "127.0.0.1 can be reached from this machine only"},
		{"loopback is fine among loopback", "127.0.0.1", "", []string{near, "127.0.0.2:1"}, "127.0.0.1", ""},
		{"loopback is fine alone", "", "127.0.0.1", nil, "127.0.0.1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var wanted, bind netip.Addr
			if c.wanted != "" {
				wanted = netip.MustParseAddr(c.wanted)
			}
			if c.bind != "" {
				bind = netip.MustParseAddr(c.bind)
			}
			var seeds []netip.AddrPort
			for _, s := range c.seeds {
				seeds = append(seeds, netip.MustParseAddrPort(s))
			}
			got, err := membership.AdvertiseAddr(wanted, bind, seeds)
			if c.refusal != "" {
				if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(err), c.refusal) ||
					!strings.Contains(fault.Text(err), "--advertise-address") {
					t.Errorf("%v", err)
				}
				return
			}
			must(t, err)
			if got.String() != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
