// Package backups writes backups of the cluster on a schedule.
//
// It owns the schedule, and the claim that prevents two nodes from writing at the same time. It also owns the names,
// the verification and the removal of the files. The progress is in a record in the replicated data, so that the next
// leader can continue the schedule. The package uses package raftfsm/backup for the format of a backup, and never
// connects to other nodes.
//
// Goroutines: the caller runs Run in a goroutine. A running backup has a second goroutine, which renews the claim. If
// a command stores the backups, a third goroutine writes to the command. The second and the third end with the
// backup.
package backups
