package http

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api"
)

// AdminDoctorPath is where the node examines itself and its ways to the others.
const AdminDoctorPath = "/v1/doctor"

// AdminDoctor is the part of Admin that looks for what is wrong around the node.
type AdminDoctor interface {
	// Checkup examines the node now. It takes a few seconds at most.
	Checkup(ctx context.Context) (api.Checkup, error)
}

func (h *adminHandler) doctor(w http.ResponseWriter, r *http.Request) {
	c, err := h.admin.Checkup(r.Context())
	if c.Checks == nil {
		c.Checks = []api.CheckResult{}
	}
	h.answer(w, c, err)
}
