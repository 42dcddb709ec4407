package admin

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api/admin/schema"
)

// DoctorPath is the path of the self-check. The node checks itself and its connections to other nodes.
const DoctorPath = "/v1/doctor"

// Doctor is the part of Node that looks for problems of the node and its surroundings.
type Doctor interface {
	// Checkup examines the node. It takes at most a few seconds.
	Checkup(ctx context.Context) (schema.Checkup, error)
}

func (h *handler) doctor(w http.ResponseWriter, r *http.Request) {
	c, err := h.node.Checkup(r.Context())
	if c.Checks == nil {
		c.Checks = []schema.CheckResult{}
	}
	h.answer(w, c, err)
}
