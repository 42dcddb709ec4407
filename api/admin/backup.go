package admin

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// The paths, the trailer and the content type of backups.
const (
	BackupPath = "/v1/backup"

	// ErrorTrailer is the name of the HTTP trailer of a response that failed after its first byte. Its value is the
	// error, encoded by fault.Marshal.
	ErrorTrailer = "Quorate-Error"

	// BackupType is the content type of a backup.
	BackupType = "application/vnd.quorate.backup"
)

// Backups saves and restores all data of the cluster.
type Backups interface {
	// SaveBackup writes a backup to w. An error may come after a part of the backup was written.
	SaveBackup(ctx context.Context, w io.Writer) error
	// RestoreBackup replaces all data with the backup that it reads from r.
	RestoreBackup(ctx context.Context, r io.Reader) (schema.RestoreResult, error)
}

func (h *handler) saveBackup(w http.ResponseWriter, r *http.Request) {
	out := &backupWriter{w: w}
	err := h.node.SaveBackup(r.Context(), out)
	switch {
	case err == nil:
	case out.begun:
		w.Header().Set(ErrorTrailer, string(fault.Marshal(err)))
	default:
		h.answer(w, nil, err)
	}
}

// backupWriter sends the headers of the answer with the first byte.
type backupWriter struct {
	w     http.ResponseWriter
	begun bool
}

func (s *backupWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", BackupType)
		s.w.Header().Set("Trailer", ErrorTrailer)
	}
	n, err := s.w.Write(p)
	if err != nil {
		err = &fault.Error{Code: fault.Unavailable, Op: "admin",
			Msg: "the client of the backup closed its connection",
			Err: err}
	}
	return n, err
}

func (h *handler) restoreBackup(w http.ResponseWriter, r *http.Request) {
	result, err := h.node.RestoreBackup(r.Context(), upload{r.Body})
	if err != nil {
		// Read the rest of the body. Otherwise the connection is closed, and a client that is still sending gets no
		// answer.
		_, _ = io.Copy(io.Discard, r.Body)
	}
	h.answer(w, result, err)
}

// upload reads the body of a restore request and turns read errors into fault.Unavailable.
type upload struct{ body io.Reader }

func (u upload) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &fault.Error{Code: fault.Unavailable, Op: "admin", Msg: "the backup was not sent to its end",
			Err: err, Hint: "run the restore again"}
	}
	return n, err
}
