package faulttest

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// port returns a UDP socket of one host of a network.
func port(t *testing.T, n *Network, addr netip.Addr) *net.UDPConn {
	t.Helper()
	ns, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.close)
	if err := n.attach(ns, addr); err != nil {
		t.Fatal(err)
	}
	var c *net.UDPConn
	err = ns.do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 7)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		if err := n.detach(addr); err != nil {
			t.Error(err)
		}
	})
	return c
}

// arrive sends packets from one port to another and counts those that arrive.
func arrive(t *testing.T, from, to *net.UDPConn, packets int) (n int, took time.Duration) {
	t.Helper()
	begin := time.Now()
	for range packets {
		if _, err := from.WriteTo([]byte("x"), to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	for n < packets {
		_ = to.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, _, err := to.ReadFrom(make([]byte, 10)); err != nil {
			break
		}
		n, took = n+1, time.Since(begin)
	}
	return n, took
}

// A fault without an effect would hide failures of the product, so this tests the effect of faults on a link.
func TestLink_FaultsAreOneWay(t *testing.T) {
	if err := Supported(false); err != nil {
		t.Skip(err)
	}
	n := newNetwork()
	a, b := netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")
	t.Cleanup(n.close)
	pa, pb := port(t, n, a), port(t, n, b)
	if got, _ := arrive(t, pa, pb, 20); got != 20 {
		t.Fatalf("%d of 20 packets arrive over a good wire", got)
	}
	n.Set(a, b, Link{Cut: true})
	if got, _ := arrive(t, pa, pb, 20); got != 0 {
		t.Errorf("%d packets arrive over a link that is cut", got)
	}
	if got, _ := arrive(t, pb, pa, 20); got != 20 {
		t.Errorf("%d of 20 packets arrive in the other direction", got)
	}
	n.Set(a, b, Link{Delay: 80 * time.Millisecond})
	if got, took := arrive(t, pa, pb, 20); got != 20 || took < 80*time.Millisecond {
		t.Errorf("%d of 20 delayed packets arrive within %s", got, took)
	}
	n.Set(a, b, Link{Loss: 0.5})
	if got, _ := arrive(t, pa, pb, 200); got < 40 || got > 160 {
		t.Errorf("%d of 200 packets arrive over a link that loses half of them", got)
	}
	n.Heal()
	if got, _ := arrive(t, pa, pb, 20); got != 20 {
		t.Errorf("%d of 20 packets arrive over a link that was healed", got)
	}
}

// A schedule depends only on its seed.
func TestSchedule_IsDeterminedByItsSeed(t *testing.T) {
	choice := []Fault{Kill(true), Pause(true), Isolate(), Bridge()}
	one, same, other := Random(1, 12, choice...), Random(1, 12, choice...), Random(2, 12, choice...)
	if one.String() != same.String() {
		t.Errorf("%s\n%s", one, same)
	}
	if one.String() == other.String() {
		t.Error("two seeds make one schedule")
	}
	seen := map[string]bool{}
	for _, s := range one.Steps[:4] {
		seen[s.Fault.Name] = true
	}
	if len(seen) != 4 {
		t.Errorf("a fault is repeated before every fault was used: %s", one)
	}
}

// Skips with what is missing on this machine.
func TestEnvironment_CanInjectFaults(t *testing.T) {
	if err := Supported(true); err != nil {
		t.Skip(err)
	}
}
