package admin

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api/admin/schema"
)

// ViewPath is the path of the view of a node: everything that the web console shows of the node.
const ViewPath = "/v1/view"

// Viewer is the part of Node that describes the node for the web console.
type Viewer interface {
	// NodeView describes the node: its status, its figures and the last warnings of its log.
	NodeView(ctx context.Context) (schema.NodeView, error)
}

func (h *handler) view(w http.ResponseWriter, r *http.Request) {
	v, err := h.node.NodeView(r.Context())
	h.answer(w, v, err)
}
