package node

import (
	"net/netip"

	"github.com/quorate/quorate/internal/peer"
)

// Isolate cuts this node's peer port off from other servers, both ways; Rejoin undoes it.
// Gossip goes on: it is a one-port failure, which the groups must survive all the same.
func (n *Node) Isolate(servers ...string) {
	for _, s := range servers {
		n.port.Cut(s, peer.Inbound, peer.Outbound)
	}
}

// Deafen lets this node send but not receive, or, with sending, receive but not send.
func (n *Node) Deafen(sending bool, servers ...string) {
	d := peer.Inbound
	if sending {
		d = peer.Outbound
	}
	for _, s := range servers {
		n.port.Cut(s, d)
	}
}

// Rejoin undoes Isolate and Deafen.
func (n *Node) Rejoin(servers ...string) {
	for _, s := range servers {
		n.port.Heal(s)
	}
}

// MetricsAddr shows metricsAddr to tests.
func MetricsAddr(listener string, advertised netip.Addr) string {
	return metricsAddr(listener, advertised)
}
