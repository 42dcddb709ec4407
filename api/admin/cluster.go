package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// ClusterPath is the path of the status of all nodes.
const ClusterPath = "/v1/cluster"

const (
	// nodesPath is the pattern for requests that are forwarded to another node. The variable {path...} is the path on
	// that node without the prefix "/v1/".
	nodesPath   = nodesPrefix + "{node}/{path...}"
	nodesPrefix = "/v1/nodes/"
	version     = "/v1/"
)

// NodePath returns the path at which this node accepts a request and forwards it to the given node. The given node
// serves the request at the parameter path.
func NodePath(node, path string) string {
	return nodesPrefix + url.PathEscape(node) + "/" + strings.TrimPrefix(path, version)
}

// Request is a request of the admin API for another node.
type Request struct {
	Method string `json:"method"`
	Path   string `json:"path"` // such as StatusPath, with a query if there is one
	Body   []byte `json:"body,omitempty"`
}

// Cluster gives access to the status and the admin API of every node of the cluster. Implementations are safe for
// concurrent use. All errors are *fault.Error.
type Cluster interface {
	// ClusterStatus returns the status of all nodes that gossip knows. It requests their status concurrently and
	// waits at most two seconds for each node. A node that does not answer has an error instead of a status.
	ClusterStatus(ctx context.Context) (schema.ClusterStatus, error)
	// Forward sends a request to the admin API of the node with the id node, and returns the body of the answer.
	// The node may be this node. Forward carries only the requests that NewRemoteHandler serves. The errors of the
	// other node keep their code and their hint. Forward returns fault.NotFound if gossip does not know the node,
	// and fault.Unavailable if the node cannot be reached.
	Forward(ctx context.Context, node string, r Request) ([]byte, error)
}

// Get requests path from the admin API of a node and decodes the JSON of the answer.
func Get[T any](ctx context.Context, c Cluster, node, path string) (T, error) {
	var out T
	body, err := c.Forward(ctx, node, Request{Method: http.MethodGet, Path: path})
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return out, &fault.Error{Code: fault.Internal, Op: "admin.Get", Msg: "the answer of node " + node +
			" cannot be decoded", Hint: "run the same version on all nodes", Err: err}
	}
	return out, nil
}

// Serve executes a request that another node has forwarded, and returns the body of the response. sender is the id of
// that node. h must come from NewRemoteHandler. If h answers with an error, Serve returns it as a *fault.Error.
func Serve(ctx context.Context, h http.Handler, sender string, r Request) ([]byte, error) {
	req, err := http.NewRequestWithContext(context.WithValue(ctx, remoteKey{}, sender), r.Method, r.Path,
		bytes.NewReader(r.Body))
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "admin.Serve", Msg: "the request cannot be read", Err: err}
	}
	w := &recorder{header: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(w, req)
	if w.status != http.StatusOK {
		return nil, fault.Unmarshal(w.body.Bytes())
	}
	return w.body.Bytes(), nil
}

// recorder keeps an answer in memory.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// remoteKey is the context key under which Serve stores the id of the node that forwarded a request.
type remoteKey struct{}

// remoteNode returns the id of the node that forwarded the request. It returns "" for a request over the admin
// socket.
func remoteNode(ctx context.Context) string {
	from, _ := ctx.Value(remoteKey{}).(string)
	return from
}

func isRemote(ctx context.Context) bool { return ctx.Value(remoteKey{}) != nil }

func (h *handler) cluster(w http.ResponseWriter, r *http.Request) {
	s, err := h.node.ClusterStatus(r.Context())
	h.answer(w, s, err)
}

// forward sends a request on to the node that its path names.
func (h *handler) forward(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		h.answer(w, nil, &fault.Error{Code: fault.TooLarge, Op: "admin.forward", Msg: "the request cannot be read",
			Err: err})
		return
	}
	asked := version + r.PathValue("path")
	if r.URL.RawQuery != "" {
		asked += "?" + r.URL.RawQuery
	}
	q := Request{Method: r.Method, Path: asked, Body: body}
	relay := func(w http.ResponseWriter, r *http.Request) { h.relay(w, r, r.PathValue("node"), q) }
	if !h.isSlow(q) {
		relay = within(answerTime, relay)
	}
	relay(w, r)
}

// isSlow reports whether the forwarded request q belongs to a slow route, to which no timeout of this package applies.
func (h *handler) isSlow(q Request) bool {
	asked, _, _ := strings.Cut(q.Method+" "+q.Path, "?")
	return slices.ContainsFunc(h.routes(), func(r route) bool {
		matches, err := path.Match(strings.Replace(r.pattern, "{id}", "*", 1), asked)
		return r.slow && r.remote && matches && err == nil
	})
}

// transferAt forwards a transfer of leadership to the node that leads the group.
func (h *handler) transferAt(w http.ResponseWriter, r *http.Request, leader string, group uint64,
	t schema.TransferRequest) {
	body, err := json.Marshal(t)
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	h.relay(w, r, leader, Request{Method: http.MethodPost, Path: TransferPath(group), Body: body})
}

// relay forwards the request q to a node, and answers with the answer of that node.
func (h *handler) relay(w http.ResponseWriter, r *http.Request, node string, q Request) {
	answer, err := h.node.Forward(r.Context(), node, q)
	if err != nil {
		h.answer(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", http.DetectContentType(answer))
	if json.Valid(answer) {
		w.Header().Set("Content-Type", "application/json")
	}
	if _, err := w.Write(answer); err != nil {
		h.log.Debug("an answer of another node was not read to its end", "error", err)
	}
}
