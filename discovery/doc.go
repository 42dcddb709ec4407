// Package discovery tells where things are: the seeds through which a node finds its
// cluster, and the nodes that serve an application.
//
// It owns the reading of seed names and their resolution, anew on every try, to all their
// addresses; and the Catalogue: what is known of every application (the rules are those of
// discovery/records), and the choice among the instances of one. It must never know a
// gossip library, raft or how an application is called: it is a channel of the gossip by
// its methods, is told who is alive, and is handed a function that asks another node.
//
// Goroutines: a Catalogue has one between Open and Close, and up to four that pull records;
// Close waits for them. Everything else runs in its callers.
package discovery
