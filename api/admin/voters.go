package admin

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// VotersPath is the path at which the number of voters of the cluster is read and changed.
const VotersPath = "/v1/voters"

// VoterSetting is the part of Node that shows and changes the number of voters.
type VoterSetting interface {
	// Voters returns the number of voters that each group should have, and the servers that vote now.
	Voters(ctx context.Context) (schema.VotersStatus, error)
	// SetVoters sets the number of voters of each group, for the whole cluster. It returns when the number is stored.
	// The leaders add or remove voters afterwards.
	SetVoters(ctx context.Context, number int) (schema.VotersStatus, error)
}

func (h *handler) voters(w http.ResponseWriter, r *http.Request) {
	s, err := h.node.Voters(r.Context())
	h.answer(w, s, err)
}

func (h *handler) setVoters(w http.ResponseWriter, r *http.Request) {
	var body schema.VotersRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || body.Voters == 0 {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: "admin.setVoters", Msg: "the request has no number",
			Hint: "use the quorate command of the version that the node runs", Err: err})
		return
	}
	s, err := h.node.SetVoters(r.Context(), body.Voters)
	h.answer(w, s, err)
}
