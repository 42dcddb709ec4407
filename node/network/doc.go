// Package network connects a node with the other nodes: by the peer port, for replication and calls, and by gossip.
//
// It owns both listeners, the facts that the node announces by gossip, and the mapping from server ids to addresses.
//
// Goroutines: those of peer.Port and membership.Gossip, which ClosePort and CloseGossip end.
package network
