// Package proof plays one long campaign of faults against a cluster of real processes and
// says whether every promise held.
//
// It owns the choice of faults, the order in which a seed plays them, what is checked
// between them, and the report. It must never use anything of a node but what package
// faulttest gives. Run has one goroutine for each client, one that samples the nodes and one
// that watches the machine; all of them end before it returns.
package proof
