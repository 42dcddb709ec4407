package overview

import (
	"context"
	"encoding/json"
	"net/http"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/console"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Status describes this node and the members of the cluster.
type Status interface {
	Status(ctx context.Context) (schema.NodeStatus, error)
	Members(ctx context.Context) ([]schema.MemberStatus, error)
}

// Applications lists the applications of the cluster.
type Applications interface {
	Apps(ctx context.Context) ([]schema.AppInstance, error)
}

// Components describes the components of this node.
type Components interface{ Statuses() []component.Status }

// Logs are the last warnings and errors of the log, newest first.
type Logs interface {
	Records() []logadapt.RecentRecord
}

// Groups are the Raft groups of which this node has a replica.
type Groups interface{ Groups() []*group.Group }

// Runs are the last runs of jobs that this node has delivered, oldest first.
type Runs interface{ Runs() []schema.JobRun }

// Options are the dependencies of an Overview. All are required.
type Options struct {
	Status       Status
	Applications Applications
	Components   Components
	Metrics      prometheus.Gatherer
	Logs         Logs
	Groups       Groups
	Runs         Runs
	Remote       adminapi.Cluster // the admin API of every node
	Now          func() time.Time
}

// Overview describes this node and the cluster. It is safe for concurrent use. It implements adminapi.Viewer and
// console.Cluster.
type Overview struct{ opts Options }

// New returns an Overview.
func New(o Options) *Overview { return &Overview{o} }

// NodeView implements adminapi.Viewer.
func (o *Overview) NodeView(ctx context.Context) (v schema.NodeView, err error) {
	if v.Status, err = o.opts.Status.Status(ctx); err != nil {
		return v, err
	}
	if v.Apps, err = o.opts.Applications.Apps(ctx); err != nil {
		return v, err
	}
	for _, c := range o.opts.Components.Statuses() {
		v.Components = append(v.Components, schema.NodeComponent{Name: c.Name, Type: c.Type, Version: c.Version,
			State: string(c.State), Reason: c.Reason, File: c.Pos.String()})
	}
	for _, l := range o.opts.Logs.Records() {
		v.Warnings = append(v.Warnings, schema.LogRecord{Time: l.Time, Level: l.Level.String(), Text: l.Text})
	}
	families, err := o.opts.Metrics.Gather()
	if err != nil && len(families) == 0 {
		return v, &fault.Error{Code: fault.Internal, Op: "overview", Msg: "the metrics cannot be read", Err: err}
	}
	v.Leaders, v.Runs = o.leaders(), o.opts.Runs.Runs()
	v.At, v.Figures = o.opts.Now(), figuresOf(families)
	v.Alerts = alertsOf(families, v.At)
	return v, nil
}

// leaders returns the last leaders that this node has seen in each group.
func (o *Overview) leaders() (out []schema.LeaderSeen) {
	for id, g := range o.opts.Groups.Groups() {
		for _, l := range g.Leaders() {
			out = append(out, schema.LeaderSeen{Group: uint64(id), //nolint:gosec // an index
				Term: l.Term, Leader: placement.NodeOf(string(l.Leader)), At: l.At})
		}
	}
	return out
}

// Members implements console.Cluster.
func (o *Overview) Members(ctx context.Context) []console.Member {
	list, err := o.opts.Status.Members(ctx)
	if err != nil {
		return nil
	}
	out := make([]console.Member, len(list))
	var all sync.WaitGroup
	for i, m := range list {
		out[i].MemberStatus = m
		if m.State == membership.Left.String() {
			out[i].Err = "the node has left the cluster"
			continue
		}
		all.Go(func() {
			v, err := adminapi.Get[schema.NodeView](ctx, o.opts.Remote, m.Node, adminapi.ViewPath)
			if err != nil {
				out[i].Err = fault.Text(err)
				return
			}
			out[i].View = &v
		})
	}
	all.Wait()
	sort.Slice(out, func(i, k int) bool {
		if out[i].Self != out[k].Self {
			return out[i].Self
		}
		return out[i].Node < out[k].Node
	})
	return out
}

// TransferLeader implements console.Cluster.
func (o *Overview) TransferLeader(ctx context.Context, leader string, group uint64, to string) (schema.TransferResult,
	error) {
	var result schema.TransferResult
	body, err := json.Marshal(schema.TransferRequest{To: to})
	if err != nil {
		return result, err
	}
	err = o.post(ctx, leader, adminapi.TransferPath(group), body, &result)
	return result, err
}

// CompareReplicas implements console.Cluster.
func (o *Overview) CompareReplicas(ctx context.Context, leader string, group uint64) (c schema.Comparison, err error) {
	err = o.post(ctx, leader, adminapi.ComparePath(group), nil, &c)
	return c, err
}

// post sends a request to the admin API of a node and decodes the answer.
func (o *Overview) post(ctx context.Context, node, path string, body []byte, result any) error {
	answer, err := o.opts.Remote.Forward(ctx, node, adminapi.Request{Method: http.MethodPost, Path: path, Body: body})
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, result)
}
