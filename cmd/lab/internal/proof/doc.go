// Package proof runs one long campaign of faults against a cluster of real processes, and reports whether every
// guarantee held.
//
// It chooses the faults and their order, runs checks between them, and writes the report. It uses nodes only through
// package faulttest. Run starts one goroutine per client, one per check that runs in the background, one that samples
// the nodes, and one that watches the machine. All of them end before Run returns.
package proof
