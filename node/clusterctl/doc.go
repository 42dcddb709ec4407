// Package clusterctl controls the membership and the leaders of the cluster. Nodes find or form their cluster. Groups
// get and lose servers. Leadership is balanced between the servers and transferred.
//
// The package owns the search for a cluster, and the reconciler of the groups that this node leads. It also owns the
// removal of servers, leadership transfers, and the peer methods for these tasks. Package raftfsm/placement decides
// which change comes next, and package clusterctl applies that change.
//
// Goroutines: those of Run, which ends them before it returns.
package clusterctl
