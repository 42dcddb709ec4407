package network

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/node/credentials"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Port is a port to listen on.
type Port struct {
	Number   int  // 0 = any free one
	Fallback bool // take any free one if Number is taken
}

// Options configure how other nodes reach this node, and which nodes it joins. Bind, Logger, Registerer and Fatal are
// required.
type Options struct {
	Cluster   string // name of the cluster; nodes of other clusters are refused
	Bind      string // IP address or localhost
	Advertise string // IP address for other nodes; empty = the one that faces the seeds
	Gossip    Port
	Peer      Port

	Join  []string // seeds, as the user named them; empty = none
	Notes string   // directory with the notes of this user's nodes, which replace Join; empty = use Join
	Fast  bool     // gossip timing for nodes of one machine

	Sidecar         bool   // the node holds no data
	Partitions      uint32 // number of partitions that a sidecar expects, and announces by gossip
	Voters          uint32 // wanted number of voters of each group
	BootstrapExpect int    // servers that form a new cluster; 0 = never form one
	Version         string // of the program

	Credentials *credentials.Credentials // nil = traffic is not secured
	// Dial opens connections to peer ports; nil = TCP. Tests use it to observe or block connections.
	Dial       func(ctx context.Context, addr string) (net.Conn, error)
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Fatal      func(error) // ends the process
}

// Network is the peer port and the gossip of one node. It is safe for concurrent use.
type Network struct {
	opts      Options
	port      *peer.Port
	listeners []net.Listener // of the peer port; written by Listen
	self      atomic.Pointer[peer.Identity]
	gossip    atomic.Pointer[membership.Gossip] // nil until gossip is open

	mu         sync.Mutex
	transports []*peer.Transport // guarded by mu: several groups are opened at a time
}

// New creates the peer port. It does no I/O.
func New(o Options) (*Network, error) {
	n := &Network{opts: o}
	p := peer.Options{Self: n.Identity, Resolve: n.resolve, Dial: o.Dial, Logger: o.Logger, Registerer: o.Registerer}
	o.Credentials.SecurePeer(&p)
	port, err := peer.New(p)
	n.port = port
	return n, err
}

// Listen binds the peer port, so that its address is known. The node accepts connections only after OpenPort.
func (n *Network) Listen(ctx context.Context) (err error) {
	n.listeners, err = listen.TCP(ctx, listen.Request{
		Hosts: []string{n.opts.Bind}, Port: n.opts.Peer.Number, Fallback: n.opts.Peer.Fallback, Flag: "--peer-port",
	})
	return err
}

// Handle serves methods on the peer port. Call it before OpenPort.
func (n *Network) Handle(methods ...peer.Method) error {
	for _, m := range methods {
		if err := n.port.Handle(m); err != nil {
			return err
		}
	}
	return nil
}

// OpenPort starts to accept connections of other nodes.
func (n *Network) OpenPort() error { return n.port.Open(n.listeners...) }

// ClosePort closes the peer port.
func (n *Network) ClosePort() error {
	for _, l := range n.listeners {
		_ = l.Close() // harmless if the port has closed it already
	}
	return n.port.Close()
}

// Port returns the peer port.
func (n *Network) Port() *peer.Port { return n.port }

// Gossip returns the gossip of this node, or nil until gossip is open.
func (n *Network) Gossip() *membership.Gossip { return n.gossip.Load() }

// Roster returns the nodes that gossip knows, or nil until gossip is open.
func (n *Network) Roster() *membership.Roster {
	if g := n.gossip.Load(); g != nil {
		return g.Roster()
	}
	return nil
}

// DiskOf returns the state of the disk of a server according to gossip. The result is DiskGone if the server has
// failed, and DiskGood if gossip does not know the server.
func (n *Network) DiskOf(server string) raftfsm.DiskState {
	roster := n.Roster()
	if roster == nil {
		return raftfsm.DiskGood
	}
	for _, m := range roster.Members() {
		switch {
		case m.ServerID != server:
		case m.State == membership.Failed:
			return raftfsm.DiskGone
		case m.DiskLow:
			return raftfsm.DiskLow
		}
	}
	return raftfsm.DiskGood
}

// PeerDown reports whether Raft repeatedly fails to connect to the peer port of a server. The result since is the time
// of the first failure. PeerDown returns false if Raft has failed for less than two seconds, or if the last failure is
// more than 10 seconds ago.
func (n *Network) PeerDown(server string) (since time.Time, down bool) {
	return n.port.LostSince(server)
}

// Identity returns the identity that this node uses on new connections. Transport or Introduce must have been called
// before.
func (n *Network) Identity() peer.Identity { return *n.self.Load() }

// Introduce sets the identity that this node uses on new connections.
func (n *Network) Introduce(id datadir.Identity) {
	self := peer.Identity{Server: id.Server, Cluster: id.Cluster, Epoch: id.Epoch}
	if n.opts.Sidecar {
		self.Epoch = peer.AnyEpoch
	}
	n.self.Store(&self)
}

// resolve returns the address of the peer port of a server. It returns fault.Unavailable if gossip does not know the
// server. For a sidecar, the parameter server is the result of raftfsm.SidecarID.
func (n *Network) resolve(_ context.Context, server string) (string, error) {
	if r := n.Roster(); r != nil {
		if addr, ok := r.PeerAddr(server); ok {
			return addr, nil
		}
		if m, ok := r.Node(placement.NodeOf(server)); ok && m.Role == membership.Sidecar &&
			server == raftfsm.SidecarID(m.NodeID) {
			return m.PeerAddr, nil
		}
	}
	return "", fault.New(fault.Unavailable, "node.resolve", "gossip knows no address of server "+server)
}

// ReachHint is the hint for a node that runs but cannot be reached.
const ReachHint = "open this port in every firewall between the two nodes (the gossip port for TCP and UDP); if the " +
	"address is wrong, set --advertise-address there"

// HintFor returns the hint for a failed call to a running node. It is ReachHint, or "" if one of the two nodes has
// refused the connection, because the error then has its own hint.
func HintFor(err error) string {
	if _, refused := errors.AsType[*peer.Refusal](err); refused {
		return ""
	}
	return ReachHint
}

// PeerID returns the id of a member on the peer port.
func PeerID(m *membership.Member) string {
	if m.Role == membership.Sidecar {
		return raftfsm.SidecarID(m.NodeID)
	}
	return m.ServerID
}

// Transport creates the Raft transport of a group over the peer port.
func (n *Network) Transport(group uint32, server raft.ServerID) raft.Transport {
	n.self.CompareAndSwap(nil, &peer.Identity{Server: string(server)})
	t, err := n.port.Raft(group)
	if err != nil {
		n.opts.Fatal(err) // the port is new and open, so this cannot happen
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.transports = append(n.transports, t)
	return t
}

// Interrupt makes Raft's requests to unreachable servers fail, usually at once. Without Interrupt, such a request waits
// for up to peer.Timing.Hold. Call Interrupt before Raft is shut down, because the shutdown waits for these requests.
func (n *Network) Interrupt() {
	n.mu.Lock()
	all := n.transports
	n.mu.Unlock()
	for _, t := range all {
		t.Interrupt()
	}
}

// LiveServers returns the ids of the servers of the cluster that gossip considers alive.
func (n *Network) LiveServers() []string {
	r := n.Roster()
	if r == nil {
		return nil
	}
	var out []string
	for _, m := range r.Alive() {
		if m.Role == membership.Server && m.ClusterID != "" {
			out = append(out, m.ServerID)
		}
	}
	return out
}

// NewestFormat returns the newest log format that a server can read, according to gossip. The result known is false if
// the server is not alive, because it may come back with another version of the program.
func (n *Network) NewestFormat(server string) (version uint8, known bool) {
	r := n.Roster()
	if r == nil {
		return 0, false
	}
	m, ok := r.Node(placement.NodeOf(server))
	if !ok || m.ServerID != server || m.State != membership.Alive {
		return 0, false
	}
	return uint8(min(m.NewestFormat, math.MaxUint8)), true
}

// DropLost closes the tunnels for service invocation to and from nodes that are no longer alive. Otherwise the calls in
// these tunnels could wait for minutes.
func (n *Network) DropLost(r *membership.Roster) {
	for _, m := range r.Members() {
		if m.State != membership.Alive {
			n.port.Lost(PeerID(&m))
		}
	}
}

// Advertised returns the address at which other nodes reach this node. Before gossip is open, it returns the zero Addr.
func (n *Network) Advertised() netip.Addr {
	if g := n.gossip.Load(); g != nil {
		return g.Addr().Addr()
	}
	return netip.Addr{}
}

// Renew applies the current gossip keys. With TLS, it also replaces the connections of the peer port that carry calls
// or Raft messages, so that they use the current certificate. It keeps tunnels and connections that carry a snapshot.
//
// Call Renew after the credentials have changed. Also call it periodically, so that no connection stays in use after
// the certificate of the other node has expired.
func (n *Network) Renew() {
	n.rekey()
	n.port.Renew()
}

// Recheck closes the connections whose certificate is not trusted any more.
func (n *Network) Recheck() { n.port.Recheck() }

func (n *Network) rekey() {
	g := n.gossip.Load()
	if g == nil || n.opts.Credentials == nil {
		return
	}
	if err := g.Rekey(n.opts.Credentials.Keys()); err != nil {
		n.opts.Logger.Error("the gossip keys cannot be changed", "error", err) // cannot happen: they come from tokens
	}
}
