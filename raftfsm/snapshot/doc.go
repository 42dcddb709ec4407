// Package snapshot manages the databases and snapshots of one Raft group, and applies committed entries to the live
// database.
//
// It owns the manifest and the directories whose names begin with db- and ckpt-. Taking a snapshot copies nothing:
// it flushes the database and writes an index to the manifest. The package does not use the network, and does not
// depend on which server leads.
//
// One goroutine runs for each snapshot that is being sent or received.
package snapshot
