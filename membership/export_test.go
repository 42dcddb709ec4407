package membership

import (
	"net/netip"

	"github.com/hashicorp/memberlist"
)

// OpenOn is Open on a network made up by a test.
func OpenOn(o Options, t memberlist.NodeAwareTransport, at netip.AddrPort) (*Gossip, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	return start(o, t, at)
}

// Encode is what goes over the wire beside the name.
func (f Facts) Encode() []byte { return f.encode() }

// Decode reads what Encode made.
func Decode(name string, meta []byte) (Facts, error) { return decodeFacts(name, meta) }

// Mux is the multiplexer of channels.
func Mux(own Channel, others map[byte]Channel) memberlist.Delegate {
	return struct {
		*mux
		noMeta
	}{mux: newMux(own, others)}
}

type noMeta struct{}

// NodeMeta implements memberlist.Delegate.
func (noMeta) NodeMeta(int) []byte { return nil }

// Farewells are the decoders and encoders of channel 0.
func DecodeFarewell(b []byte) (string, bool) { return decodeFarewell(b) }

// DecodeFarewells reads a state of channel 0.
func DecodeFarewells(b []byte) []string { return decodeFarewells(b) }

// EncodeFarewells writes a state of channel 0.
func EncodeFarewells(names []string) []byte { return encodeFarewells(names) }

// MaxNodeID is the longest node id.
const MaxNodeID = maxNodeID
