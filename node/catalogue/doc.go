// Package catalogue connects the catalogue of applications (package discovery) with the node. It reports the live nodes
// to package discovery, according to gossip. It carries the requests between the catalogues of different nodes over the
// peer port. It also makes the catalogue available to service invocation.
//
// It owns the records of this node's own applications, and converts instances for the service layer. Package discovery
// keeps the records of all nodes, and chooses the instance for a call.
//
// Goroutines: those of discovery.Catalogue, and the one in which the caller runs Follow.
package catalogue
