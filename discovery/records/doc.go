// Package records stores what every node serves, and decides what to send to other nodes and what to request from
// them.
//
// It owns the wire format of a node's record, the size limits of records, and the rules by which records spread. A
// change is broadcast. A node finds changes that it missed by comparing digests, and then pulls them. The package is
// a deterministic state machine: it does no I/O, reads no clock and draws no random numbers. The caller passes in the
// time and the received messages, and sends the messages that the package returns. Members tells it which nodes are
// alive. It has no goroutines. A Machine must not be used by two goroutines at a time.
//
// Invariants. Only a node itself changes its record. The versions of the records of one incarnation start at 1 and
// increase by one with each change. So the record with the higher version is always newer, and records are never
// merged. Records returns the record of another node's incarnation only while Members lists that incarnation as
// alive.
package records
