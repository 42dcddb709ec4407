package clusterctl

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/node/network"
)

// methodPromise is the peer method that requests a promise from a server without a cluster: only the calling server may
// form the cluster.
const methodPromise = "cluster.promise"

const (
	formPause   = 250 * time.Millisecond // between checks of gossip while there is no cluster
	promiseWait = 2 * time.Second        // timeout of one server's promise
)

// findCluster waits until this server belongs to a cluster or ctx ends. Usually the server joins an existing cluster.
// With --bootstrap-expect, servers can also form a new cluster together.
func (ctl *Controller) findCluster(ctx context.Context) {
	for ctl.host.Identity().Cluster == "" {
		roster := ctl.net.Gossip().Roster()
		if ctl.search(ctx, roster); ctl.host.Identity().Cluster != "" {
			break
		}
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
	self := ctl.host.Identity()
	id := self.Cluster
	if err := ctl.net.Gossip().UpdateFacts(func(f *membership.Facts) {
		f.ClusterID, f.Epoch = id, uint32(self.Epoch)
	}); err != nil && ctx.Err() == nil {
		ctl.log.Error("the cluster of this node cannot be announced to the other nodes", "cluster_id", id, "error",
			err)
	}
	ctl.net.Introduce(ctl.host.Identity())
	ctl.net.Port().Refresh()
	ctl.waitingFor.Store(nil)
	ctl.log.Info("joined a cluster", "cluster", ctl.opts.Name, "cluster_id", id)
}

// search makes one attempt to find or form a cluster. If the attempt fails, the reason is stored for the status of the
// node.
func (ctl *Controller) search(ctx context.Context, r *membership.Roster) {
	if id, epoch := formed(r); id != "" {
		if err := ctl.host.Adopt(id, epoch); err != nil {
			ctl.wait("%s", fault.Text(err))
		}
		return
	}
	if why := ctl.refusal(); why != nil {
		ctl.wait("%s", fault.Text(why))
		return
	}
	if ctl.opts.Shared && ctl.opts.Sidecar {
		ctl.wait("the node of this user that holds the shared data directory has not been reached yet")
		return
	}
	expect := ctl.opts.BootstrapExpect
	if len(ctl.opts.Join) == 0 {
		ctl.wait("the data directory %s was made to join a cluster and belongs to none yet: start the node "+
			"with --join, or choose another --data-dir", ctl.opts.DataDir)
		return
	}
	if expect == 0 {
		ctl.wait("no node of a cluster has been reached through --join %s; to form a new cluster, start its "+
			"servers with --bootstrap-expect%s", strings.Join(ctl.opts.Join, ","), ctl.opts.JoinHint)
		return
	}
	servers := candidates(r)
	if len(servers) < expect {
		ctl.wait("%d of %d servers have been reached (%s)", len(servers), expect, names(servers))
		return
	}
	self := ctl.host.Identity()
	first := servers[0]
	if first.ServerID != self.Server {
		ctl.wait("%s is to form the cluster of %s", first.NodeID, names(servers))
		return
	}
	ctl.form(ctx, servers[:expect])
}

// formed looks in r for a live server that belongs to a cluster. It returns the id and the epoch of this cluster, or ""
// if there is no such server.
func formed(r *membership.Roster) (id string, epoch uint64) {
	for _, m := range r.Alive() {
		if m.ClusterID != "" && m.Role == membership.Server {
			return m.ClusterID, uint64(m.Epoch)
		}
	}
	return "", 0
}

// candidates returns the live servers that could form a cluster, sorted by node id.
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

// form forms a cluster with the given servers. Each of them, beginning with this one, must promise that only this
// server may form the cluster. Then this server creates the cluster as its only voter. The other servers join later as
// non-voters, and become voters when they have caught up.
func (ctl *Controller) form(ctx context.Context, servers []membership.Member) {
	self := ctl.host.Identity()
	for _, s := range servers {
		var err error
		if s.ServerID == self.Server {
			err = ctl.host.Promise(self.Server)
		} else {
			err = ctl.askPromise(ctx, s.ServerID)
		}
		if fault.Is(err, fault.Unavailable) {
			why := fault.Text(err)
			if hint := network.HintFor(err); hint != "" {
				why += " (" + hint + ")"
			}
			ctl.wait("%s cannot promise that %s may form the cluster: %s", s.NodeID, self.Node, why)
			return
		}
		if err != nil {
			ctl.wait("%s does not agree that %s forms the cluster: %s", s.NodeID, self.Node, fault.Text(err))
			return
		}
	}
	ctl.log.Info("forming a cluster", "servers", names(servers))
	if err := ctl.host.Form(ctx); err != nil && ctx.Err() == nil {
		ctl.wait("the cluster could not be formed: %s", fault.Text(err))
	}
}

func (ctl *Controller) askPromise(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, promiseWait)
	defer cancel()
	_, err := ctl.net.Port().Join().Call(ctx, server, methodPromise,
		binary.AppendUvarint(nil, uint64(ctl.opts.BootstrapExpect)))
	return err
}

// servePromise handles methodPromise. It promises that only the calling server may form the cluster. It returns
// fault.Conflict if gossip already knows a cluster, or if --bootstrap-expect differs between the two servers.
func (ctl *Controller) servePromise(_ context.Context, r peer.Request) ([]byte, error) {
	expect, k := binary.Uvarint(r.Payload)
	if mine := ctl.opts.BootstrapExpect; k <= 0 || expect != uint64(mine) {
		return nil, &fault.Error{Code: fault.Conflict, Op: "node.promise",
			Msg:  fmt.Sprintf("--bootstrap-expect is %d here and %d there", mine, expect),
			Hint: "give all servers of a new cluster the same number"}
	}
	if id, _ := formed(ctl.net.Gossip().Roster()); id != "" {
		return nil, fault.New(fault.Conflict, "node.promise", "there is a cluster already")
	}
	return nil, ctl.host.Promise(r.From.Server)
}

// wait stores a text that describes what the node waits for. It logs the text if it differs from the previous one.
func (ctl *Controller) wait(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if was := ctl.waitingFor.Swap(&text); was == nil || *was != text {
		ctl.log.Info("waiting for the cluster: " + text)
	}
}

// Outside returns the reason why this node is not a working member of the cluster. For example, the node has not joined
// yet, or other nodes refuse it. Outside returns nil if the node is a working member. Gossip must be open.
func (ctl *Controller) Outside() *api.Reason {
	if why := ctl.host.Removed(); why != nil {
		return &api.Reason{Name: "cluster", Text: fault.Text(why)}
	}
	if why := ctl.refusal(); why != nil {
		return &api.Reason{Name: "cluster", Text: fault.Text(why)}
	}
	if why := ctl.leftBehind(); why != nil {
		return why
	}
	if ctl.inside.Load() {
		return nil
	}
	if ctl.host.Identity().Cluster == "" {
		text := "looking for the nodes to join"
		if why := ctl.waitingFor.Load(); why != nil {
			text = *why
		}
		if err := ctl.net.Gossip().Refused(); err != nil {
			text += "; another node is refused: " + fault.Text(err)
		}
		return &api.Reason{Name: "cluster", Text: text + ctl.gossipTrouble()}
	}
	if ctl.host.Partitions() == 0 {
		return &api.Reason{Name: "cluster", Text: fault.Text(ctl.host.Ready(0)) + ctl.gossipTrouble()}
	}
	for i := range ctl.host.Partitions() {
		if err := ctl.host.Ready(i); err != nil {
			return &api.Reason{Name: "cluster", Text: fault.Text(err) + ctl.gossipTrouble()}
		}
	}
	ctl.inside.Store(true)
	return nil
}

// gossipTrouble returns the reason why this node reaches no other node by gossip. The text begins with "; " and can be
// appended to a message. It is empty if this node reaches another node, or if there are no nodes to join.
func (ctl *Controller) gossipTrouble() string {
	why := ctl.net.Gossip().Trouble()
	if why == nil {
		return ""
	}
	return "; no node is reached by gossip: " + strings.Join(strings.Split(fault.Text(why), "\n"), "; ")
}

// Issues returns the problems that do not prevent the node from working. There can be two:
//
//   - The node reaches no other node by gossip, so it does not learn of new, failed or moved nodes.
//   - There are two clusters. A rescue has formed a new cluster without this server, but the old cluster still has a
//     leader.
func (ctl *Controller) Issues() (out []schema.Issue) {
	if why := ctl.gossipTrouble(); why != "" && ctl.inside.Load() {
		out = append(out, schema.Issue{About: "gossip", Reason: strings.TrimPrefix(why, "; ")})
	}
	if id := ctl.host.Identity(); id.LeftBehind() && ctl.leftBehind() == nil {
		out = append(out, schema.Issue{About: "cluster",
			Reason: fmt.Sprintf("a rescue left this server and those that it works with behind: they are at "+
				"cluster epoch %d, the rescued cluster is at epoch %d and has none of their later writes (choose "+
				"one of the two clusters, and stop the other one: see 'old servers come back' in "+
				"docs/operations/disaster.md)", id.Epoch, id.Superseded)})
	}
	return out
}

// refusal returns why the nodes to join refuse this node, or nil if none has refused it.
func (ctl *Controller) refusal() error {
	now, cancel := context.WithCancel(context.Background())
	cancel() // so that Joined does not wait
	err := ctl.net.Gossip().Joined(now)
	if err == nil || fault.Is(err, fault.Timeout) {
		return nil
	}
	return err
}

// noteNewerEpoch stores on disk the newest cluster epoch that gossip has seen, if it is newer than the epoch of this
// server. It also logs an error. The epoch is newer if a rescue of the cluster has left out this server.
func (r *reconciler) noteNewerEpoch() {
	epoch, self := uint64(r.net.Gossip().RefusedEpoch()), r.host.Identity()
	if r.opts.Sidecar || epoch <= max(self.Epoch, self.Superseded) {
		return
	}
	if err := r.host.Supersede(epoch); err != nil {
		r.log.Error("the newer epoch of the cluster cannot be noted on the disk", "epoch", epoch, "error", err)
		return
	}
	r.log.Error("this server was left behind by a rescue of the cluster", "epoch", self.Epoch, "newer_epoch", epoch,
		"hint", leftBehindHint(r.opts.DataDir))
}

// leftBehindHint returns a hint for operators. It describes how a server that was left out by a rescue can join the
// cluster again. The parameter dir is the data directory of the server.
func leftBehindHint(dir string) string {
	return "move its data directory " + dir + " away and start it again, it joins as a new server"
}

// leftBehind returns a reason if a rescue has left out this server (see raftfsm.Rescue), and the server knows no leader
// of any group. Otherwise it returns nil. It sends no requests.
func (ctl *Controller) leftBehind() *api.Reason {
	id := ctl.host.Identity()
	if !id.LeftBehind() {
		return nil
	}
	for i := range ctl.host.Partitions() {
		if ctl.host.Leader(i) != "" {
			return nil
		}
	}
	return &api.Reason{Name: "cluster", Text: fmt.Sprintf("this server was left behind by a rescue of the cluster: it "+
		"is at cluster epoch %d, the cluster at epoch %d (%s)", id.Epoch, id.Superseded,
		leftBehindHint(ctl.opts.DataDir))}
}

// followEpoch updates the cluster epoch of a sidecar after a rescue of the cluster, which begins a new epoch. Session
// tokens of earlier epochs may refer to writes that the rescue has lost. On a server, followEpoch does nothing.
func (r *reconciler) followEpoch(roster *membership.Roster) {
	self := r.host.Identity()
	if id, epoch := formed(roster); r.opts.Sidecar && id == self.Cluster && epoch > self.Epoch {
		if err := r.host.Adopt(id, epoch); err != nil {
			r.log.Warn("the cluster was rescued, and this node cannot follow", "error", err)
			return
		}
		r.log.Warn("the cluster was rescued: earlier sessions may have read writes that are lost", "epoch", epoch)
	}
}
