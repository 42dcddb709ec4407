package membership

import (
	"context"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
)

// Reach tests whether the gossip port of a member can be reached: with pings over UDP, and with a connection over TCP.
// The result for a protocol is nil if the test was successful. The deadline of ctx limits only the TCP connection.
func (g *Gossip) Reach(ctx context.Context, m *Member) (udp, tcp error) {
	if !g.answers(m) {
		udp = &fault.Error{Code: fault.Timeout, Op: "membership.Reach", Msg: "no answer over UDP from " +
			m.Gossip.String()}
	}
	timeout := reachTimeout
	if at, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(at), time.Millisecond))
	}
	c, err := g.contacts.NodeAwareTransport.DialAddressTimeout(memberlist.Address{Addr: m.Gossip.String(),
		Name: m.Name()}, timeout)
	if err != nil {
		return udp, &fault.Error{Code: fault.Unavailable, Op: "membership.Reach", Msg: "no connection over TCP to " +
			m.Gossip.String(), Err: err}
	}
	defer c.Close() //nolint:errcheck // only the handshake is sent on it
	if err := memberlist.AddLabelHeaderToStream(c, g.opts.Label); err != nil {
		return udp, &fault.Error{Code: fault.Unavailable, Op: "membership.Reach", Msg: "the connection over TCP to " +
			m.Gossip.String() + " was lost", Err: err}
	}
	return udp, nil
}

const reachTimeout = 2 * time.Second
