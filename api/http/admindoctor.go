package http

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api"
)

// AdminDoctorPath is the path of the self-check: the node checks itself and its connections to other nodes.
const AdminDoctorPath = "/v1/doctor"

// AdminDoctor is the part of Admin that looks for problems of the node and its surroundings.
type AdminDoctor interface {
	// Checkup examines the node. It takes at most a few seconds.
	Checkup(ctx context.Context) (api.Checkup, error)
}

func (h *adminHandler) doctor(w http.ResponseWriter, r *http.Request) {
	c, err := h.admin.Checkup(r.Context())
	if c.Checks == nil {
		c.Checks = []api.CheckResult{}
	}
	h.answer(w, c, err)
}
