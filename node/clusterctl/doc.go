// Package clusterctl controls the membership and the leaders of the cluster. It finds or forms the cluster, adds
// servers to groups and removes them, and balances and transfers leadership. The package owns the search for a cluster,
// the reconciler of the groups that this node leads, the removal of servers, and the transfer of leadership.
//
// Package raftfsm/placement decides which change comes next to a group that this node leads, and package clusterctl
// applies that change.
//
// Goroutines: those of Run, which ends them before it returns.
package clusterctl
