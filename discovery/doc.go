// Package discovery finds the nodes through which a node joins its cluster, called seeds, and the nodes that serve an
// application.
//
// It parses the names of seeds, and resolves them again at every attempt to join. It owns the Catalogue, which
// contains what this node knows about every application and chooses an instance for a call. Package discovery/records
// has the rules by which this knowledge spreads.
//
// Discovery does no network I/O except resolving names. The Catalogue implements membership.Channel, so gossip carries
// its messages. The node reports to the Catalogue which members are alive, and Options.Ask sends requests to other
// nodes.
//
// Goroutines: a Catalogue has one between Open and Close, and up to four more that pull records. Close waits for all of
// them. Seeds.Resolve looks up each name in a goroutine of its own, and waits for these goroutines. Everything else
// runs in the caller's goroutine.
package discovery
