// Package records defines how nodes exchange records. The record of a node lists the applications that the node serves.
// The package stores the records of all nodes. It decides which records to send to other nodes, and which to request
// from them.
//
// A change of a record is broadcast. Nodes also compare digests of their records, and then pull the records that they
// have missed. The package has no goroutines, does no I/O, reads no clock and draws no random numbers. The caller
// passes in the time and the received messages, and sends the messages that the package returns. The caller reports
// with Members which nodes are alive. Two goroutines must not use a Machine at the same time.
//
// # Invariants
//
// An incarnation is one run of a node's process. Only the node itself changes its record. The versions of an
// incarnation's record start at 1 and increase by one with each change. So the record with the higher version is always
// newer, and records are never merged. The method Records returns another node's record only while Members reports its
// incarnation as alive.
package records
