package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

const callsPath = "/v1/calls"

// Calls is the part of Node that shows API requests.
type Calls interface {
	// WatchCalls passes to take each API request of this node that ends from now on and that f selects. It ends only
	// when ctx ends or take returns an error. It returns an error if too many readers watch already.
	WatchCalls(ctx context.Context, f schema.CallFilter, take func(schema.CallLine) error) error
}

// CallsPath returns the path that streams the API requests of a node, one schema.CallLine per line.
func CallsPath(f *schema.CallFilter) string {
	q := url.Values{}
	for name, value := range map[string]string{"app": f.App, "route": f.Route, "trace": f.Trace} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.Failed {
		q.Set("failed", "true")
	}
	if f.Least > 0 {
		q.Set("least", f.Least.String())
	}
	return strings.TrimSuffix(callsPath+"?"+q.Encode(), "?")
}

func (h *handler) watchCalls(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := schema.CallFilter{App: q.Get("app"), Route: q.Get("route"), Trace: q.Get("trace"),
		Failed: q.Get("failed") == "true"}
	if text := q.Get("least"); text != "" {
		var err error
		if f.Least, err = time.ParseDuration(text); err != nil {
			h.answer(w, nil, fault.New(fault.Invalid, "admin.watchCalls", "least is not a duration"))
			return
		}
	}
	stream(h, w, func(e json.RawMessage) schema.CallLine { return schema.CallLine{Error: e} },
		func(send func(schema.CallLine) error) error { return h.node.WatchCalls(r.Context(), f, send) })
}

// stream answers a request with JSON lines. It calls run with a function that sends one line. If run fails before the
// first line, the answer is an ordinary error. If run fails later, stream passes the encoded error to broken, and sends
// the result of broken as the last line.
func stream[T any](h *handler, w http.ResponseWriter, broken func(json.RawMessage) T, run func(func(T) error) error) {
	begun := false
	control, lines := http.NewResponseController(w), json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	send := func(line T) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/x-ndjson")
			w.WriteHeader(http.StatusOK)
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
		return control.Flush()
	}
	err := run(send)
	switch {
	case err == nil:
	case !begun:
		h.answer(w, nil, err)
	default:
		if seen, ok := w.(*witness); ok {
			seen.broken = true
		}
		_ = send(broken(fault.Marshal(err))) // the client may have gone
	}
}
