package console

import (
	"context"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
)

// Member is one node of the cluster with its view.
type Member struct {
	schema.MemberStatus
	View *schema.NodeView // nil = the node did not answer
	Err  string           // why the node did not answer
}

// Cluster describes a cluster, transfers leadership between its nodes, and compares its replicas. Implementations are
// safe for concurrent use.
type Cluster interface {
	// Members returns every known node with its view. The node with this console comes first, and the others follow
	// in order of their ids. Members requests the views of all nodes concurrently and waits at most until ctx ends.
	Members(ctx context.Context) []Member
	// TransferLeader makes the leader of a group transfer leadership to the node with the id to. The parameter
	// leader is the node id of the leader. If to is empty, the leader chooses.
	TransferLeader(ctx context.Context, leader string, group uint64, to string) (schema.TransferResult, error)
	// CompareReplicas makes the leader of a group compare the states of all replicas.
	CompareReplicas(ctx context.Context, leader string, group uint64) (schema.Comparison, error)
}

// Data gives access to the data of applications. Implementations are safe for concurrent use.
type Data interface {
	// Stores returns the names of the state stores that an application sees on this node.
	Stores(app string) []string
	// State returns the state service of an application. The application need not run on this node.
	State(app string) *api.State
}
