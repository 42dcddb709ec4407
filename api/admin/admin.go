package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API.
const (
	StatusPath = "/v1/status"
	StoresPath = "/v1/stores"
	// MembersPath lists the nodes of the cluster.
	MembersPath = "/v1/members"
	// AppsPath lists the applications of the cluster.
	AppsPath     = "/v1/apps"
	transferPath = "/v1/groups/{id}/transfer"
	comparePath  = "/v1/groups/{id}/compare"
)

// TransferPath returns the path at which leadership of a group is transferred.
func TransferPath(group uint64) string { return groupPath(transferPath, group) }

// ComparePath returns the path at which the replicas of a group are compared.
func ComparePath(group uint64) string { return groupPath(comparePath, group) }

func groupPath(pattern string, group uint64) string {
	return strings.Replace(pattern, "{id}", strconv.FormatUint(group, 10), 1)
}

// Timeouts of requests, except slow ones (see route). Each side waits longer than the side that it calls: another node
// answers within remoteTime, this node answers within answerTime, and a client waits RequestTime. Therefore the client
// receives the reason of a failure, for example that a group has no quorum.
const (
	RequestTime = 10 * time.Second // the timeout of clients
	answerTime  = 8 * time.Second
	remoteTime  = 6 * time.Second
)

// OpUnknown is the Op of the error for a path that the admin API does not have.
const OpUnknown = "admin"

// maxBody bounds a request to the admin API, in bytes.
const maxBody = 64 << 10

// Node has the operations that the admin API needs from the node. Implementations are safe for concurrent use and
// return when ctx ends. All errors are *fault.Error.
type Node interface {
	// Status describes the node as it is now, whether it is ready or not.
	Status(ctx context.Context) (schema.NodeStatus, error)
	// Members lists the nodes that the node knows, itself included, in order of their ids.
	Members(ctx context.Context) ([]schema.MemberStatus, error)
	// Apps lists every application that the node knows of, in order of application and node.
	Apps(ctx context.Context) ([]schema.AppInstance, error)
	// TransferLeader transfers leadership of a group to the node with the id to. If to is empty, it chooses a voter
	// that keeps up with the log. If this node does not lead the group, the error is fault.NotLeader. The key of
	// this error is the node id of the leader, if one is known. The handler of the admin socket then sends the
	// request to the leader.
	TransferLeader(ctx context.Context, group uint64, to string) (schema.TransferResult, error)
	// CompareReplicas compares the states of all replicas of a group, and changes none. It takes up to 18 seconds.
	// If this node does not lead the group, the error is fault.NotLeader.
	CompareReplicas(ctx context.Context, group uint64) (schema.Comparison, error)
	Backups
	Remover
	Doctor
	Cluster
	Locks
	Jobs
	Topics
	Calls
	Actors
	Workflows
	VoterSetting
	Console
	Viewer
	Debugger
	Configurations
}

// route is one request of the admin API.
type route struct {
	pattern string // of http.ServeMux
	serve   http.HandlerFunc
	remote  bool // another node may send the request; see Cluster.Forward
	slow    bool // no timeout of this package applies; the handler may have its own
}

func (h *handler) routes() []route {
	return []route{
		{"GET " + StatusPath, h.status, true, false},
		{"GET " + StoresPath, h.stores, true, false},
		{"GET " + MembersPath, h.members, true, false},
		{"GET " + AppsPath, h.apps, true, false},
		{"POST " + transferPath, h.transfer, true, false},
		{"POST " + comparePath, h.compare, true, true},
		{"GET " + DoctorPath, h.doctor, true, true},
		{"GET " + LocksPath, h.locks, true, false},
		{"GET " + JobsPath, h.jobs, true, false},
		{"GET " + TopicsPath, h.topics, true, false},
		{"GET " + ActorsPath, h.actors, true, false},
		{"GET " + VotersPath, h.voters, true, false},
		{"POST " + VotersPath, h.setVoters, true, false},

		{"GET " + BackupPath, h.saveBackup, false, true},
		{"POST " + BackupPath, h.restoreBackup, false, true},
		{"POST " + RemovePath, h.remove, false, false},
		{"POST " + LeavePath, h.leave, false, false},
		{"POST " + LockReleasePath, h.releaseLock, false, false},
		{"POST " + JobChangePath, h.changeJob, false, false},
		{"POST " + TopicPublishPath, h.publishMessage, false, false},
		{"GET " + topicMessagesPath, h.readMessages, false, true},
		{"GET " + callsPath, h.watchCalls, false, true},
		{"POST " + TopicReplayPath, h.replayTopic, false, true},
		{"POST " + TopicDeletePath, h.deleteTopic, false, true},
		{"POST " + TopicRedrivePath, h.redriveTopic, false, true},
		{"POST " + ActorMovePath, h.moveActor, false, false},
		{"POST " + ActorRebalancePath, h.rebalanceActors, false, false},
		{"GET " + WorkflowsPath, h.workflows, false, false},
		{"GET " + WorkflowPath, h.workflow, false, false},
		{"GET " + WorkflowHistoryPath, h.workflowHistory, false, false},
		{"POST " + WorkflowStartPath, h.startWorkflow, false, false},
		{"POST " + WorkflowChangePath, h.changeWorkflow, false, false},
		{"POST " + WorkflowPurgePath, h.purgeWorkflows, false, false},
		{"POST " + WorkflowRerunPath, h.rerunWorkflow, false, false},
		{"GET " + configurationPath, h.configurationItems, false, true},
		{"POST " + configurationPath, h.writeConfiguration, false, true},
		{"GET " + configurationPath + watchSuffix, h.watchConfiguration, false, true},
		{"GET " + ClusterPath, h.cluster, true, false},
		{"POST " + ConsolePath, h.console, false, false},
		{"GET " + ViewPath, h.view, true, false},
		{"GET " + DebugBundlePath, h.debugBundle, true, true},
		{"GET " + nodesPath, h.forward, false, true},
		{"POST " + nodesPath, h.forward, false, true},
	}
}

// NewHandler returns the handler of the admin API. It does not authenticate clients. Serve the handler only on the
// admin socket, or on a port that authenticates clients. Error bodies are encoded by fault.Marshal, so clients get the
// code and the hint.
func NewHandler(n Node, log *slog.Logger) http.Handler {
	return newHandler(n, log, answerTime, func(route) bool { return true })
}

// NewRemoteHandler returns the handler for admin requests that other nodes send. It does not forward requests. It
// serves only two changes: the transfer of leadership and the number of voters. It serves all reads except those of
// backups, configuration items, workflows, messages and API requests.
func NewRemoteHandler(n Node, log *slog.Logger) http.Handler {
	return newHandler(n, log, remoteTime, func(r route) bool { return r.remote })
}

func newHandler(n Node, log *slog.Logger, limit time.Duration, serves func(route) bool) http.Handler {
	h := &handler{node: n, log: log}
	mux := http.NewServeMux()
	for _, r := range h.routes() {
		switch {
		case !serves(r):
		case r.slow:
			mux.HandleFunc(r.pattern, r.serve)
		default:
			mux.HandleFunc(r.pattern, within(limit, r.serve))
		}
	}
	mux.HandleFunc("/", h.unknown)
	return audited(mux, log)
}

// within returns a handler that calls serve with a context that ends after limit, or earlier with the request.
func within(limit time.Duration, serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		serve(w, r.WithContext(ctx))
	}
}

type handler struct {
	node Node
	log  *slog.Logger
}

func (h *handler) status(w http.ResponseWriter, r *http.Request) {
	s, err := h.node.Status(r.Context())
	h.answer(w, s, err)
}

func (h *handler) stores(w http.ResponseWriter, r *http.Request) {
	s, err := h.node.Status(r.Context())
	if s.Stores == nil {
		s.Stores = []schema.StoreStatus{}
	}
	h.answer(w, s.Stores, err)
}

func (h *handler) members(w http.ResponseWriter, r *http.Request) {
	m, err := h.node.Members(r.Context())
	if m == nil {
		m = []schema.MemberStatus{}
	}
	h.answer(w, m, err)
}

func (h *handler) apps(w http.ResponseWriter, r *http.Request) {
	list, err := h.node.Apps(r.Context())
	if list == nil {
		list = []schema.AppInstance{}
	}
	h.answer(w, list, err)
}

// decode decodes the JSON body of a request. The body may have at most maxBody bytes and no unknown fields.
func decode(w http.ResponseWriter, r *http.Request, op string, body any) error {
	return decodeUpTo(w, r, op, body, maxBody)
}

// decodeUpTo is like decode, except that the body may have up to limit bytes.
func decodeUpTo(w http.ResponseWriter, r *http.Request, op string, body any, limit int64) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit))
	d.DisallowUnknownFields()
	if err := d.Decode(body); err != nil {
		return &fault.Error{Code: fault.Invalid, Op: op, Msg: "the request cannot be read",
			Hint: "use the quorate command of the version that the node runs", Err: err}
	}
	return nil
}

// groupOf returns the group in the path of a request.
func groupOf(r *http.Request) (uint64, error) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 32)
	if err != nil {
		return 0, &fault.Error{Code: fault.Invalid, Op: "admin", Msg: strconv.Quote(r.PathValue("id")) +
			" is not a group", Hint: "give a number; status lists the groups"}
	}
	return id, nil
}

func (h *handler) compare(w http.ResponseWriter, r *http.Request) {
	id, err := groupOf(r)
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	c, err := h.node.CompareReplicas(r.Context(), id)
	h.answer(w, c, err)
}

func (h *handler) transfer(w http.ResponseWriter, r *http.Request) {
	const op = "admin.transfer"
	id, err := groupOf(r)
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	var body schema.TransferRequest
	if err := decode(w, r, op, &body); err != nil {
		h.answer(w, nil, err)
		return
	}
	result, err := h.node.TransferLeader(r.Context(), id, body.To)
	if leader := fault.KeyOf(err); fault.Is(err, fault.NotLeader) && leader != "" && !isRemote(r.Context()) {
		h.transferAt(w, r, leader, id, body)
		return
	}
	h.answer(w, result, err)
}

func (h *handler) unknown(w http.ResponseWriter, r *http.Request) {
	h.answer(w, nil, &fault.Error{Code: fault.NotFound, Op: OpUnknown, Msg: r.Method + " " + r.URL.Path +
		" is no request of the admin API",
		Hint: "use the quorate command of the version that the node runs"})
}

func (h *handler) answer(w http.ResponseWriter, body any, err error) {
	text, status := []byte(nil), http.StatusOK
	if err == nil {
		text, err = json.Marshal(body)
	}
	if err != nil {
		text, status = fault.Marshal(err), httpStatus(fault.CodeOf(err))
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(text); err != nil {
		h.log.Debug("an answer of the admin API was not read to its end", "error", err)
	}
}

// httpStatus returns the HTTP status for an error code. Clients act on the code in the body and ignore the status.
func httpStatus(c fault.Code) int {
	switch c {
	case fault.Invalid, fault.TooLarge:
		return http.StatusBadRequest
	case fault.Denied:
		return http.StatusForbidden
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict:
		return http.StatusConflict
	case fault.Unimplemented:
		return http.StatusNotImplemented
	case fault.Unavailable, fault.NotLeader, fault.FormatBlocked:
		return http.StatusServiceUnavailable
	case fault.Timeout, fault.Indeterminate:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}
