// Package proof runs one long campaign of faults against a cluster of real processes, and reports whether every
// guarantee held.
//
// It owns the choice and the order of the faults, the checks between them, and the report. It uses a node only through
// package faulttest. Run has one goroutine per client, one that samples the nodes and one that watches the machine.
// All of them end before Run returns.
package proof
