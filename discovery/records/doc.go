// Package records defines how nodes exchange records. The record of a node lists the applications that the node serves.
// The package stores the records of all nodes. It decides which records to send to other nodes, and which to request
// from them. The package owns the wire format of a node's record, the size limits of records, and the rules by which
// records spread.
//
// A change of a record is broadcast. Nodes also compare digests of their records, and then pull the records that they
// have missed.
//
// The package has no goroutines, does no I/O, reads no clock and draws no random numbers. The caller passes in the time
// and the received messages, and sends the messages that the package returns. The caller reports with Members which
// nodes are alive. Two goroutines must not use a Machine at the same time.
//
// # Invariants
//
// An incarnation is one run of a node's process.
//
//   - Only the node itself changes its record.
//   - The versions of an incarnation's record start at 1 and increase by one with each change. A record with a higher
//     version is always newer, so records are never merged.
//   - Machine.Records returns the record of another node's incarnation only while that incarnation is alive.
package records
