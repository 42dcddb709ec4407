package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/placement"
)

// methodRemove asks the leader of a group to remove a server, or whether it would.
const methodRemove = "cluster.remove"

const opRemove = "node.Remove"

// removeCall is the request of methodRemove, and removeAnswer its answer. Both are JSON.
type removeCall struct {
	Group  uint32 `json:"group"`
	Server string `json:"server"`
	Dry    bool   `json:"dry,omitempty"` // only say whether it may be
}

type removeAnswer struct {
	Done   bool   `json:"done"`   // the server is in the group no more
	Reason string `json:"reason"` // why not yet
}

// Remove takes a server, named by its own id or by its node's, out of every group for good.
// It returns at once with how far that has got; asked again, it goes on. Errors: not_found
// for a name nobody knows, conflict where the groups could not go on without the server,
// not_leader and unavailable while a group has no leader.
func (n *Node) Remove(ctx context.Context, target string) (api.RemoveResult, error) {
	server, err := n.target(target)
	if err != nil {
		return api.RemoveResult{}, err
	}
	return n.remove(ctx, server)
}

// Leave removes this node's server from every group, once others can do without it, and
// then stops the node. It returns at once with how far that has got; asked again, it goes on.
func (n *Node) Leave(ctx context.Context) (api.RemoveResult, error) {
	id := n.host.Identity()
	out := api.RemoveResult{Node: id.Node, Done: true, Groups: []api.RemoveGroup{}}
	if n.host.Removed() == nil && !n.sidecar() {
		var err error
		if out, err = n.remove(ctx, id.Server); err != nil || !out.Done {
			return out, err
		}
		if err := n.host.Retire(); err != nil {
			return out, err
		}
	}
	n.log.Info("this node has left its groups, as an operator asked, and stops")
	time.AfterFunc(leaveAnswer, func() { n.shutdown(false) })
	return out, nil
}

// leaveAnswer lets the answer to a leave get out before the node stops.
const leaveAnswer = 200 * time.Millisecond

// remove asks the leader of every group whether the server may go, and, if all agree, has
// them see it off. A leader carries that out even if this node fails now.
func (n *Node) remove(ctx context.Context, server string) (api.RemoveResult, error) {
	out := api.RemoveResult{Node: placement.NodeOf(server), ServerID: server, Done: true, Groups: []api.RemoveGroup{}}
	count := n.host.Partitions()
	if count == 0 {
		return out, n.host.Ready(0)
	}
	for _, dry := range []bool{true, false} {
		for i := range count {
			a, err := n.askRemove(ctx, removeCall{Group: i, Server: server, Dry: dry})
			if err != nil {
				return out, fault.Wrap(err, opRemove, fmt.Sprintf("%s cannot be removed from group %d", out.Node, i))
			}
			if !dry {
				out.Groups = append(out.Groups, api.RemoveGroup{Group: uint64(i), Done: a.Done, Reason: a.Reason})
				out.Done = out.Done && a.Done
			}
		}
	}
	return out, nil
}

// askRemove reaches the leader of a group, here or elsewhere, and follows it when it moves.
func (n *Node) askRemove(ctx context.Context, c removeCall) (removeAnswer, error) {
	payload, err := json.Marshal(c)
	if err != nil {
		return removeAnswer{}, err
	}
	for {
		var out []byte
		leader := n.host.Leader(c.Group)
		if leader == "" { // this server may be out already
			leader = n.host.FindLeader(ctx, c.Group, n.liveServers())
		}
		switch leader {
		case "":
			err = fault.New(fault.Unavailable, opRemove, fmt.Sprintf("group %d has no leader that this node knows of", c.Group))
		case n.host.Identity().Server:
			out, err = n.serveRemove(ctx, peer.Request{Payload: payload})
		default:
			out, err = n.port.Client().Call(ctx, leader, methodRemove, payload)
		}
		if err == nil {
			var a removeAnswer
			err = json.Unmarshal(out, &a)
			return a, err
		}
		if !fault.Is(err, fault.NotLeader) && !fault.Is(err, fault.Unavailable) {
			return removeAnswer{}, err
		}
		select {
		case <-time.After(retryLeader):
		case <-ctx.Done():
			return removeAnswer{}, err
		}
	}
}

// retryLeader is how long a call for a leader waits before it is tried again.
const retryLeader = 100 * time.Millisecond

// serveRemove answers methodRemove on the leader of the group.
func (n *Node) serveRemove(ctx context.Context, r peer.Request) ([]byte, error) {
	var c removeCall
	if err := json.Unmarshal(r.Payload, &c); err != nil || c.Server == "" {
		return nil, &fault.Error{Code: fault.Invalid, Op: opRemove, Msg: "the request to remove a server cannot be read", Err: err, Hint: "run the same version on all nodes"}
	}
	groups := n.host.Groups()
	if n.reconciler == nil || int(c.Group) >= len(groups) || !groups[c.Group].Leading() {
		return nil, fault.New(fault.NotLeader, opRemove, fmt.Sprintf("this server does not lead group %d", c.Group))
	}
	standing := n.host.Standing(c.Group, c.Server)
	if !standing.Removed {
		in := n.reconciler.look(ctx, c.Group, groups[c.Group])
		if why := placement.Removable(in, c.Server); why != "" {
			return nil, &fault.Error{Code: fault.Conflict, Op: opRemove, Key: c.Server, Msg: why}
		}
		if !c.Dry {
			n.log.Info("a server is removed as an operator asked", "group", c.Group, "server", c.Server)
			if err := n.host.MarkRemoved(ctx, c.Group, c.Server); err != nil {
				return nil, err
			}
			n.reconciler.hurry()
		}
	}
	a := removeAnswer{Done: standing.Removed && standing.Settled && !standing.Member}
	if !a.Done {
		if _, a.Reason = n.reconciler.about(c.Group, c.Server); a.Reason == "" {
			a.Reason = "it is about to be removed"
		}
	}
	return json.Marshal(a)
}

// target finds the server that a person means: by its own id, or by the id of its node,
// as long as that says which.
func (n *Node) target(name string) (string, error) {
	known := n.knownServers()
	if slices.Contains(known, name) {
		return name, nil
	}
	var found []string
	for _, s := range known {
		if placement.NodeOf(s) == name {
			found = append(found, s)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	e := &fault.Error{Code: fault.NotFound, Op: opRemove, Key: name}
	m, ok := n.gossip.Load().Roster().Node(name)
	switch {
	case len(found) > 1:
		e.Code, e.Msg, e.Hint = fault.Conflict, name+" stands for several servers", "name one of "+strings.Join(found, ", ")
	case ok && m.Role == membership.Sidecar:
		e.Code, e.Msg, e.Hint = fault.Invalid, name+" is a sidecar: it holds no data and no vote", "stop it"
	default:
		e.Msg, e.Hint = "no server "+name+" is known", "the servers are "+strings.Join(known, ", ")
	}
	return "", e
}

// knownServers are the ids of all servers that groups or gossip know, sorted.
func (n *Node) knownServers() []string {
	var out []string
	for _, g := range n.host.Groups() {
		servers, _ := g.Servers()
		for _, s := range servers {
			out = append(out, string(s.ID))
		}
	}
	for _, m := range n.gossip.Load().Roster().Servers() {
		if m.ClusterID != "" {
			out = append(out, m.ServerID)
		}
	}
	slices.SortFunc(out, cmp.Compare[string])
	return slices.Compact(out)
}
