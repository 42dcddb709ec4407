package admin

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// DebugBundlePath is the path of a debug bundle.
const DebugBundlePath = "/v1/debug/bundle"

// MaxDebugProfile is the maximum duration of the CPU profile in a debug bundle.
const MaxDebugProfile = 60 * time.Second

// Debugger is the part of Node that helps to find out why the node misbehaves.
type Debugger interface {
	// DebugBundle writes a gzipped tar archive to w. The archive has the status, the settings, the metrics, the last
	// log records, and profiles of the Go runtime. profile is the duration of the CPU profile. The archive contains
	// no secrets.
	DebugBundle(ctx context.Context, w io.Writer, profile time.Duration) error
}

// DebugBundleRequest returns the path and query of a request for a debug bundle whose CPU profile lasts the given
// number of seconds.
func DebugBundleRequest(seconds int) string {
	return DebugBundlePath + "?seconds=" + strconv.Itoa(seconds)
}

func (h *handler) debugBundle(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.Atoi(r.URL.Query().Get("seconds"))
	if err != nil || seconds < 1 || time.Duration(seconds)*time.Second > MaxDebugProfile {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: "admin.debug",
			Msg:  "the time of the profile is not valid",
			Hint: "give 1 to 60 seconds"})
		return
	}
	var b bytes.Buffer // in memory (1-2 MB), so that an error can still be answered
	if err := h.node.DebugBundle(r.Context(), &b, time.Duration(seconds)*time.Second); err != nil {
		h.answer(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/gzip")
	if _, err := w.Write(b.Bytes()); err != nil {
		h.log.Debug("a debug bundle was not read to its end", "error", err)
	}
}
