package http

import (
	"log/slog"
	"net/http"
	"time"
)

// audited leaves a line in the log for each administrative action that changes something or
// takes data out, with how it ended. Whoever may speak to the admin API is the user of the
// node, so the line says what was done and not who asked.
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
			log.Info("audit: administrative action", "action", r.Method+" "+r.URL.Path, "outcome", outcome, "status", seen.status, "took", time.Since(begun).Round(time.Millisecond))
		}()
		next.ServeHTTP(seen, r)
	})
}

// audits reports whether a request is more than a question about the node.
func audits(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.Path == AdminSnapshotPath
}

// witness notes the status of an answer.
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

// Unwrap is for http.ResponseController.
func (w *witness) Unwrap() http.ResponseWriter { return w.ResponseWriter }
