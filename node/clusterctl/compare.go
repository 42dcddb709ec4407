package clusterctl

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/placement"
)

const opCompare = "node.CompareReplicas"

// CompareReplicas compares the state of all replicas of a group. It changes nothing. Errors, besides those of
// group.Group.Compare:
//
//	not_leader   another node leads the group
//	unavailable  no leader is known
//	not_found    there is no such group
func (ctl *Controller) CompareReplicas(ctx context.Context, id uint64) (schema.Comparison, error) {
	out := schema.Comparison{Group: id}
	groups := ctl.host.Groups()
	if id < uint64(ctl.host.Partitions()) && (ctl.opts.Sidecar || id >= uint64(len(groups))) {
		return out, ctl.elsewhere(opCompare, id, ctl.host.Leader(uint32(id)))
	}
	if id >= uint64(len(groups)) {
		return out, &fault.Error{Code: fault.NotFound, Op: opCompare, Msg: fmt.Sprintf("there is no group %d", id),
			Hint: "quorate status lists the groups"}
	}
	g := groups[id]
	if leader := string(g.Leader()); leader != ctl.host.Identity().Server {
		return out, ctl.elsewhere(opCompare, id, leader)
	}
	c, err := g.Compare(ctx)
	if err != nil {
		return out, err
	}
	out.Index = c.Index
	if d, found := c.Majority(); found {
		out.Majority = d.String()
	}
	for i := range c.Answers {
		a := &c.Answers[i]
		one := schema.ReplicaDigest{Node: placement.NodeOf(string(a.Server.ID)), Voter: a.Voter()}
		switch {
		case a.Err != nil:
			one.Reason = fault.Text(a.Err)
		case a.Report.Marked:
			one.Digest = a.Report.Digest.String()
		case a.Report.Doubted:
			one.Reason = "it does not trust its state and copies that of another server"
		default:
			one.Reason = "it has not applied that entry yet"
		}
		out.Replicas = append(out.Replicas, one)
	}
	slices.SortFunc(out.Replicas, func(a, b schema.ReplicaDigest) int { return cmp.Compare(a.Node, b.Node) })
	return out, nil
}
