package membership_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/membership"
)

// network carries gossip in memory, for tests in virtual time. It can be cut.
type network struct {
	mu    sync.Mutex
	wires map[netip.AddrPort]*wire
	next  uint16
	cut   func(from, to netip.AddrPort, packet bool) bool // nil = nothing is lost
}

// newNetwork creates a network. Its cleanup gives the goroutines of memberlist time to end. Memberlist does not wait
// for all of them, and virtual time stops with the test.
func newNetwork(t testing.TB) *network {
	t.Cleanup(func() { <-time.After(time.Minute) })
	return &network{wires: map[netip.AddrPort]*wire{}, next: 1000}
}

// lose drops the packets and connections for which f is true.
func (n *network) lose(f func(from, to netip.AddrPort, packet bool) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = f
}

// open starts a node with an address of its own; it is closed at the end of the test.
func (n *network) open(t testing.TB, o membership.Options) *membership.Gossip {
	t.Helper()
	n.mu.Lock()
	n.next++
	at := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), n.next)
	w := &wire{network: n, at: at, packets: make(chan *memberlist.Packet, 256), streams: make(chan net.Conn, 16)}
	n.wires[at] = w
	n.mu.Unlock()
	g, err := membership.OpenOn(o, w, at)
	must(t, err)
	t.Cleanup(func() { must(t, g.Close()) })
	return g
}

// find returns the wire of an address; nil if the traffic is dropped.
func (n *network) find(from netip.AddrPort, to string, packet bool) *wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	addr, err := netip.ParseAddrPort(to)
	w := n.wires[addr]
	if err != nil || w == nil || n.cut != nil && n.cut(from, addr, packet) {
		return nil
	}
	return w
}

// wire is one node's transport.
type wire struct {
	network *network
	at      netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (w *wire) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return w.at.Addr().AsSlice(), int(w.at.Port()), nil
}

// PacketCh implements memberlist.Transport.
func (w *wire) PacketCh() <-chan *memberlist.Packet { return w.packets }

// StreamCh implements memberlist.Transport.
func (w *wire) StreamCh() <-chan net.Conn { return w.streams }

// WriteTo implements memberlist.Transport.
func (w *wire) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	if to := w.network.find(w.at, addr, true); to != nil {
		select {
		case to.packets <- &memberlist.Packet{Buf: append([]byte(nil), b...), From: net.UDPAddrFromAddrPort(w.at),
			Timestamp: now}:
		default:
		}
	}
	return now, nil
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (w *wire) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return w.WriteTo(b, a.Addr)
}

// DialTimeout implements memberlist.Transport.
func (w *wire) DialTimeout(addr string, _ time.Duration) (net.Conn, error) {
	to := w.network.find(w.at, addr, false)
	if to == nil {
		return nil, errors.New("no route")
	}
	here, there := net.Pipe()
	select {
	case to.streams <- there:
		return here, nil
	default:
		return nil, errors.New("backlog is full")
	}
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (w *wire) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	return w.DialTimeout(a.Addr, d)
}

// Shutdown implements memberlist.Transport.
func (w *wire) Shutdown() error {
	w.network.mu.Lock()
	defer w.network.mu.Unlock()
	delete(w.network.wires, w.at)
	return nil
}

// lan returns options with the LAN timing.
func lan(f membership.Facts, seeds ...*membership.Gossip) membership.Options {
	o := options(f, seeds...)
	o.Timing = membership.LAN()
	return o
}

// fleet starts n nodes that all join the first.
func (n *network) fleet(t testing.TB, count int) []*membership.Gossip {
	t.Helper()
	var all []*membership.Gossip
	for i := range count {
		all = append(all, n.open(t, lan(facts(fmt.Sprintf("n%02d", i+1)), all[:min(i, 1)]...)))
	}
	return all
}

// within lets time pass until every node has the wanted view, and returns how long it took.
func within(t testing.TB, d time.Duration, all []*membership.Gossip, want string) time.Duration {
	t.Helper()
	from := time.Now()
	for {
		odd := ""
		for _, g := range all {
			if got := view(g.Roster()); got != want {
				odd = fmt.Sprintf("%s sees %q, want %q", g.Roster().Self().NodeID, got, want)
			}
		}
		if odd == "" {
			return time.Since(from)
		}
		if time.Since(from) > d {
			t.Fatalf("not within %s: %s", d, odd)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// aMinute returns a context that ends after a minute. Without an end, virtual time would run forever.
func aMinute(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// joins waits until a node has joined.
func joins(t testing.TB, g *membership.Gossip) {
	t.Helper()
	must(t, g.Joined(aMinute(t)))
}
