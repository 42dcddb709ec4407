package membership

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
)

// Options are the arguments of Open. Facts, Logger and Registerer are required.
type Options struct {
	Facts        Facts      // initial facts of this node
	Bind         netip.Addr // where to listen; unspecified = all addresses
	Port         uint16     // UDP and TCP; 0 = any that is free
	PortFallback bool       // take another port if Port is in use
	// address that other nodes use; if its IP address is zero, AdvertiseAddr chooses it; if its port is zero, it is
	// the bound port
	Advertise netip.AddrPort
	// name of the cluster, at most 255 bytes; nodes with another label are ignored
	Label string
	// gossip keys of 32 bytes each: the first encrypts packets, all decrypt them; none = no encryption and no TLS
	SecretKeys [][]byte
	// returns the settings for the next stream, which must verify the other side; set TLS if and only if SecretKeys is
	// set
	TLS        func() (server, client *tls.Config)
	Seeds      SeedFunc         // addresses to join; nil = none, but others may join this node
	Channels   map[byte]Channel // data of other packages, by number from 1
	Timing     Timing           // zero = LAN
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Gossip lets this node take part in the gossip of the cluster. All methods are safe for concurrent use.
type Gossip struct {
	opts      Options
	table     *table
	refused   *refusals
	contacts  *observed
	secured   *secured // nil = neither packets nor streams are secured
	farewells *farewells
	metrics   *metrics
	result    result
	duplicate chan error
	tried     chan struct{} // closed when every seed has been tried once

	list   atomic.Pointer[memberlist.Memberlist]
	meta   atomic.Pointer[[]byte] // own facts, encoded
	cancel context.CancelFunc     // ends the loops
	loops  sync.WaitGroup

	updating sync.Mutex // orders changes of facts
	facts    Facts

	ended  atomic.Bool   // Leave or Close was called
	ending chan struct{} // one slot; a running Leave or Close holds it
	left   bool          // Leave was called; written by the holder of ending
	closed bool
}

// Open opens the gossip port and starts to join the seeds in the background. Joined waits for the result. ctx limits
// only Open itself. Open returns a *fault.Error:
//
//	invalid      a fact, an address, a key or another option is invalid
//	too_large    the facts do not fit into a packet
//	unavailable  the port is in use
//	denied       the process may not listen on the port
//	internal     the metrics are already registered, or gossip cannot start for another reason
func Open(ctx context.Context, o Options) (*Gossip, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	advertise, err := o.advertise(ctx)
	if err != nil {
		return nil, err
	}
	s, err := openSockets(o.Bind, o.Port, o.PortFallback)
	if err != nil {
		return nil, err
	}
	port := o.Advertise.Port()
	if port == 0 {
		port = s.port()
	}
	return start(o, s, netip.AddrPortFrom(advertise, port))
}

// complete fills in defaults and validates the options.
func (o Options) complete() (Options, error) {
	if o.Timing == (Timing{}) {
		o.Timing = LAN()
	}
	if o.Facts.BootID == "" {
		o.Facts.BootID = NewBootID()
	}
	if !o.Bind.IsValid() {
		o.Bind = netip.IPv4Unspecified()
	}
	if err := o.Facts.check(); err != nil {
		return o, err
	}
	if err := o.Facts.fits(); err != nil {
		return o, err
	}
	if len(o.Label) > memberlist.LabelMaxSize {
		return o, fault.New(fault.Invalid, "membership.Open",
			fmt.Sprintf("cluster name of %d bytes: at most %d are allowed", len(o.Label), memberlist.LabelMaxSize))
	}
	if (len(o.SecretKeys) > 0) != (o.TLS != nil) {
		return o, fault.New(fault.Invalid, "membership.Open", "keys for packets and TLS for streams belong together")
	}
	if _, own := o.Channels[0]; own {
		return o, fault.New(fault.Invalid, "membership.Open", "channel 0 is this package's own")
	}
	return o, nil
}

// advertise returns the address that this node announces, as chosen by AdvertiseAddr. It ignores seeds that cannot be
// resolved now. It returns fault.Invalid if other nodes could not reach this address or the peer address.
func (o Options) advertise(ctx context.Context) (netip.Addr, error) {
	var seeds []netip.AddrPort
	if o.Seeds != nil {
		ctx, cancel := context.WithTimeout(ctx, o.Timing.StreamTimeout)
		defer cancel()
		seeds, _ = o.Seeds(ctx)
	}
	addr, err := AdvertiseAddr(o.Advertise.Addr(), o.Bind, seeds)
	if err != nil {
		return addr, err
	}
	host, _, _ := net.SplitHostPort(o.Facts.PeerAddr)
	peer, err := netip.ParseAddr(host)
	if err == nil && (peer.IsUnspecified() || peer.IsLoopback() && !addr.IsLoopback()) {
		return addr, badAddress("the peer address %s cannot be reached by nodes that see this one at %s",
			o.Facts.PeerAddr, addr)
	}
	return addr, nil
}

// start begins to gossip over the transport t. The parameter at is the gossip address of this node. If start fails, it
// shuts t down.
func start(o Options, t memberlist.NodeAwareTransport, at netip.AddrPort) (*Gossip, error) {
	g := &Gossip{opts: o, facts: o.Facts, duplicate: make(chan error, 1), tried: make(chan struct{}),
		ending: make(chan struct{}, 1)}
	g.table = newTable(Member{Facts: o.Facts, Gossip: at, State: Alive}, o.Timing.Forget)
	g.metrics = newMetrics(g)
	g.refused = newRefusals(g.metrics.refused)
	if o.TLS != nil {
		s, err := newSecured(t, o, g.refused.tell)
		if err != nil {
			_ = t.Shutdown()
			return nil, err
		}
		g.secured, t = s, s
	}
	g.contacts = &observed{NodeAwareTransport: t}
	g.farewells = newFarewells(g.table, o.Timing.Retransmits)
	g.result.changed = make(chan struct{})
	g.setMeta(&o.Facts)
	if err := g.create(at); err != nil {
		_ = t.Shutdown()
		return nil, err
	}
	if err := g.metrics.register(o.Registerer); err != nil {
		_ = g.list.Load().Shutdown()
		return nil, err
	}
	g.goLoops()
	o.Logger.Info("gossip is up", "node", o.Facts.NodeID, "boot", o.Facts.BootID, "advertised", at.String(),
		"cluster", o.Label, "encrypted", len(o.SecretKeys) > 0)
	return g, nil
}

func (g *Gossip) create(at netip.AddrPort) error {
	list, err := memberlist.Create(g.config(at))
	if err != nil {
		return &fault.Error{Code: fault.Internal, Op: "membership.Open", Msg: "gossip cannot start", Err: err}
	}
	g.list.Store(list)
	return nil
}

func (g *Gossip) config(at netip.AddrPort) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	g.opts.Timing.apply(c)
	c.Name, c.Label, c.Transport = g.opts.Facts.Name(), g.opts.Label, g.contacts
	c.BindPort, c.AdvertiseAddr, c.AdvertisePort = int(at.Port()), at.Addr().String(), int(at.Port())
	h := hooks{mux: newMux(g.farewells, g.opts.Channels), gossip: g}
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict = h, h, h, h, h
	c.Logger = logadapt.Standard(slog.New(newLogLimiter(g.opts.Logger.Handler())))
	if g.secured != nil {
		c.UDPBufferSize -= sealOverhead
	}
	return c
}

// Rekey replaces Options.SecretKeys. It returns fault.Invalid if a key has a wrong length, if there is no key, or if
// Open was called without keys. After an error, nothing has changed.
func (g *Gossip) Rekey(keys [][]byte) error {
	if g.secured == nil {
		return fault.New(fault.Invalid, "membership.Rekey", "the gossip of this node is not secured")
	}
	return g.secured.seal.rekey(keys)
}

func (g *Gossip) goLoops() {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	j := &joiner{gossip: g, selves: map[netip.AddrPort]time.Time{}}
	g.loops.Go(func() { j.run(ctx) })
	g.loops.Go(func() { g.resolveDuplicates(ctx) })
	g.loops.Go(func() { g.refused.report(ctx, g.opts.Logger) })
	g.loops.Go(func() { g.watch(ctx) })
}

// Roster returns the current roster.
func (g *Gossip) Roster() *Roster { return g.table.roster() }

// Addr returns the gossip address that others use for this node.
func (g *Gossip) Addr() netip.AddrPort { return g.Roster().Self().Gossip }

// RefusedEpoch returns the newest cluster epoch in the refusals with the reason OlderEpoch, or 0 if there was no such
// refusal. If this epoch is higher than the epoch of this node, the cluster was rescued without this node.
func (g *Gossip) RefusedEpoch() uint32 { return g.refused.epoch.Load() }

// Refused returns the error of the newest refusal within the last minute, or nil if there was none. Either this node
// has refused another one, or another node has refused this one. A refused node tries to join several times a minute.
// On that node, Refused therefore returns an error until the node is admitted.
func (g *Gossip) Refused() error { return g.refused.recent(time.Now()) }

// HealthScore returns how badly this node keeps up with gossip, from 0 (healthy) to 7. The higher the score, the
// longer this node waits for answers to its probes of other nodes.
func (g *Gossip) HealthScore() int { return g.list.Load().GetHealthScore() }

// seeds returns the current seeds.
func (g *Gossip) seeds(ctx context.Context) ([]netip.AddrPort, error) {
	if g.opts.Seeds == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opts.Timing.StreamTimeout)
	defer cancel()
	return g.opts.Seeds(ctx)
}

// Joined waits until this node has exchanged its full state with another node. If Options.Seeds is nil, Joined returns
// nil at once. After an error, this node still tries to join, and Joined may be called again. Errors:
//
//	conflict       the node id is a duplicate
//	denied         the seeds belong to another cluster or epoch, or one side does not trust the other
//	invalid        the partition counts differ, or a server is too old to read the log
//	unavailable    a seed does not complete the TLS handshake
//	unimplemented  the facts of a member cannot be read
//	timeout        ctx has ended
func (g *Gossip) Joined(ctx context.Context) error {
	for g.opts.Seeds != nil {
		joined, changed, refusal := g.result.get()
		if joined {
			break
		}
		if refusal != nil {
			return refusal
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &fault.Error{Code: fault.Timeout, Op: "membership.Joined", Msg: "no seed has been reached yet",
				Err: ctx.Err()}
		}
	}
	return nil
}

// Tried returns a channel that is closed after this node has tried to join every seed once.
func (g *Gossip) Tried() <-chan struct{} { return g.tried }

// Duplicate returns a channel that delivers an error if another running node has the same node id and was started
// earlier. This node must then stop. Usually Joined has already returned an error on such a node.
func (g *Gossip) Duplicate() <-chan error { return g.duplicate }

// UpdateFacts changes the facts of this node. It calls change with a copy of the facts, and then uses the changed copy.
// The roster has the new facts when UpdateFacts returns. Other nodes receive them later, by gossip.
//
// Node id and boot id cannot change. Server id, cluster id and partition count can be set once. After an error, nothing
// has changed. Errors:
//
//	invalid      a fact is invalid or must not change
//	too_large    the facts do not fit into a packet
//	unavailable  Leave or Close was called
func (g *Gossip) UpdateFacts(change func(*Facts)) error {
	g.updating.Lock()
	defer g.updating.Unlock()
	if g.ended.Load() {
		return fault.New(fault.Unavailable, "membership.UpdateFacts", "this node has left the cluster")
	}
	next := g.facts
	change(&next)
	if err := g.facts.mayBecome(&next); err != nil {
		return err
	}
	if next == g.facts {
		return nil
	}
	g.facts = next
	g.setMeta(&next)
	_ = g.list.Load().UpdateNode(tellTimeout) // its only error means that the change was not sent yet
	return nil
}

// tellTimeout is how long UpdateFacts waits for memberlist to send the change. It is short, because the change is
// already queued. It must not be 0, because for memberlist 0 means no limit.
const tellTimeout = time.Microsecond

func (g *Gossip) setMeta(f *Facts) {
	b := f.encode()
	g.meta.Store(&b)
}

// mayBecome returns an error if the facts f must not be replaced by changed. Node id and boot id never change. Server
// id, cluster id and partition count must not change once they are set. The changed facts must be valid, and short
// enough for a packet.
func (f *Facts) mayBecome(changed *Facts) error {
	fixed := func(was, is string) bool { return was != "" && was != is }
	switch {
	case f.NodeID != changed.NodeID, f.BootID != changed.BootID, fixed(f.ServerID, changed.ServerID),
		fixed(f.ClusterID, changed.ClusterID):
		return invalid("node %s cannot change its node, boot, server or cluster id while it runs", f.NodeID)
	case f.Partitions != 0 && f.Partitions != changed.Partitions:
		return invalid("node %s cannot change its partitions from %d to %d while it runs", f.NodeID, f.Partitions,
			changed.Partitions)
	}
	if err := changed.check(); err != nil {
		return err
	}
	return changed.fits()
}
