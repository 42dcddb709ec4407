// Package records stores what every node serves, and decides what to send to other nodes and what to request
// from them.
//
// It owns the wire form of a node's record, its bounds, and the rules by which records spread. A change is
// broadcast. Changes that a broadcast did not deliver are found by comparing digests, and then pulled. The package
// is a deterministic state machine: it does no I/O, reads no clock and draws no random numbers. The caller passes
// the time, and messages are passed in and out as bytes. Members tells it which nodes are alive. It has no
// goroutines. A Machine must not be used by two goroutines at a time.
//
// Invariants. Only a node itself changes its record. The versions of the records of one incarnation start at 1 and
// increase by one with each change. So of two records of one incarnation the one with the higher version is newer,
// and records are never merged. Records returns the record of another node's incarnation only while Members lists
// that incarnation as alive.
package records
