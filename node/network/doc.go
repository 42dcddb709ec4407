// Package network connects a node with the other nodes. The peer port carries replication and calls. Gossip finds the
// nodes.
//
// It owns both listeners, the facts that the node announces by gossip, and the mapping from server ids to addresses.
//
// Goroutines: those of peer.Port and membership.Gossip, which ClosePort and CloseGossip end.
package network
