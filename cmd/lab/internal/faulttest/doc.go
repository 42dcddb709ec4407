// Package faulttest runs clusters of real processes, injects faults into them, and checks the guarantees that Quorate
// gives to clients.
//
// Each node is a process in its own network namespace. The nodes are connected by TUN devices and a switch in this
// process, which can drop or delay packets in each direction of each link. The network of the host stays unchanged. A
// node may have its own disk, which is an ext4 file system on a loop device. Such a disk can hang, fail, or lose its
// unflushed data. All of this needs root on Linux. Supported returns what is missing.
//
// Fault.Inflict injects a fault and returns the function that ends it. If this function finds a violated guarantee, it
// returns a Broken error. A Schedule is a list of faults that is made from a seed.
//
// Workloads record the requests and responses of clients. The records are checked in several ways:
//   - Package history checks most of them. It checks strong operations with Porcupine, a linearizability checker.
//   - Sessions checks session guarantees.
//   - Ledger checks that no acknowledged write is lost.
//
// A Cluster owns its processes, namespaces, disks and connections. Cluster.Close ends them all. The package uses a node
// only from outside: through its command line, its APIs, its metrics, and the control files of package tuned. One
// goroutine runs for each namespace, TUN device, application and process. The goroutines of a workload run until the
// workload is stopped.
package faulttest
