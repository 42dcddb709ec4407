package http

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// The paths of the admin API.
const (
	AdminStatusPath = "/v1/status"
	AdminStoresPath = "/v1/stores"
	// AdminMembersPath lists the nodes of the cluster.
	AdminMembersPath = "/v1/members"
	// AdminAppsPath lists the applications of the cluster.
	AdminAppsPath = "/v1/apps"
	adminTransfer = "/v1/groups/{id}/transfer"
)

// AdminTransferPath returns the path at which leadership of a group is transferred.
func AdminTransferPath(group uint64) string {
	return strings.Replace(adminTransfer, "{id}", strconv.FormatUint(group, 10), 1)
}

// maxAdminBody bounds a request to the admin API, in bytes.
const maxAdminBody = 64 << 10

// Admin is what the admin API can do with the node. Implementations are safe for concurrent use and return when ctx
// ends. All errors are *fault.Error.
type Admin interface {
	// Status describes the node as it is now, whether it is ready or not.
	Status(ctx context.Context) (api.NodeStatus, error)
	// Members lists the nodes that the node knows, itself included, by their ids.
	Members(ctx context.Context) ([]api.MemberStatus, error)
	// Apps lists every application that the node knows of, by application and node.
	Apps(ctx context.Context) ([]api.AppInstance, error)
	// TransferLeader transfers leadership of a group to the node with the id to. If to is empty, it chooses a voter
	// that keeps up with the log. If this node does not lead the group, the error is fault.NotLeader and names the
	// leader.
	TransferLeader(ctx context.Context, group uint64, to string) (api.TransferResult, error)
	AdminBackups
	AdminRemover
	AdminDoctor
}

// NewAdmin returns the handler of the admin API. It does not authenticate clients: serve it on the admin socket, or
// on a port that authenticates its clients. Error bodies are encoded by fault.Marshal, so clients get the code and
// the hint.
func NewAdmin(a Admin, log *slog.Logger) http.Handler {
	h := &adminHandler{admin: a, log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+AdminStatusPath, h.status)
	mux.HandleFunc("GET "+AdminStoresPath, h.stores)
	mux.HandleFunc("GET "+AdminMembersPath, h.members)
	mux.HandleFunc("GET "+AdminAppsPath, h.apps)
	mux.HandleFunc("POST "+adminTransfer, h.transfer)
	for _, path := range []string{AdminBackupPath, AdminOldBackupPath} {
		mux.HandleFunc("GET "+path, h.saveBackup)
		mux.HandleFunc("POST "+path, h.restoreBackup)
	}
	mux.HandleFunc("POST "+AdminRemovePath, h.remove)
	mux.HandleFunc("POST "+AdminLeavePath, h.leave)
	mux.HandleFunc("GET "+AdminDoctorPath, h.doctor)
	mux.HandleFunc("/", h.unknown)
	return audited(mux, log)
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

func (h *adminHandler) members(w http.ResponseWriter, r *http.Request) {
	m, err := h.admin.Members(r.Context())
	if m == nil {
		m = []api.MemberStatus{}
	}
	h.answer(w, m, err)
}

func (h *adminHandler) apps(w http.ResponseWriter, r *http.Request) {
	list, err := h.admin.Apps(r.Context())
	if list == nil {
		list = []api.AppInstance{}
	}
	h.answer(w, list, err)
}

func (h *adminHandler) transfer(w http.ResponseWriter, r *http.Request) {
	const op = "http.Admin.transfer"
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 32)
	if err != nil {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: strconv.Quote(r.PathValue("id")) +
			" is not a group", Hint: "give a number; status lists the groups"})
		return
	}
	var body api.TransferRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAdminBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: "the request cannot be read",
			Hint: "use the quorate command of the version that the node runs", Err: err})
		return
	}
	result, err := h.admin.TransferLeader(r.Context(), id, body.To)
	h.answer(w, result, err)
}

func (h *adminHandler) unknown(w http.ResponseWriter, r *http.Request) {
	h.answer(w, nil, &fault.Error{Code: fault.NotFound, Op: "http.Admin", Msg: r.Method + " " + r.URL.Path +
		" is no request of the admin API",
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

// adminStatus returns the HTTP status for an error code. Clients act on the code in the body and ignore the status.
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
