// Package nodetest runs nodes and clusters in the process of a test.
//
// It owns the settings with which the nodes of several tests can run concurrently (loopback only, free ports,
// temporary directories, timing for one machine), and functions that wait for conditions. Its goroutines are those of
// the nodes, which end with the test.
package nodetest
