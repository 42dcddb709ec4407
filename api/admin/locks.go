package admin

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API about locks.
const (
	LocksPath       = "/v1/locks"
	LockReleasePath = "/v1/locks/release"
)

// Locks is the part of Node that shows locks and ends them.
type Locks interface {
	// HeldLocks lists every lock that has an owner.
	HeldLocks(ctx context.Context) ([]schema.LockStatus, error)
	// ReleaseLock ends a lock, regardless of its owner, and returns it. It returns fault.NotFound if there is no such
	// lock, and fault.Conflict if several locks match or the lock has another token.
	ReleaseLock(ctx context.Context, r schema.LockReleaseRequest) (schema.LockStatus, error)
}

func (h *handler) locks(w http.ResponseWriter, r *http.Request) {
	list, err := h.node.HeldLocks(r.Context())
	if list == nil {
		list = []schema.LockStatus{}
	}
	h.answer(w, list, err)
}

func (h *handler) releaseLock(w http.ResponseWriter, r *http.Request) {
	const op = "admin.releaseLock"
	var body schema.LockReleaseRequest
	if err := decode(w, r, op, &body); err != nil {
		h.answer(w, nil, err)
		return
	}
	if body.Store == "" || body.Resource == "" {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "no lock is named",
			Hint: "give a lock store and a resource; locks list shows them"})
		return
	}
	released, err := h.node.ReleaseLock(r.Context(), body)
	h.answer(w, released, err)
}
