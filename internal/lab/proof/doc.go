// Package proof runs one long campaign of faults against a cluster of real processes, and reports
// whether every guarantee held.
//
// It owns the choice of faults, the order in which a seed runs them, the checks between them, and
// the report. It uses a node only through package faulttest. Run has one goroutine per client, one
// that samples the nodes and one that watches the machine; all of them end before it returns.
package proof
