// Package catalogue connects the catalogue of applications, package discovery, to the node. Gossip reports which
// nodes are alive, the peer port carries requests between catalogues, and calls of applications choose an instance
// from it.
//
// It owns the records of this node's own applications, and converts instances for the service layer. Package
// discovery keeps the records of all nodes and chooses instances.
//
// Goroutines: those of the discovery.Catalogue, and the one in which the caller runs Follow.
package catalogue
