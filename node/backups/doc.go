// Package backups writes backups of the cluster on a schedule.
//
// It owns the schedule, the claim that prevents two nodes from writing at the same time, the names of the files,
// their verification and their removal. The progress is in a record in the replicated data, so that the next leader
// can continue the schedule. The package uses package raftfsm/backup for the format of a backup, and never connects
// to other nodes.
//
// Goroutines: the caller runs Run in one. A running backup has a second one, which renews the claim. If a command
// stores the backups, a third one writes to the command. The second and third end with the backup.
package backups
