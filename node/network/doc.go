// Package network connects a node with the other nodes. It runs the peer port, which carries replication and calls, and
// gossip, which finds the nodes. It also finds the address of a server by its id. The package owns both listeners, the
// facts that the node announces by gossip, and the mapping from server ids to addresses.
//
// Goroutines: those of peer.Port and membership.Gossip. ClosePort and CloseGossip end them.
package network
