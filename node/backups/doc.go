// Package backups writes backups of the cluster on a schedule.
//
// It owns the schedule, the claim that keeps two nodes from writing at the same time, the names of the files, their
// verification and their removal. The progress is a note in the replicated data, so that the schedule goes on at the
// next leader. The package does not know the format of a backup beyond package raftfsm/backup, and never talks to
// other nodes.
//
// Goroutines: Run is called in one. A running backup has one more, which renews the claim, and with a command one
// that writes to it. Both end with the backup.
package backups
