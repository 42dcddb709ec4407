package network_test

import (
	"net/netip"
	"testing"

	"github.com/quorate/quorate/node/network"
)

func TestMetricsAddr_OnlyIfReachable(t *testing.T) {
	for _, c := range []struct{ listens, advertised, want string }{
		{"", "10.0.0.1", ""},
		{"0.0.0.0:9090", "10.0.0.1", "10.0.0.1:9090"},
		{"[::]:9090", "fd00::1", "[fd00::1]:9090"},
		{"10.9.0.1:9091", "10.0.0.1", "10.9.0.1:9091"},
		{"127.0.0.1:9090", "127.0.0.1", "127.0.0.1:9090"},
		{"127.0.0.1:9090", "10.0.0.1", ""},
		{"[::1]:9090", "::1", "[::1]:9090"},
	} {
		if got := network.MetricsAddr(c.listens, netip.MustParseAddr(c.advertised)); got != c.want {
			t.Errorf("listening on %q, known as %s: got %q, want %q", c.listens, c.advertised, got, c.want)
		}
	}
}
