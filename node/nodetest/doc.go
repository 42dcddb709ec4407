// Package nodetest runs nodes and clusters in the process of a test.
//
// It has functions that wait for conditions, and configurations for nodes. With these configurations, several tests can
// run nodes at the same time. They use loopback addresses, free ports, temporary directories, and the timing for a
// cluster on one machine.
//
// Goroutines: those of the nodes. They end with the test.
package nodetest
