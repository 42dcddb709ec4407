package membership

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/quorate/quorate/internal/fault"
)

// FacingAddress returns the local address from which the system would send packets to seed. It sends no packet. It
// returns fault.Unavailable if there is no route to seed.
func FacingAddress(seed netip.AddrPort) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(seed))
	if err != nil {
		return netip.Addr{}, &fault.Error{Code: fault.Unavailable, Op: "membership.FacingAddress",
			Msg: fmt.Sprintf("no way to %s", seed.Addr()), Err: err}
	}
	local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	return local, c.Close()
}

// AdvertiseAddr chooses the address that this node announces to other nodes. It returns the first of these addresses
// that exists:
//
//  1. wanted
//  2. bind, if it is a single address
//  3. the local address of the route to a seed
//  4. the local address of the default route
//
// It returns fault.Invalid if none exists, or if other nodes could not use the chosen address. An unspecified or
// multicast address is never usable. A loopback address is usable only if the addresses of all seeds are loopback, too.
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
		return addr, badAddress("cannot tell at which address others reach this node: it has no way to any " +
			"seed and no default route")
	case addr.IsUnspecified() || addr.IsMulticast():
		return addr, badAddress("other nodes cannot reach this node at %s", addr)
	case addr.IsLoopback() && elsewhere(seeds).IsValid():
		return addr, badAddress("%s can be reached from this machine only, but the seed %s is on another", addr,
			elsewhere(seeds))
	}
	return addr, nil
}

func badAddress(format string, args ...any) error {
	return &fault.Error{Code: fault.Invalid, Op: "membership.AdvertiseAddr", Msg: fmt.Sprintf(format, args...),
		Hint: "give an address of this machine that all nodes can reach with --advertise-address"}
}

// elsewhere returns the first seed that is not on loopback. It returns the zero AddrPort if there is none.
func elsewhere(seeds []netip.AddrPort) netip.AddrPort {
	for _, s := range seeds {
		if !s.Addr().Unmap().IsLoopback() {
			return s
		}
	}
	return netip.AddrPort{}
}

// facingAny returns the local address of the route to a seed, preferably one that is not loopback. If there is no route
// to a seed, it returns the local address of the default route. Without a default route, it returns the zero Addr.
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
	// addresses reserved for documentation; any default route will do
	for _, doc := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		if a, err := FacingAddress(netip.MustParseAddrPort(doc)); err == nil && !a.IsLoopback() {
			return a
		}
	}
	return netip.Addr{}
}

// SeedFunc returns the addresses of the seeds, the nodes through which this node joins the cluster. This node may be a
// seed itself. If some host names cannot be resolved, SeedFunc returns the other addresses and an error. It is called
// before every attempt to join.
type SeedFunc func(ctx context.Context) ([]netip.AddrPort, error)
