package http

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API that take servers out of the cluster.
const (
	AdminRemovePath = "/v1/remove"
	AdminLeavePath  = "/v1/leave"
)

// AdminRemover is the part of Admin that permanently removes servers from the cluster.
type AdminRemover interface {
	// Remove removes a server from every group. target is a server id or a node id. It returns the progress at once;
	// call it again to continue.
	Remove(ctx context.Context, target string) (api.RemoveResult, error)
	// Leave removes the server of this node. The node stops when the removal is done.
	Leave(ctx context.Context) (api.RemoveResult, error)
}

func (h *adminHandler) remove(w http.ResponseWriter, r *http.Request) {
	const op = "http.Admin.remove"
	var body api.RemoveRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAdminBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "the request cannot be read",
			Hint: "use the quorate command of the version that the node runs", Err: err})
		return
	}
	if body.Target == "" {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "no server is named",
			Hint: "give a node id or a server id; members lists them"})
		return
	}
	result, err := h.admin.Remove(r.Context(), body.Target)
	h.answer(w, result, err)
}

func (h *adminHandler) leave(w http.ResponseWriter, r *http.Request) {
	result, err := h.admin.Leave(r.Context())
	h.answer(w, result, err)
}
