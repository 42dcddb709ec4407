// Package faulttest runs clusters of real processes, injects faults, and checks the guarantees that clients were
// given.
//
// Each node is a process in its own network namespace. The network between the nodes consists of a TUN device in each
// namespace and a switch in this process. The switch can cut and delay every direction of every link, and drop
// packets. It does not change the network of the host. A node may have its own disk, an ext4 file system on a loop
// device. The disk can be stalled, slowed or broken, or lose its unflushed data. All of this needs root on Linux.
// Supported returns what is missing.
//
// Fault.Inflict injects a fault and returns the function that ends it. If that function finds a violation of a
// guarantee, it returns a Broken error. A Schedule is a list of faults made from a seed. Workloads record the requests
// and responses of clients. History checks strong operations with Porcupine, a linearizability checker. Sessions
// checks session guarantees, and Ledger checks that no acknowledged write is lost.
//
// The package owns the processes, namespaces, disks and connections of a Cluster. Close ends them all. The package
// uses only the program, the HTTP API and the admin API of a node. It has one goroutine per namespace, TUN device
// and process. The goroutines of workloads run until the workload is stopped.
package faulttest
