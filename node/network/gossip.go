package network

import (
	"context"
	"net"
	"net/netip"
	"strconv"

	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/datadir"
)

// Self is what this node announces about itself.
type Self struct {
	Identity datadir.Identity
	Boot     string // id of this run of the node
	Metrics  string // host:port of the metrics listener; empty = off
}

// OpenGossip announces this node to other nodes and starts to discover them. The parameter channels has gossip channels
// that belong to other packages, by channel number.
func (n *Network) OpenGossip(ctx context.Context, self Self, channels map[byte]membership.Channel) error {
	o, err := n.gossipOptions(ctx)
	if err != nil {
		return err
	}
	o.Channels, o.Facts = channels, n.facts(self, o.Advertise.Addr())
	n.opts.Credentials.SecureGossip(&o)
	g, err := membership.Open(ctx, o)
	if err != nil {
		return err
	}
	n.gossip.Store(g)
	n.rekey() // the keys may have changed in the meantime
	return nil
}

// CloseGossip announces that this node stops, and closes gossip.
func (n *Network) CloseGossip(ctx context.Context) error {
	g := n.gossip.Load()
	leave := g.Leave(ctx)
	if fault.Is(leave, fault.Timeout) {
		n.opts.Logger.Info("not all nodes were informed that this node stops; they will detect it", "error", leave)
	}
	return g.Close()
}

// gossipOptions converts the settings to options for gossip, for example the addresses to listen on and to advertise,
// and the nodes to join.
func (n *Network) gossipOptions(ctx context.Context) (o membership.Options, err error) {
	bind, err := address("--bind-address", n.opts.Bind)
	if err != nil {
		return o, err
	}
	wanted, err := address("--advertise-address", n.opts.Advertise)
	if err != nil {
		return o, err
	}
	o = membership.Options{
		Bind: bind, Port: uint16(n.opts.Gossip.Number), PortFallback: n.opts.Gossip.Fallback, Label: n.opts.Cluster,
		Timing: timing(n.opts.Fast), Logger: n.opts.Logger, Registerer: n.opts.Registerer,
	}
	var known []netip.AddrPort
	if len(n.opts.Join) > 0 {
		seeds, err := discovery.ParseSeeds(n.opts.Join, DefaultGossipPort, net.DefaultResolver)
		if err != nil {
			return o, err
		}
		o.Seeds = seeds.Resolve
		known, _ = seeds.Resolve(ctx) // names that cannot be resolved now are tried again later
	}
	if n.opts.Notes != "" {
		o.Seeds = n.notedSeeds
	}
	addr, err := membership.AdvertiseAddr(wanted, bind, known)
	if err != nil {
		return o, err
	}
	o.Advertise = netip.AddrPortFrom(addr, 0)
	return o, nil
}

// The default ports. DefaultGossipPort is also the port of a seed without a port.
const (
	DefaultGossipPort = 7946
	DefaultPeerPort   = 7947
)

func address(flag, text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	if text == "localhost" {
		text = "127.0.0.1"
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, &fault.Error{Code: fault.Invalid, Op: "node.Open", Msg: flag + " " + strconv.Quote(text) +
			" is not an IP address", Hint: "give an IP address of this machine"}
	}
	return a, nil
}

func timing(fast bool) membership.Timing {
	if fast {
		t := membership.Loopback()
		t.SuspicionMult = 40 // 4 s, because on a busy machine a live process may be slow to answer
		return t
	}
	return membership.LAN()
}

// notedSeeds returns the gossip addresses of the other live nodes that this user runs on this host. It reads the
// addresses from the notes of these nodes.
func (n *Network) notedSeeds(context.Context) ([]netip.AddrPort, error) {
	list, err := hostshare.List(n.opts.Notes)
	var out []netip.AddrPort
	for _, other := range list {
		g := n.gossip.Load()
		if at, bad := netip.ParseAddrPort(other.Gossip); bad == nil && (g == nil || g.Addr() != at) {
			out = append(out, at)
		}
	}
	return out, err
}

// facts returns the facts that this node gossips about itself.
func (n *Network) facts(self Self, addr netip.Addr) membership.Facts {
	id := self.Identity
	f := membership.Facts{
		NodeID: id.Node, ServerID: id.Server, Role: membership.Server, BootID: self.Boot,
		PeerAddr:  n.peerAddr(addr),
		ClusterID: id.Cluster, Epoch: uint32(id.Epoch), Partitions: id.Partitions,
		BootstrapExpect: uint32(n.opts.BootstrapExpect),
		Voters:          n.opts.Voters, Format: id.Format, NewestFormat: command.Version, Version: n.opts.Version,
		MetricsAddr: metricsAddr(self.Metrics, addr),
	}
	if n.opts.Sidecar {
		f.Role, f.ServerID, f.Partitions, f.Voters = membership.Sidecar, "", n.opts.Partitions, 0
	}
	return f
}

func (n *Network) peerAddr(addr netip.Addr) string {
	return netip.AddrPortFrom(addr, uint16(listen.Port(n.listeners[0]))).String()
}

// metricsAddr returns the address at which other nodes can reach the metrics of this node, or "" if they cannot.
// listener is the address of the metrics listener, and advertised is the address that this node announces by gossip.
func metricsAddr(listener string, advertised netip.Addr) string {
	bound, err := netip.ParseAddrPort(listener)
	if err != nil { // off
		return ""
	}
	ip := bound.Addr().Unmap()
	switch {
	case ip.IsUnspecified():
		ip = advertised
	case ip.IsLoopback() && !advertised.Unmap().IsLoopback():
		return "" // on other machines, this address is their own
	}
	return netip.AddrPortFrom(ip, bound.Port()).String()
}
