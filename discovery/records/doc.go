// Package records stores which applications every node serves. It decides which records to send to other nodes, and
// which to request from them.
//
// It owns the wire format of a node's record, the size limits of records, and the rules by which records spread. A
// change is broadcast. To find missed changes, nodes compare digests, and then pull the missing records. The package
// is a deterministic state machine: it does no I/O, reads no clock and draws no random numbers. The caller passes in
// the time and the received messages, and sends the messages that the package returns. With Members, the caller
// reports which nodes are alive. The package has no goroutines. A Machine must not be used by two goroutines at a
// time.
//
// Invariants. An incarnation is one run of a node's process. Only the node itself changes its record. The versions of
// the records of one incarnation start at 1 and increase by one with each change. So the record with the higher
// version is always newer, and records are never merged. The method Records returns another node's record only while
// Members reports its incarnation as alive.
package records
