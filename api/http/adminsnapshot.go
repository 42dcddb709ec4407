package http

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// Where backups are read and written.
const (
	AdminSnapshotPath = "/v1/snapshot"

	// AdminErrorTrailer is the trailer of a stream that broke off: the failure, in the form of
	// fault.Marshal.
	AdminErrorTrailer = "Quorate-Error"

	// SnapshotType is the content type of a backup.
	SnapshotType = "application/vnd.quorate.backup"
)

// AdminSnapshots saves and restores all data of the cluster.
type AdminSnapshots interface {
	// SaveSnapshot writes a backup to w. It writes nothing if it fails at once.
	SaveSnapshot(ctx context.Context, w io.Writer) error
	// RestoreSnapshot replaces all data by those of the backup that is read from r.
	RestoreSnapshot(ctx context.Context, r io.Reader) (api.RestoreResult, error)
}

func (h *adminHandler) saveSnapshot(w http.ResponseWriter, r *http.Request) {
	out := &snapshotWriter{w: w}
	err := h.admin.SaveSnapshot(r.Context(), out)
	switch {
	case err == nil:
	case out.begun:
		w.Header().Set(AdminErrorTrailer, string(fault.Marshal(err)))
	default:
		h.answer(w, nil, err)
	}
}

// snapshotWriter begins the answer with the first byte.
type snapshotWriter struct {
	w     http.ResponseWriter
	begun bool
}

func (s *snapshotWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !s.begun {
		s.begun = true
		s.w.Header().Set(headerContentType, SnapshotType)
		s.w.Header().Set("Trailer", AdminErrorTrailer)
	}
	n, err := s.w.Write(p)
	if err != nil {
		err = &fault.Error{Code: fault.Unavailable, Op: "http.Admin", Msg: "whoever asked for the backup is gone", Err: err}
	}
	return n, err
}

func (h *adminHandler) restoreSnapshot(w http.ResponseWriter, r *http.Request) {
	result, err := h.admin.RestoreSnapshot(r.Context(), upload{r.Body})
	if err != nil {
		// A client that is still sending would find the connection closed instead of the answer.
		_, _ = io.Copy(io.Discard, r.Body)
	}
	h.answer(w, result, err)
}

// upload reads a backup that is being sent.
type upload struct{ body io.Reader }

func (u upload) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &fault.Error{Code: fault.Unavailable, Op: "http.Admin", Msg: "the backup was not sent to its end", Err: err, Hint: "run the restore again"}
	}
	return n, err
}
