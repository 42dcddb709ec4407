package node

import (
	"context"
	"io"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/quorate/quorate/node/bundle"
)

// debugger implements adminapi.Debugger.
type debugger struct{ node *Node }

// DebugBundle writes a debug bundle to w. The parameter profile is the duration of the CPU profile in the bundle. The
// bundle contains the settings with which the node was started, with secrets redacted. It omits the arguments of
// commands, because they may contain secrets.
func (d debugger) DebugBundle(ctx context.Context, w io.Writer, profile time.Duration) error {
	n := d.node
	config := n.config
	config.App.Command, config.Backup.Command = programOf(config.App.Command), programOf(config.Backup.Command)
	return bundle.Write(ctx, w, profile, bundle.Options{Node: n.Admin(), Config: config, Metrics: n.deps.Registry,
		Logs: n.deps.records, Version: n.config.Version, Now: n.deps.Now})
}

// programOf returns a command without its arguments.
func programOf(command []string) []string { return command[:min(1, len(command))] }

// withProfiles returns a handler that serves the profiles of the Go runtime, and passes all other requests to next.
func withProfiles(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.Handle("/", next)
	return mux
}
