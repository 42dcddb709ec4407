// Package catalogue connects the catalogue of applications (package discovery) with the node. It reports to package
// discovery which nodes are alive according to gossip. It sends the requests between catalogues over the peer port,
// and lets service invocation choose an instance.
//
// It owns the records of this node's own applications, and converts instances for the service layer. Package
// discovery keeps the records of all nodes and chooses instances.
//
// Goroutines: those of the discovery.Catalogue, and the one in which the caller runs Follow.
package catalogue
