// Package faulttest runs clusters of real processes, breaks what they stand on, and checks
// what clients were promised meanwhile.
//
// Each node is a process in a network namespace of its own. The wire between the nodes is
// a TUN device in each namespace and a switch in this process, so that every direction of
// every link can be cut, delayed, or made to lose packets without anything of the host
// being touched. A node may have a disk of its own, an ext4 file system on a loop device,
// that can be stalled, slowed, broken, or lose its power. All of it needs root on Linux;
// Supported says what is missing.
//
// It owns the processes, namespaces, disks and connections of a Cluster; Close ends them
// all. Workloads record what clients asked and were told: History checks strong operations
// with Porcupine, Sessions the promises to sessions, Ledger that nothing acknowledged is
// lost. A Schedule is a list of faults made from a seed. It must never use anything of a
// node but its program, its HTTP API and its admin API. Goroutines: one per namespace, one
// reader per TUN device, one waiter per process, and those of workloads until their
// context ends.
package faulttest
