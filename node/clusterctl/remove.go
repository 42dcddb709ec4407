package clusterctl

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// methodRemove is the peer method that makes the leader of a group remove a server. If removeCall.Dry is set, the
// leader only checks whether the removal is possible.
const methodRemove = "cluster.remove"

const opRemove = "node.Remove"

// removeCall is the request of methodRemove, and removeAnswer is the answer. Both are encoded as JSON.
type removeCall struct {
	Group  uint32 `json:"group"`
	Server string `json:"server"`
	Target string `json:"target,omitempty"` // server id or node id, instead of Server; needs Dry
	Dry    bool   `json:"dry,omitempty"`    // only report whether the removal is possible
}

type removeAnswer struct {
	Server string `json:"server"` // removeCall.Server, or what the leader found
	Done   bool   `json:"done"`   // the server is no longer in the group
	Reason string `json:"reason"` // why it is not removed yet
}

// Remove permanently removes a server from every group. The target is its server id or its node id. A server that was
// removed earlier is accepted too.
//
// Remove returns the progress, and does not wait until the removal is complete. To continue, call it again. While a
// group has no leader, Remove retries until ctx ends. Errors:
//
//	not_found      the target is unknown
//	invalid        the target is a sidecar
//	conflict       a group could not work without the server, or the target is a node with several servers
//	not_leader     ctx has ended while leadership of a group was changing
//	unavailable    ctx has ended while a group had no leader, or the server cannot be removed at the moment
//	indeterminate  an error has occurred after the removal had begun in some groups, where it continues
func (ctl *Controller) Remove(ctx context.Context, target string) (schema.RemoveResult, error) {
	server, err := ctl.target(target)
	if fault.Is(err, fault.NotFound) && ctl.host.Partitions() > 0 {
		// The replica of this node may be behind, or there is none. The leader has the tombstones of removed servers.
		var a removeAnswer
		if a, err = ctl.askRemove(ctx, removeCall{Target: target, Dry: true}); err == nil {
			server = a.Server
		}
	}
	if err != nil {
		return schema.RemoveResult{}, err
	}
	return ctl.remove(ctx, server)
}

// Leave removes this node's server from all groups. It returns an error if a group cannot work without the server.
// Leave returns the progress without waiting; call it again to continue. When the removal is complete, Leave stops the
// node.
func (ctl *Controller) Leave(ctx context.Context) (schema.RemoveResult, error) {
	id := ctl.host.Identity()
	out := schema.RemoveResult{Node: id.Node, Done: true, Groups: []schema.RemoveGroup{}}
	if ctl.host.Removed() == nil && !ctl.opts.Sidecar {
		// The removal continues between two calls, and the removal check may see its end first.
		ctl.reconciler.leaving.Store(true)
		var err error
		if out, err = ctl.remove(ctx, id.Server); err != nil || !out.Done {
			if fault.Is(err, fault.Conflict) {
				ctl.reconciler.leaving.Store(false) // this server stays
			}
			return out, err
		}
		if err := ctl.host.Retire(); err != nil {
			return out, err
		}
	}
	ctl.log.Info("this node has left its groups on request and stops")
	time.AfterFunc(leaveAnswer, ctl.opts.Stopper.Stop)
	return out, nil
}

// leaveAnswer is the time between the answer to a leave and the stop of the node.
const leaveAnswer = 200 * time.Millisecond

// remove checks with the leader of every group that the server can be removed, and then requests the removal from each
// of them. The leaders complete the removal in the background, even if this node fails.
func (ctl *Controller) remove(ctx context.Context, server string) (schema.RemoveResult, error) {
	out := schema.RemoveResult{Node: placement.NodeOf(server), ServerID: server, Done: true,
		Groups: []schema.RemoveGroup{}}
	count := ctl.host.Partitions()
	if count == 0 {
		return out, ctl.host.Ready(0)
	}
	for _, dry := range []bool{true, false} {
		for i := range count {
			a, err := ctl.askRemove(ctx, removeCall{Group: i, Server: server, Dry: dry})
			if err != nil {
				err = fault.Wrap(err, opRemove, fmt.Sprintf("%s cannot be removed from group %d", out.Node, i))
				return out, unfinished(err, len(out.Groups))
			}
			if !dry {
				out.Groups = append(out.Groups, schema.RemoveGroup{Group: uint64(i), Done: a.Done, Reason: a.Reason})
				out.Done = out.Done && a.Done
			}
		}
	}
	return out, nil
}

// unfinished converts err, the error of a removal that has already begun in the given number of groups. If the number
// is 0, it returns err unchanged.
//
// If the number is above 0, the code fault.Conflict stays, because the refusal of a group is final. Any other code
// becomes fault.Indeterminate, because the removal continues in the groups in which it has begun.
func unfinished(err error, begun int) error {
	if begun == 0 {
		return err
	}
	e := &fault.Error{Code: fault.Indeterminate, Op: opRemove, Key: fault.KeyOf(err), Err: err,
		Msg: fmt.Sprintf("the removal has begun in %d of the groups and continues there", begun)}
	if fault.Is(err, fault.Conflict) {
		e.Code = fault.Conflict
	}
	return e
}

// askRemove sends a removal request to the leader of its group, which may be this node. While the leader is changing or
// unavailable, askRemove retries until ctx ends. If ctx ends during an attempt of a dry run, the error is that of the
// previous attempt.
func (ctl *Controller) askRemove(ctx context.Context, c removeCall) (removeAnswer, error) {
	payload, err := json.Marshal(c)
	if err != nil {
		return removeAnswer{}, err
	}
	var last error
	for {
		var out []byte
		leader := ctl.host.Leader(c.Group)
		if leader == "" { // this server may be removed already
			leader = ctl.host.FindLeader(ctx, c.Group, ctl.net.LiveServers())
		}
		switch leader {
		case "":
			if err = ctl.host.Ready(c.Group); err == nil {
				err = fault.New(fault.Unavailable, opRemove,
					fmt.Sprintf("group %d has no leader that this node knows of", c.Group))
			}
		case ctl.host.Identity().Server:
			out, err = ctl.serveRemove(ctx, peer.Request{Payload: payload})
		default:
			out, err = ctl.net.Port().Client().Call(ctx, leader, methodRemove, payload)
		}
		if err == nil {
			var a removeAnswer
			err = json.Unmarshal(out, &a)
			return a, err
		}
		if c.Dry && last != nil && ctx.Err() != nil {
			return removeAnswer{}, last // the attempt was cut off, and has changed nothing
		}
		if !fault.Is(err, fault.NotLeader) && !fault.Is(err, fault.Unavailable) {
			return removeAnswer{}, err
		}
		last = err
		select {
		case <-time.After(retryLeader):
		case <-ctx.Done():
			return removeAnswer{}, err
		}
	}
}

// retryLeader is the pause before a call to a leader is retried.
const retryLeader = 100 * time.Millisecond

// serveRemove answers methodRemove. This node must lead the group.
func (ctl *Controller) serveRemove(ctx context.Context, r peer.Request) ([]byte, error) {
	var c removeCall
	if err := json.Unmarshal(r.Payload, &c); err != nil || c.Server == "" && !(c.Dry && c.Target != "") {
		return nil, &fault.Error{Code: fault.Invalid, Op: opRemove,
			Msg: "the request to remove a server cannot be read", Err: err, Hint: "run the same version on all nodes"}
	}
	groups := ctl.host.Groups()
	if int(c.Group) >= len(groups) || !groups[c.Group].Leading() {
		return nil, fault.New(fault.NotLeader, opRemove, fmt.Sprintf("this server does not lead group %d", c.Group))
	}
	if c.Server == "" {
		var err error
		if c.Server, err = ctl.target(c.Target); err != nil {
			return nil, err
		}
	}
	member := ctl.host.Standing(c.Group, c.Server)
	if !member.Removed {
		if err := ctl.mark(ctx, c, groups[c.Group]); err != nil {
			return nil, err
		}
	}
	a := removeAnswer{Server: c.Server, Done: member.Removed && member.Settled && !member.Member}
	if !a.Done {
		if _, a.Reason = ctl.reconciler.about(c.Group, c.Server); a.Reason == "" {
			a.Reason = "it is about to be removed"
		}
	}
	return json.Marshal(a)
}

// mark commits the tombstone of a server in a group that this node leads. A tombstone records that the server is
// removed permanently. If c.Dry is set, the call only checks whether the server can be removed. Errors:
//
//	not_leader   this server no longer leads the group
//	conflict     the group cannot work without the server
//	unavailable  the group cannot work without the server, but this may change soon
//	unavailable  another server is being removed at the same time
func (ctl *Controller) mark(ctx context.Context, c removeCall, g *group.Group) error {
	seen, err := ctl.host.Removals(c.Group)
	if err != nil {
		return err
	}
	in, _ := ctl.reconciler.look(ctx, c.Group, g)
	if !g.Leading() { // look did not ask the other servers
		return fault.New(fault.NotLeader, opRemove, fmt.Sprintf("this server no longer leads group %d", c.Group))
	}
	if why, passing := placement.Removable(in, c.Server); why != "" {
		e := &fault.Error{Code: fault.Conflict, Op: opRemove, Key: c.Server, Msg: why}
		if passing {
			e.Code = fault.Unavailable
		}
		return e
	}
	if c.Dry {
		return nil
	}
	ctl.log.Info("a server is removed on request", "group", c.Group, "server", c.Server)
	err = ctl.host.MarkRemoved(ctx, c.Group, c.Server, seen)
	if fault.Is(err, fault.Conflict) {
		return &fault.Error{Code: fault.Unavailable, Op: opRemove, Key: c.Server, Err: err,
			Msg: "another server is being removed at the same time"}
	}
	if err != nil {
		return err
	}
	ctl.reconciler.hurry()
	return nil
}

// target returns the id of the server with the given server id or node id. If a node has several servers, it prefers
// one that is not removed. Errors:
//
//	not_found  the name is unknown
//	invalid    the node is a sidecar
//	conflict   the node has several servers that are not removed
func (ctl *Controller) target(name string) (string, error) {
	known, removed := ctl.knownServers(), ctl.removedServers()
	if slices.Contains(known, name) || slices.Contains(removed, name) {
		return name, nil
	}
	isOther := func(server string) bool { return placement.NodeOf(server) != name }
	isRemoved := func(server string) bool { return slices.Contains(removed, server) }
	mine := slices.DeleteFunc(slices.Clone(known), isOther)
	found := slices.DeleteFunc(slices.Clone(mine), isRemoved)
	leaving := slices.DeleteFunc(append(mine, removed...), func(s string) bool { return isOther(s) || !isRemoved(s) })
	if len(found) == 1 {
		return found[0], nil
	}
	e := &fault.Error{Code: fault.NotFound, Op: opRemove, Key: name}
	m, ok := ctl.net.Gossip().Roster().Node(name)
	switch {
	case len(found) > 1:
		e.Code, e.Msg, e.Hint = fault.Conflict, name+" stands for several servers", "name one of "+
			strings.Join(found, ", ")
	case ok && m.Role == membership.Sidecar:
		e.Code, e.Msg, e.Hint = fault.Invalid, name+" is a sidecar: it holds no data and no vote", "stop it"
	case len(leaving) > 0:
		return leaving[0], nil // one that is still in a group, if there is one
	default:
		e.Msg, e.Hint = "no server "+name+" is known", "the servers are "+strings.Join(known, ", ")
	}
	return "", e
}

// removedServers returns the ids of all removed servers, according to the tombstones in the replicas of this node.
func (ctl *Controller) removedServers() []string {
	var out []string
	for i := range ctl.host.Groups() {
		out = append(out, ctl.host.RemovedServers(uint32(i))...) //nolint:gosec // few groups
	}
	return out
}

// knownServers returns the ids of all servers that groups or gossip know, sorted.
func (ctl *Controller) knownServers() []string {
	var out []string
	for _, g := range ctl.host.Groups() {
		servers, _ := g.Servers()
		for _, s := range servers {
			out = append(out, string(s.ID))
		}
	}
	for _, m := range ctl.net.Gossip().Roster().Servers() {
		if m.ClusterID != "" {
			out = append(out, m.ServerID)
		}
	}
	slices.SortFunc(out, cmp.Compare[string])
	return slices.Compact(out)
}
