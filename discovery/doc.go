// Package discovery finds other nodes. Seeds are the nodes through which this node joins its cluster. The Catalogue
// knows which nodes serve each application, and chooses an instance for a call. Package discovery/records has the rules
// by which the contents of the Catalogue spread between nodes.
//
// The package does no network I/O except resolving names. Gossip carries the messages of the Catalogue, which
// implements membership.Channel. The function Options.Ask sends the requests of the Catalogue to other nodes. The node
// reports to the Catalogue which members are alive.
//
// Between Open and Close, a Catalogue has one goroutine, and up to four more that pull records. Close waits for all of
// them. Seeds.Resolve looks up each name in its own goroutine and waits for these goroutines.
package discovery
