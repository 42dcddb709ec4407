// Package discovery finds the seeds through which a node joins its cluster, and the nodes that serve an
// application.
//
// It parses seed names and resolves them again at every attempt. It owns the Catalogue: what this
// node knows of every application, and the choice of an instance for a call. The rules by which
// this knowledge spreads are in discovery/records. The package does no network I/O except resolving
// names: the gossip calls it as a channel, the node passes in which members are alive, and a
// function that the node provides sends questions to other nodes.
//
// Goroutines: a Catalogue has one between Open and Close, and up to four that pull records. Close
// waits for them. Everything else runs in the caller's goroutine.
package discovery
