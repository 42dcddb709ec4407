// Package raftlog stores the log, the terms and the votes of one Raft group on the disk of this server.
//
// It owns the files of both log engines, the file of terms and votes (stable.db), floor.json, and the checks that
// these files are complete. It protects Raft from entries that were altered, replaced or lost. It uses the state
// machine, snapshots and the network only through the interfaces Role, Events and Process.
//
// It runs one goroutine only while a leader's disk writes entries that the leader already sends to followers.
package raftlog
