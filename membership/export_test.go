package membership

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// OpenOn is Open on the network of a test.
func OpenOn(o Options, t memberlist.NodeAwareTransport, at netip.AddrPort) (*Gossip, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	return start(o, t, at)
}

// Encode returns the encoded facts, without the name.
func (f Facts) Encode() []byte { return f.encode() }

// Decode decodes the result of Encode.
func Decode(name string, meta []byte) (Facts, error) { return decodeFacts(name, meta) }

// Mux returns the multiplexer of channels.
func Mux(own Channel, others map[byte]Channel) memberlist.Delegate {
	return struct {
		*mux
		noMeta
	}{mux: newMux(own, others)}
}

type noMeta struct{}

// NodeMeta implements memberlist.Delegate.
func (noMeta) NodeMeta(int) []byte { return nil }

// DecodeFarewell decodes a message of channel 0.
func DecodeFarewell(b []byte) (string, bool) { return decodeFarewell(b) }

// DecodeFarewells decodes a state of channel 0.
func DecodeFarewells(b []byte) []string { return decodeFarewells(b) }

// EncodeFarewells encodes a state of channel 0.
func EncodeFarewells(names []string) []byte { return encodeFarewells(names) }

// MaxNodeID is the maximum length of a node id in bytes.
const MaxNodeID = maxNodeID

// Tap records the traffic of a node.
type Tap struct {
	memberlist.NodeAwareTransport
	sockets *sockets

	mu      sync.Mutex
	packets [][]byte // received
	bytes   []byte   // sent, and received over streams
}

// OpenTapped is Open with a Tap.
func OpenTapped(o Options) (*Gossip, *Tap, error) {
	o, err := o.complete()
	if err != nil {
		return nil, nil, err
	}
	s, err := openSockets(o.Bind, o.Port, false)
	if err != nil {
		return nil, nil, err
	}
	t := &Tap{NodeAwareTransport: s, sockets: s}
	out := make(chan *memberlist.Packet)
	s.busy.Go(func() {
		for {
			select {
			case p := <-s.packets:
				t.mu.Lock()
				t.packets = append(t.packets, append([]byte(nil), p.Buf...))
				t.mu.Unlock()
				select {
				case out <- p:
				case <-s.ctx.Done():
					return
				}
			case <-s.ctx.Done():
				return
			}
		}
	})
	g, err := start(o, &tapped{t, out}, netip.AddrPortFrom(o.Bind, s.port()))
	return g, t, err
}

type tapped struct {
	*Tap
	out chan *memberlist.Packet
}

// PacketCh implements memberlist.Transport.
func (t *tapped) PacketCh() <-chan *memberlist.Packet { return t.out }

// Packets returns the packets received so far.
func (t *Tap) Packets() [][]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([][]byte(nil), t.packets...)
}

// Bytes returns everything that was sent so far, and the packets received.
func (t *Tap) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := append([]byte(nil), t.bytes...)
	for _, p := range t.packets {
		out = append(out, p...)
	}
	return out
}

func (t *Tap) note(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes = append(t.bytes, b...)
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *Tap) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	t.note(b)
	return t.NodeAwareTransport.WriteToAddress(b, a)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *Tap) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	c, err := t.NodeAwareTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	return &tappedConn{c, t}, nil
}

type tappedConn struct {
	net.Conn
	tap *Tap
}

func (c *tappedConn) Write(b []byte) (int, error) {
	c.tap.note(b)
	return c.Conn.Write(b)
}

func (c *tappedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.tap.note(b[:n])
	return n, err
}

// Sealer is the protection of packets.
type Sealer = sealer

// NewSealer returns the sealer of the node with a gossip name.
func NewSealer(label, self string, keys ...[]byte) (*Sealer, error) {
	return newSealer(label, self, keys)
}

// Seal seals a packet.
func (s *sealer) Seal(to string, packet []byte) []byte { return s.seal(to, packet) }

// Open opens a sealed packet, or returns the reason why the packet is refused.
func (s *sealer) Open(b []byte, now time.Time) ([]byte, Reason) { return s.open(b, now) }

// Sessions returns how many sessions have a full window of counters, and how many only their highest counter.
func (s *sealer) Sessions() (full, floors int) { return len(s.heard), len(s.floor) }

// Constants of the sealer.
const (
	WindowBits  = windowBits
	MaxSessions = maxSessions
	IdleSession = idleSession
)

// Rekey changes the keys.
func (s *sealer) Rekey(keys [][]byte) error { return s.rekey(keys) }

// Agree returns the reason why the members cannot form one cluster, or "" if they can.
func Agree(members, others []Member) Reason {
	if r := agree(members, others); r != nil {
		return r.reason
	}
	return ""
}
