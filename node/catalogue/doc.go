// Package catalogue connects the catalogue of applications (package discovery) with the node. It passes the live nodes
// from gossip to package discovery, and carries the requests between the catalogues of different nodes over the peer
// port. It also makes the catalogue available to service invocation.
//
// The package owns the records of the applications of this node. Package discovery keeps the records of all nodes, and
// chooses the instance for a call.
//
// Goroutines: those of discovery.Catalogue, and the one in which the caller runs Follow.
package catalogue
