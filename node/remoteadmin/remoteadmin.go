package remoteadmin

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/node/network"
	"github.com/quorate/quorate/raftfsm/placement"
)

// methodRequest is the name of the peer method that carries requests of the admin API. The payload of a call is an
// adminapi.Request as JSON.
const methodRequest = "admin.request"

const (
	statusWait = 2 * time.Second // for the status of one node
	parallel   = 64              // number of concurrent status requests
	maxRequest = 128 << 10       // bytes
	maxAnswer  = 32 << 20        // bytes; a debug bundle is the largest
)

// Network is how a Remote reaches the other nodes.
type Network interface {
	// Roster returns the nodes that gossip knows.
	Roster() *membership.Roster
	// Port returns the port for calls between nodes.
	Port() *peer.Port
}

// Remote implements adminapi.Cluster. It is safe for concurrent use.
type Remote struct {
	net     Network
	log     *slog.Logger
	handler http.Handler // of this node; set by Open
}

// New returns a Remote. Call Open before other nodes can send requests.
func New(net Network, log *slog.Logger) *Remote { return &Remote{net: net, log: log} }

// Method returns the peer method by which other nodes send requests to this node.
func (r *Remote) Method() peer.Method {
	return peer.Method{Name: methodRequest, Concurrency: 8, MaxRequest: maxRequest, MaxAnswer: maxAnswer,
		Handle: r.serve}
}

// Open sets the node that answers the requests of other nodes.
func (r *Remote) Open(n adminapi.Node) { r.handler = adminapi.NewRemoteHandler(n, r.log) }

// serve answers methodRequest.
func (r *Remote) serve(ctx context.Context, q peer.Request) ([]byte, error) {
	var request adminapi.Request
	if err := json.Unmarshal(q.Payload, &request); err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "remoteadmin.serve", Msg: "the request cannot be read",
			Hint: "run the same version on all nodes", Err: err}
	}
	return r.local(ctx, cmp.Or(q.From.Caller.Node, placement.NodeOf(q.From.Server)), request)
}

// local answers a request on this node. from is the id of the node that has sent the request.
func (r *Remote) local(ctx context.Context, from string, q adminapi.Request) ([]byte, error) {
	return adminapi.Serve(ctx, r.handler, from, q)
}

// Forward implements adminapi.Cluster.
func (r *Remote) Forward(ctx context.Context, node string, q adminapi.Request) ([]byte, error) {
	roster := r.net.Roster()
	m, known := roster.Node(node)
	if !known {
		return nil, &fault.Error{Code: fault.NotFound, Op: "remoteadmin.Forward", Msg: "no node " + node +
			" is known in this cluster", Hint: "quorate members lists the nodes"}
	}
	return r.call(ctx, roster, &m, q)
}

// call sends a request to a member.
func (r *Remote) call(ctx context.Context, roster *membership.Roster, m *membership.Member, q adminapi.Request,
) ([]byte, error) {
	if self := roster.Self().NodeID; m.NodeID == self {
		return r.local(ctx, self, q)
	}
	if m.State == membership.Left {
		return nil, fault.New(fault.Unavailable, "remoteadmin.call", "node "+m.NodeID+" has left the cluster")
	}
	payload, err := json.Marshal(q)
	if err != nil {
		return nil, fault.Wrap(err, "remoteadmin.call", "encoding the request")
	}
	answer, err := r.net.Port().Client().Call(ctx, network.PeerID(m), methodRequest, payload)
	if fault.Is(err, fault.Unimplemented) {
		return nil, &fault.Error{Code: fault.Unimplemented, Op: "remoteadmin.call", Msg: "node " + m.NodeID +
			" does not answer this request; its version is " + m.Version, Hint: "upgrade it", Err: err}
	}
	return answer, err
}

// ClusterStatus implements adminapi.Cluster.
func (r *Remote) ClusterStatus(ctx context.Context) (schema.ClusterStatus, error) {
	roster := r.net.Roster()
	self := roster.Self().NodeID
	members, err := r.members(ctx, self)
	if err != nil {
		return schema.ClusterStatus{}, err
	}
	reports := make([]schema.NodeReport, len(members))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, m := range members {
		reports[i].Member = m
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			s, err := r.status(ctx, roster, m.Node)
			if err != nil {
				reports[i].Error = whyUnreachable(err)
				return
			}
			reports[i].Status = &s
		})
	}
	wg.Wait()
	return schema.NewClusterStatus(self, reports), nil
}

// members returns the members that this node knows.
func (r *Remote) members(ctx context.Context, self string) (out []schema.MemberStatus, err error) {
	body, err := r.local(ctx, self, adminapi.Request{Method: http.MethodGet, Path: adminapi.MembersPath})
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	return out, err
}

// status returns the status of a node. It waits at most statusWait.
func (r *Remote) status(ctx context.Context, roster *membership.Roster, node string) (s schema.NodeStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	m, known := roster.Node(node)
	if !known { // the node has joined after the roster was read
		return s, fault.New(fault.Unavailable, "remoteadmin.status", "the node has just appeared")
	}
	body, err := r.call(ctx, roster, &m, adminapi.Request{Method: http.MethodGet, Path: adminapi.StatusPath})
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// whyUnreachable returns why a node did not report its status.
func whyUnreachable(err error) string {
	if fault.Is(err, fault.Timeout) || fault.Is(err, fault.Indeterminate) {
		return "it did not answer within " + statusWait.String()
	}
	return fault.Text(err)
}
