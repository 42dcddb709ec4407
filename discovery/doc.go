// Package discovery finds the seeds through which a node joins its cluster, and the nodes that serve an application.
//
// It parses the names of seeds and resolves them again at every attempt. It owns the Catalogue: what this node knows
// of every application, and the choice of an instance for a call. Package discovery/records has the rules by which
// this knowledge spreads. Discovery does no network I/O except resolving names: gossip calls it as a channel, the
// node tells it which members are alive, and Options.Ask sends questions to other nodes.
//
// Goroutines: a Catalogue has one between Open and Close, and up to four that pull records. Close waits for them.
// Everything else runs in the caller's goroutine.
package discovery
