// Package raftlog stores the log, the terms and the votes of one Raft group on the disk of this server.
//
// It owns the files of both log engines, the file of terms and votes (stable.db) and floor.json. It checks that
// these files are complete, and protects Raft from entries that were altered, replaced or lost. It reaches the other
// parts of the group only through the interfaces Role, Events, FloorSources and Process.
//
// A Store has one goroutine, on a leader. The goroutine writes entries to the disk while the leader already sends them
// to followers. It runs only while there are such entries.
package raftlog
