package node

import (
	"context"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
)

// admin implements the admin API with the parts of the node that answer each request.
type admin struct {
	reporter
	applications
	leaders
	adminapi.Remover
	adminapi.Doctor
	adminapi.Backups
	adminapi.Cluster
	adminapi.Locks
	adminapi.Jobs
	adminapi.Topics
	callService
	adminapi.Actors
	adminapi.Workflows
	adminapi.VoterSetting
	adminapi.Console
	adminapi.Viewer
	adminapi.Debugger
	adminapi.Configurations
}

// reporter describes this node and the other members.
type reporter interface {
	Status(ctx context.Context) (schema.NodeStatus, error)
	Members(ctx context.Context) ([]schema.MemberStatus, error)
}

// applications lists the applications of the cluster.
type applications interface {
	Apps(ctx context.Context) ([]schema.AppInstance, error)
}

// leaders has the operations that only the leader of a group can execute: transferring the leadership, and comparing
// the replicas of the group.
type leaders interface {
	TransferLeader(ctx context.Context, group uint64, to string) (schema.TransferResult, error)
	CompareReplicas(ctx context.Context, group uint64) (schema.Comparison, error)
}
