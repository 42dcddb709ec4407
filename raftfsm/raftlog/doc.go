// Package raftlog stores the log, the terms and the votes of one Raft group on the disk of this server.
//
// It owns the files of both log engines, stable.db and floor.json, and the checks that they are complete. It
// protects Raft from entries that were altered, replaced or lost. It never uses the state machine, snapshots or
// the network directly, only the interfaces Role, Events and Process.
//
// It runs one goroutine only while a leader's disk writes entries that the leader already sends to followers.
package raftlog
