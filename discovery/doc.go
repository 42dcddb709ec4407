// Package discovery finds other nodes for two purposes. Seeds are the nodes through which this node joins its cluster.
// The Catalogue contains which nodes serve each application, and chooses an instance for a call.
//
// The host names of seeds are resolved again at every attempt to join. Package discovery/records has the rules by which
// the contents of the Catalogue spread between nodes.
//
// The package does no network I/O except resolving names. The Catalogue implements membership.Channel, so its messages
// are sent by gossip. The node reports to the Catalogue which members are alive. The Catalogue sends requests to other
// nodes with Options.Ask.
//
// Between Open and Close, a Catalogue has one goroutine, and up to four more that pull records. Close waits for all of
// them. Seeds.Resolve looks up each name in its own goroutine and waits for these goroutines.
package discovery
