// Package snapshot manages the databases and snapshots of one Raft group, and applies committed entries to the
// live database.
//
// It owns the manifest and the db- and ckpt- directories. A snapshot copies nothing: it is a flush of the database
// and an index in the manifest. The package never uses the network, and does not depend on which server leads.
//
// There is one goroutine for each snapshot that is being sent or received.
package snapshot
