package http

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API.
const (
	AdminStatusPath = "/v1/status"
	AdminStoresPath = "/v1/stores"
)

// Admin is what the admin API asks of the node. Implementations are safe for concurrent
// use and honour ctx; their errors are *fault.Error.
type Admin interface {
	// Status describes the node as it is now, whether it is ready or not.
	Status(ctx context.Context) (api.NodeStatus, error)
}

// NewAdmin returns the handler of the admin API. It must only ever be served to the
// owner of the node: by the admin socket, or by a port that knows its peers. Errors are
// answered in the form of fault.Marshal, so that a client gets code and hint back.
func NewAdmin(a Admin, log *slog.Logger) http.Handler {
	h := &adminHandler{admin: a, log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+AdminStatusPath, h.status)
	mux.HandleFunc("GET "+AdminStoresPath, h.stores)
	mux.HandleFunc("/", h.unknown)
	return mux
}

type adminHandler struct {
	admin Admin
	log   *slog.Logger
}

func (h *adminHandler) status(w http.ResponseWriter, r *http.Request) {
	s, err := h.admin.Status(r.Context())
	h.answer(w, s, err)
}

func (h *adminHandler) stores(w http.ResponseWriter, r *http.Request) {
	s, err := h.admin.Status(r.Context())
	if s.Stores == nil {
		s.Stores = []api.StoreStatus{}
	}
	h.answer(w, s.Stores, err)
}

func (h *adminHandler) unknown(w http.ResponseWriter, r *http.Request) {
	h.answer(w, nil, &fault.Error{Code: fault.NotFound, Op: "http.Admin", Msg: r.Method + " " + r.URL.Path + " is no request of the admin API",
		Hint: "use the quorate command of the version that the node runs"})
}

func (h *adminHandler) answer(w http.ResponseWriter, body any, err error) {
	text, status := []byte(nil), http.StatusOK
	if err == nil {
		text, err = json.Marshal(body)
	}
	if err != nil {
		text, status = fault.Marshal(err), adminStatus(fault.CodeOf(err))
	}
	header := w.Header()
	header.Set(headerContentType, valueJSON[0])
	w.WriteHeader(status)
	if _, err := w.Write(text); err != nil {
		h.log.Debug("an answer of the admin API was not read to its end", "error", err)
	}
}

// adminStatus is the HTTP status for a failure; clients act on the code in the body.
func adminStatus(c fault.Code) int {
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
	case fault.Unavailable, fault.NotLeader:
		return http.StatusServiceUnavailable
	case fault.Timeout, fault.Indeterminate:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}
