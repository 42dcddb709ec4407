package membership

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/quorate/quorate/internal/fault"
)

// FacingAddress returns this machine's address on the way to a seed: the one the system
// would send from. Nothing is sent.
func FacingAddress(seed netip.AddrPort) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(seed))
	if err != nil {
		return netip.Addr{}, &fault.Error{Code: fault.Unavailable, Op: "membership.FacingAddress", Msg: fmt.Sprintf("no way to %s", seed.Addr()), Err: err}
	}
	local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	return local, c.Close()
}

// AdvertiseAddr chooses the address that others reach this node at: the one wanted, else the
// one that is bound if it is a single one, else the one that faces a seed, else the one that
// faces the world. It refuses an address that others cannot use: an unspecified or multicast
// one, and a loopback address when any seed is on another machine. A zero wanted or bind
// means that none is given.
func AdvertiseAddr(wanted, bind netip.Addr, seeds []netip.AddrPort) (netip.Addr, error) {
	addr := wanted.Unmap()
	if !addr.IsValid() && bind.IsValid() && !bind.IsUnspecified() {
		addr = bind.Unmap()
	}
	if !addr.IsValid() {
		addr = facingAny(seeds)
	}
	switch {
	case !addr.IsValid():
		return addr, badAddress("cannot tell at which address others reach this node: it has no way to any seed and no default route")
	case addr.IsUnspecified() || addr.IsMulticast():
		return addr, badAddress("%s is no address that others could reach this node at", addr)
	case addr.IsLoopback() && elsewhere(seeds).IsValid():
		return addr, badAddress("%s can be reached from this machine only, but the seed %s is on another", addr, elsewhere(seeds))
	}
	return addr, nil
}

func badAddress(format string, args ...any) error {
	return &fault.Error{Code: fault.Invalid, Op: "membership.AdvertiseAddr", Msg: fmt.Sprintf(format, args...),
		Hint: "give an address of this machine that all nodes can reach with --advertise-address"}
}

// elsewhere is the first seed that is not on loopback.
func elsewhere(seeds []netip.AddrPort) netip.AddrPort {
	for _, s := range seeds {
		if !s.Addr().Unmap().IsLoopback() {
			return s
		}
	}
	return netip.AddrPort{}
}

// facingAny prefers an address that other machines can reach: a seed may be this machine by
// a name that its own hosts file maps to loopback.
func facingAny(seeds []netip.AddrPort) netip.Addr {
	var loopback netip.Addr
	for _, s := range seeds {
		a, err := FacingAddress(s)
		switch {
		case err != nil:
		case a.IsLoopback():
			loopback = a
		default:
			return a
		}
	}
	if loopback.IsValid() {
		return loopback
	}
	for _, doc := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // addresses reserved for documentation: any default route will do
		if a, err := FacingAddress(netip.MustParseAddrPort(doc)); err == nil && !a.IsLoopback() {
			return a
		}
	}
	return netip.Addr{}
}

// SeedFunc finds the addresses to join, anew at every attempt. It may return addresses and
// an error, when only some could be found. This node's own address among them does no harm.
type SeedFunc func(ctx context.Context) ([]netip.AddrPort, error)
