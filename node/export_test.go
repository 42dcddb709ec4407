package node

import "github.com/quorate/quorate/internal/peer"

// Isolate cuts the connections between this node's peer port and other servers, in both directions, until Rejoin.
// Gossip still works, as when a firewall blocks only the peer port.
func (n *Node) Isolate(servers ...string) {
	for _, s := range servers {
		n.network.Port().Cut(s, peer.Inbound, peer.Outbound)
	}
}

// Deafen cuts only the connections that other servers open to the peer port of this node, until Rejoin. If sending is
// true, it cuts only the connections that this node opens to them.
func (n *Node) Deafen(sending bool, servers ...string) {
	d := peer.Inbound
	if sending {
		d = peer.Outbound
	}
	for _, s := range servers {
		n.network.Port().Cut(s, d)
	}
}

// Rejoin ends the effect of Isolate and Deafen.
func (n *Node) Rejoin(servers ...string) {
	for _, s := range servers {
		n.network.Port().Heal(s)
	}
}
