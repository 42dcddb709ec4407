// Package clusterctl controls the cluster as a whole: nodes find or form their cluster, groups get and lose servers,
// and leadership is balanced and transferred.
//
// It owns the search for a cluster, and the reconciler of the groups that this node leads. It also owns the removal of
// servers, leadership transfer, and the calls between nodes for these tasks. Package raftfsm/placement decides which
// change comes next, and this package applies that change.
//
// Goroutines: those of Run, which ends them before it returns.
package clusterctl
