package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
)

// methodPromise asks a server that belongs to no cluster to let the caller form one with it.
const methodPromise = "cluster.promise"

const (
	formPause   = 250 * time.Millisecond // between looks at the gossip while there is no cluster
	promiseWait = 2 * time.Second        // for one server's promise
)

// findCluster waits until this server is part of a cluster: one that others know of, or,
// with --bootstrap-expect, one that it forms with them. It runs until then or the end.
func (n *Node) findCluster(ctx context.Context) {
	for n.host.Identity().Cluster == "" {
		roster := n.gossip.Load().Roster()
		n.search(ctx, roster)
		pause := time.NewTimer(formPause)
		select {
		case <-roster.Changed():
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		pause.Stop()
	}
	own := n.host.Identity()
	id := own.Cluster
	if err := n.gossip.Load().UpdateFacts(func(f *membership.Facts) { f.ClusterID, f.Epoch = id, uint32(own.Epoch) }); err != nil && ctx.Err() == nil {
		n.log.Error("the others cannot be told which cluster this node belongs to", "cluster_id", id, "error", err)
	}
	n.introduce()
	n.port.Refresh()
	n.waitingFor.Store(nil)
	n.log.Info("part of a cluster", "cluster", n.config.Cluster.Name, "cluster_id", id)
}

// search makes one attempt and notes what is still missing.
func (n *Node) search(ctx context.Context, r *membership.Roster) {
	if id, epoch := formed(r); id != "" {
		if err := n.host.Adopt(id, epoch); err != nil {
			n.wait("%s", fault.Text(err))
		}
		return
	}
	if why := n.refusal(); why != nil {
		n.wait("%s", fault.Text(why))
		return
	}
	if n.place.notes != "" && n.sidecar() {
		n.wait("the node of this user that holds the shared data directory has not been reached yet")
		return
	}
	expect := n.config.Cluster.BootstrapExpect
	if !n.config.Cluster.joining() {
		n.wait("the data directory %s was made to join a cluster and belongs to none yet: start the node with --join, or choose another --data-dir", n.config.Data.Dir)
		return
	}
	if expect == 0 {
		n.wait("no node of a cluster has been reached through --join %s; to form a new cluster, start its servers with --bootstrap-expect%s", strings.Join(n.config.Cluster.Join, ","), n.tokenHint())
		return
	}
	servers := candidates(r)
	if len(servers) < expect {
		n.wait("%d of %d servers have been reached (%s)", len(servers), expect, names(servers))
		return
	}
	self := n.host.Identity()
	first := servers[0]
	if first.ServerID != self.Server {
		n.wait("%s is to form the cluster of %s", first.NodeID, names(servers))
		return
	}
	n.form(ctx, servers[:expect])
}

// formed is the id of a cluster that a living member belongs to, and its epoch.
func formed(r *membership.Roster) (id string, epoch uint64) {
	for _, m := range r.Alive() {
		if m.ClusterID != "" && m.Role == membership.Server {
			return m.ClusterID, uint64(m.Epoch)
		}
	}
	return "", 0
}

// candidates are the living servers that could form a cluster, by node id.
func candidates(r *membership.Roster) []membership.Member {
	var out []membership.Member
	for _, m := range r.Alive() {
		if m.Role == membership.Server && m.ClusterID == "" && m.BootstrapExpect > 0 {
			out = append(out, m)
		}
	}
	return out
}

func names(members []membership.Member) string {
	var out []string
	for _, m := range members {
		out = append(out, m.NodeID)
	}
	return strings.Join(out, ", ")
}

// form collects the promises of all servers, its own first, and makes the cluster alone;
// the others are added as replicas, and promoted once they have caught up.
func (n *Node) form(ctx context.Context, servers []membership.Member) {
	self := n.host.Identity()
	for _, s := range servers {
		var err error
		if s.ServerID == self.Server {
			err = n.host.Promise(self.Server)
		} else {
			err = n.askPromise(ctx, s.ServerID)
		}
		if err != nil {
			n.wait("%s does not agree that %s forms the cluster: %s", s.NodeID, self.Node, fault.Text(err))
			return
		}
	}
	n.log.Info("forming a cluster", "servers", names(servers))
	if err := n.host.Form(ctx); err != nil && ctx.Err() == nil {
		n.wait("the cluster could not be formed: %s", fault.Text(err))
	}
}

func (n *Node) askPromise(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, promiseWait)
	defer cancel()
	_, err := n.port.Join().Call(ctx, server, methodPromise, binary.AppendUvarint(nil, uint64(n.config.Cluster.BootstrapExpect)))
	return err
}

// servePromise lets the caller form a cluster, unless there is one already, or the two
// disagree about its size.
func (n *Node) servePromise(_ context.Context, r peer.Request) ([]byte, error) {
	expect, k := binary.Uvarint(r.Payload)
	if mine := n.config.Cluster.BootstrapExpect; k <= 0 || expect != uint64(mine) {
		return nil, &fault.Error{Code: fault.Conflict, Op: "node.promise", Msg: fmt.Sprintf("--bootstrap-expect is %d here and %d there", mine, expect),
			Hint: "give all servers of a new cluster the same number"}
	}
	g := n.gossip.Load()
	if g == nil {
		return nil, fault.New(fault.Unavailable, "node.promise", "this node is starting")
	}
	if id, _ := formed(g.Roster()); id != "" {
		return nil, fault.New(fault.Conflict, "node.promise", "there is a cluster already")
	}
	return nil, n.host.Promise(r.From.Server)
}

// wait notes what the node waits for, and logs it when it changes.
func (n *Node) wait(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if was := n.waitingFor.Swap(&text); was == nil || *was != text {
		n.log.Info("waiting for the cluster: " + text)
	}
}

// outside says why this node is not a working part of the cluster: because the others
// refuse it, or because it has not been one yet.
func (n *Node) outside() *api.Reason {
	if why := n.host.Removed(); why != nil {
		return &api.Reason{Name: "cluster", Text: fault.Text(why)}
	}
	if why := n.refusal(); why != nil {
		return &api.Reason{Name: "cluster", Text: fault.Text(why)}
	}
	if n.inside.Load() {
		return nil
	}
	if n.host.Identity().Cluster == "" {
		text := "looking for the nodes to join"
		if why := n.waitingFor.Load(); why != nil {
			text = *why
		}
		return &api.Reason{Name: "cluster", Text: text}
	}
	if n.host.Partitions() == 0 {
		return &api.Reason{Name: "cluster", Text: fault.Text(n.host.Ready(0))}
	}
	for i := range n.host.Partitions() {
		if err := n.host.Ready(i); err != nil {
			return &api.Reason{Name: "cluster", Text: fault.Text(err)}
		}
	}
	n.inside.Store(true)
	return nil
}

// refusal is why the nodes to join do not want this one; nil if none has said so.
func (n *Node) refusal() error {
	now, cancel := context.WithCancel(context.Background())
	cancel() // only what is known already
	err := n.gossip.Load().Joined(now)
	if err == nil || fault.Is(err, fault.Timeout) {
		return nil
	}
	return err
}
