package admin

import (
	"log/slog"
	"net/http"
	"time"
)

// audited wraps a handler. It logs the outcome of each administrative action that changes something or exports data.
// If another node forwarded the action, the log line names that node. It names no user, because only the user of the
// node can call the admin API.
func audited(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !audits(r) {
			next.ServeHTTP(w, r)
			return
		}
		begun, seen := time.Now(), &witness{ResponseWriter: w}
		defer func() {
			outcome := "done"
			switch {
			case seen.status == 0:
				outcome = "broken off"
			case seen.status >= http.StatusBadRequest:
				outcome = "refused or failed"
			}
			about := []any{"action", r.Method + " " + r.URL.Path, "outcome", outcome, "status", seen.status, "took",
				time.Since(begun).Round(time.Millisecond)}
			if from := remoteNode(r.Context()); from != "" {
				about = append(about, "from", from)
			}
			log.Info("audit: administrative action", about...)
		}()
		next.ServeHTTP(seen, r)
	})
}

// audits reports whether a request changes something or exports data.
func audits(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.Path == BackupPath ||
		r.URL.Path == DebugBundlePath
}

// witness is a response writer that records the status.
type witness struct {
	http.ResponseWriter
	status int
}

func (w *witness) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *witness) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap returns the underlying writer to http.ResponseController.
func (w *witness) Unwrap() http.ResponseWriter { return w.ResponseWriter }
