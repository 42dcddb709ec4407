package membership

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/quorate/quorate/internal/fault"
)

// FacingAddress returns the address of this machine from which the system would send packets to the address seed. It
// sends no packet. If there is no route to seed, it returns fault.Unavailable.
func FacingAddress(seed netip.AddrPort) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(seed))
	if err != nil {
		return netip.Addr{}, &fault.Error{Code: fault.Unavailable, Op: "membership.FacingAddress",
			Msg: fmt.Sprintf("no way to %s", seed.Addr()), Err: err}
	}
	local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	return local, c.Close()
}

// AdvertiseAddr chooses the address at which other nodes reach this node. It uses the first of these that is given:
//
//  1. the parameter wanted
//  2. the parameter bind, if it is a single address
//  3. the local address of the route to a seed, or of the default route
//
// The zero Addr means not given. AdvertiseAddr returns fault.Invalid if there is no address, or if the address is
// unspecified or multicast. A loopback address is also invalid if a seed is on another machine.
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

// elsewhere returns the first seed that is not on loopback.
func elsewhere(seeds []netip.AddrPort) netip.AddrPort {
	for _, s := range seeds {
		if !s.Addr().Unmap().IsLoopback() {
			return s
		}
	}
	return netip.AddrPort{}
}

// facingAny returns the local address of the route to one of the seeds, or of the default route. It prefers addresses
// other than loopback. If there is no route at all, it returns the zero Addr.
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

// SeedFunc returns the addresses of the seeds, which are the nodes to join. They may include this node. SeedFunc is
// called at every attempt to join. If it can resolve only some of the names, it returns the addresses of these and an
// error.
type SeedFunc func(ctx context.Context) ([]netip.AddrPort, error)
