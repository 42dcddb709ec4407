package admin

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API that take servers out of the cluster.
const (
	RemovePath = "/v1/remove"
	LeavePath  = "/v1/leave"
)

// Remover is the part of Node that permanently removes servers from the cluster.
type Remover interface {
	// Remove removes a server from every group. target is a server id or a node id. It returns the progress at once;
	// call it again to continue.
	Remove(ctx context.Context, target string) (schema.RemoveResult, error)
	// Leave removes the server of this node. The node stops when the removal is done.
	Leave(ctx context.Context) (schema.RemoveResult, error)
}

func (h *handler) remove(w http.ResponseWriter, r *http.Request) {
	const op = "admin.remove"
	var body schema.RemoveRequest
	if err := decode(w, r, op, &body); err != nil {
		h.answer(w, nil, err)
		return
	}
	if body.Target == "" {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "no server is named",
			Hint: "give a node id or a server id; members lists them"})
		return
	}
	result, err := h.node.Remove(r.Context(), body.Target)
	h.answer(w, result, err)
}

func (h *handler) leave(w http.ResponseWriter, r *http.Request) {
	result, err := h.node.Leave(r.Context())
	h.answer(w, result, err)
}
