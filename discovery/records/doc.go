// Package records keeps what every node says about the applications it serves, and decides
// what to tell other nodes and what to ask them.
//
// It owns the form of a node's record on the wire, its bounds, and the rules by which
// records spread: a change is broadcast, what a broadcast did not bring is found by
// comparing digests and pulled. It is a deterministic state machine: it does no I/O, reads
// no clock and draws no random numbers; the time is handed in, messages go in and out as
// bytes. It must never know sockets, who is alive beyond what Members says, or who chooses
// among applications. It has no goroutines; a Machine is for one caller at a time.
//
// Invariants. Only a node writes its own record. A run of a node (Life) counts versions from
// 1, each change is one more, so of two records of one life the one with the higher version
// is newer, and there is nothing to merge. A record is shown exactly while Members says that
// its life is alive.
package records
