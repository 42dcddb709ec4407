// Package backups writes backups of the cluster on a schedule.
//
// It owns the schedule, and the claim that prevents two nodes from writing a backup at the same time. It also names,
// verifies and removes the files. It stores its progress as a record in the replicated data, so that the next leader
// can continue the schedule. Package raftfsm/backup defines the format of a backup. Package backups never connects to
// other nodes.
//
// Goroutines: the caller runs Run in a goroutine. A running backup has more goroutines, for example one that renews the
// claim. These goroutines end with the backup.
package backups
