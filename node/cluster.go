package node

import (
	"context"
	"math"
	"net"
	"net/netip"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/placement"
)

// joining reports whether the node is to be part of a cluster that others know of; without
// it a new data directory becomes a cluster of one, which others may join.
func (c Cluster) joining() bool { return len(c.Join) > 0 }

// buildPeer makes the peer port. It listens already, so that its address is known, and
// serves once the host is there.
func (n *Node) buildPeer(ctx context.Context) error {
	c := n.config.Cluster
	o := peer.Options{Self: n.peerIdentity, Resolve: n.resolve, Dial: n.deps.Dial, Logger: n.log, Registerer: n.registry}
	n.securePeer(&o)
	port, err := peer.New(o)
	if err != nil {
		return err
	}
	for _, method := range raftfsm.Methods() {
		err := port.Handle(peer.Method{Name: method, Handle: func(ctx context.Context, r peer.Request) ([]byte, error) {
			return n.host.Serve(ctx, method, r.Payload)
		}})
		if err != nil {
			return err
		}
	}
	for _, m := range []peer.Method{
		n.catalogueMethod(),
		{Name: methodPromise, Join: true, MaxRequest: 1 << 10, Handle: n.servePromise},
		{Name: methodRemove, MaxRequest: 4 << 10, Handle: n.serveRemove},
		{Name: methodStanding, MaxRequest: 1 << 10, Handle: n.serveStanding},
		{Name: methodExamine, MaxRequest: 1 << 10, Handle: n.serveExamine},
		{Name: methodHold, MaxRequest: 1 << 10, Handle: n.serveHold},
	} {
		if err := port.Handle(m); err != nil {
			return err
		}
	}
	n.peerListeners, err = listen.TCP(ctx, listen.Request{Hosts: []string{c.Bind}, Port: c.Peer.Number, Fallback: !c.Peer.Given && !c.joining(), Flag: "--peer-port"})
	if err != nil {
		return err
	}
	n.port = port
	return n.closers.Push("peer port", func(context.Context) error {
		for _, l := range n.peerListeners {
			_ = l.Close() // harmless if the port has it
		}
		return port.Close()
	})
}

// peerIdentity is what this node says when a connection is made. Raft asks for it already
// while the host is being opened.
func (n *Node) peerIdentity() peer.Identity { return *n.self.Load() }

// introduce notes who this node is towards others.
func (n *Node) introduce() {
	id := n.host.Identity()
	self := peer.Identity{Server: id.Server, Cluster: id.Cluster, Epoch: id.Epoch}
	if n.sidecar() {
		self.Epoch = peer.AnyEpoch
	}
	n.self.Store(&self)
}

// resolve finds a server's peer address in the gossip, or that of a node without replicas
// by its raftfsm.SidecarID.
func (n *Node) resolve(_ context.Context, server string) (string, error) {
	if g := n.gossip.Load(); g != nil {
		r := g.Roster()
		if addr, ok := r.PeerAddr(server); ok {
			return addr, nil
		}
		if m, ok := r.Node(placement.NodeOf(server)); ok && m.Role == membership.Sidecar && server == raftfsm.SidecarID(m.NodeID) {
			return m.PeerAddr, nil
		}
	}
	return "", fault.New(fault.Unavailable, "node.resolve", "gossip knows no address of server "+server)
}

// transport makes the raft transport of a group over the peer port.
func (n *Node) transport(id uint32, server raft.ServerID) raft.Transport {
	n.self.CompareAndSwap(nil, &peer.Identity{Server: string(server)})
	t, err := n.port.Raft(id)
	if err != nil {
		n.deps.Fatal(err) // the port is ours, new and open: this cannot be
		return nil
	}
	n.transportsMu.Lock()
	defer n.transportsMu.Unlock()
	n.transports = append(n.transports, t)
	return t
}

// openPeer lets others reach this node, now that it can answer.
func (n *Node) openPeer(context.Context) error {
	n.introduce()
	if err := n.certify(); err != nil {
		return err
	}
	return n.port.Open(n.peerListeners...)
}

// buildGossip tells others of this node and learns of them.
func (n *Node) buildGossip(ctx context.Context) error {
	o, err := n.gossipOptions(ctx)
	if err != nil {
		return err
	}
	o.Channels = map[byte]membership.Channel{discovery.ChannelNumber: n.catalogue.Load()}
	o.Facts = n.facts(o.Advertise.Addr())
	o.Facts.BootID = n.catalogue.Load().Self().Boot
	n.secureGossip(&o)
	g, err := membership.Open(ctx, o)
	if err != nil {
		return err
	}
	n.gossip.Store(g)
	n.rekeyGossip() // should the keys have changed meanwhile
	n.addrs.Gossip, n.addrs.Peer = g.Addr().String(), o.Facts.PeerAddr
	err = n.closers.Push("gossip", func(ctx context.Context) error {
		leave := g.Leave(ctx)
		if fault.Is(leave, fault.Timeout) {
			n.log.Info("not every node heard that this one leaves; they will notice", "error", leave)
		}
		return g.Close()
	})
	if err != nil {
		return err
	}
	return n.followRoster(g)
}

// gossipOptions are those that come from the settings: where to listen, whom to join.
func (n *Node) gossipOptions(ctx context.Context) (o membership.Options, err error) {
	c := n.config.Cluster
	bind, err := address("--bind-address", c.Bind)
	if err != nil {
		return o, err
	}
	wanted, err := address("--advertise-address", c.Advertise)
	if err != nil {
		return o, err
	}
	o = membership.Options{
		Bind: bind, Port: uint16(c.Gossip.Number), PortFallback: !c.Gossip.Given && !c.joining(), Label: c.Name,
		Timing: c.gossipTiming(), Logger: n.log, Registerer: n.registry,
	}
	var known []netip.AddrPort
	if c.joining() {
		seeds, err := discovery.ParseSeeds(c.Join, defaultGossipPort, net.DefaultResolver)
		if err != nil {
			return o, err
		}
		o.Seeds = seeds.Resolve
		known, _ = seeds.Resolve(ctx) // those that cannot be found now are looked for again
	}
	if n.place.notes != "" {
		o.Seeds = n.neighbourSeeds
	}
	addr, err := membership.AdvertiseAddr(wanted, bind, known)
	if err != nil {
		return o, err
	}
	o.Advertise = netip.AddrPortFrom(addr, 0)
	return o, nil
}

// defaultGossipPort is where a seed that names no port is asked.
const defaultGossipPort = 7946

func address(flag, text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	if text == "localhost" {
		text = "127.0.0.1"
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, &fault.Error{Code: fault.Invalid, Op: "node.Open", Msg: flag + " " + strconv.Quote(text) + " is no IP address", Hint: "give an IP address of this machine"}
	}
	return a, nil
}

func (c Cluster) gossipTiming() membership.Timing {
	if c.Fast {
		t := membership.Loopback()
		t.SuspicionMult = 40 // 4 s: a process that is kept waiting on a busy machine is not a dead one
		return t
	}
	return membership.LAN()
}

// facts are what this node says about itself.
func (n *Node) facts(addr netip.Addr) membership.Facts {
	id := n.host.Identity()
	f := membership.Facts{
		NodeID: id.Node, ServerID: id.Server, Role: membership.Server,
		PeerAddr:  netip.AddrPortFrom(addr, uint16(listen.Port(n.peerListeners[0]))).String(),
		ClusterID: id.Cluster, Epoch: uint32(id.Epoch), Partitions: id.Partitions, BootstrapExpect: uint32(n.config.Cluster.BootstrapExpect),
		Voters: uint32(n.config.Cluster.Voters), Format: id.Format, Formats: formats(), Version: n.config.Version,
	}
	f.MetricsAddr = metricsAddr(n.addrs.Metrics, addr)
	if n.sidecar() {
		f.Role, f.ServerID, f.Partitions, f.Voters = membership.Sidecar, "", uint32(n.config.Cluster.Partitions), 0
	}
	return f
}

// formats are the newest ones that this version understands.
func formats() membership.Formats {
	return membership.Formats{Command: command.Version, Snapshot: 1, RPC: raftfsm.ForwardVersion}
}

// newestFormat is the highest version of log entries that a server understands, by what it
// says itself. One that is not alive may come back as anything.
func (n *Node) newestFormat(server string) (version uint8, known bool) {
	g := n.gossip.Load()
	if g == nil {
		return 0, false
	}
	m, ok := g.Roster().Node(placement.NodeOf(server))
	if !ok || m.ServerID != server || m.State != membership.Alive {
		return 0, false
	}
	return uint8(min(m.Formats.Command, math.MaxUint8)), true
}

// handOver gives leadership away before this node stops, so that the others need not wait
// for a time-out.
func (n *Node) handOver(ctx context.Context) error {
	for i, g := range n.host.Groups() {
		s := g.Status()
		if !g.Leading() || s.Voters() < 2 {
			continue
		}
		if err := g.Transfer(ctx, ""); err != nil {
			n.log.Info("leadership could not be handed over; the others elect a leader after a time-out", "group", i, "error", err)
		}
	}
	return nil
}
