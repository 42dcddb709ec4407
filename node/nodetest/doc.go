// Package nodetest runs nodes and clusters in the process of a test.
//
// It owns functions that wait for conditions, and the settings with which the nodes of several tests can run
// concurrently. These are loopback addresses, free ports, temporary directories and the timing for one machine. Its
// goroutines are those of the nodes, which end with the test.
package nodetest
