// Package proof runs one long campaign of faults against a cluster of real processes, and reports whether every
// guarantee held.
//
// The package owns the choice and the order of the faults, the checks between the faults, and the report. It uses nodes
// only through package faulttest. Run starts one goroutine per client, one per check that runs in the background, one
// that samples the nodes, and one that watches the machine. All these goroutines end before Run returns.
package proof
