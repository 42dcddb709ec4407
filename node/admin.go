package node

import (
	"context"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
)

// admin implements the admin API with the parts of the node that answer each request.
type admin struct {
	reporter
	applications
	leaders
	apihttp.AdminRemover
	apihttp.AdminDoctor
	apihttp.AdminBackups
}

// reporter describes this node and the other members.
type reporter interface {
	Status(ctx context.Context) (api.NodeStatus, error)
	Members(ctx context.Context) ([]api.MemberStatus, error)
}

// applications lists the applications of the cluster.
type applications interface {
	Apps(ctx context.Context) ([]api.AppInstance, error)
}

// leaders transfers leadership.
type leaders interface {
	TransferLeader(ctx context.Context, group uint64, to string) (api.TransferResult, error)
}
