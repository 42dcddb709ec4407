// Package faulttest runs clusters of real processes, injects faults, and checks what clients were
// guaranteed meanwhile.
//
// Each node is a process in its own network namespace. The network between the nodes consists of a
// TUN device in each namespace and a switch in this process. Every direction of every link can be
// cut, delayed or made lossy, without a change to the network of the host. A node may have its own
// disk, an ext4 file system on a loop device, which can be stalled, slowed or broken, or lose
// power. All of it needs root on Linux; Supported names what is missing.
//
// It owns the processes, namespaces, disks and connections of a Cluster; Close ends them all.
// Workloads record the requests and responses of clients. History checks strong operations with
// Porcupine, Sessions checks session guarantees, and Ledger checks that no acknowledged write is
// lost. A Schedule is a list of faults made from a seed. The package uses only the program, the
// HTTP API and the admin API of a node. It has one goroutine per namespace, one reader per TUN
// device, one waiter per process, and those of workloads until their context ends.
package faulttest
