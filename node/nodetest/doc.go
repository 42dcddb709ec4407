// Package nodetest runs nodes and clusters in the process of a test. The package owns functions that wait for
// conditions, and the settings with which the nodes of several tests can run concurrently.
//
// The nodes use loopback addresses, free ports, temporary directories, and the timing for a cluster on one machine.
//
// The goroutines of the nodes end with the test.
package nodetest
