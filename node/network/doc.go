// Package network connects a node with the other nodes. It runs the peer port and gossip. The peer port carries
// replication and calls. Gossip finds the nodes.
//
// The package owns the listeners of both, and the facts that the node announces by gossip. It also finds the address of
// a server by its id.
//
// Goroutines: those of peer.Port and membership.Gossip. ClosePort and CloseGossip end them.
package network
