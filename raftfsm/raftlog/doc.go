// Package raftlog stores the log, the terms and the votes of one Raft group on the disk of this server.
//
// It owns the files of both log engines, the file of terms and votes (stable.db) and floor.json. It checks that these
// files are complete, and protects Raft from entries that were altered, replaced or lost. It reaches the other parts of
// the group only through the interfaces Role, Events, FloorSources and Process.
//
// On a leader, raft may send entries to followers before they are on the leader's own disk. The Store then starts one
// goroutine, which writes these entries to the disk and ends when all are written.
package raftlog
