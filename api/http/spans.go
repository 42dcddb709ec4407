package http

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/quorate/quorate/api"
)

// isTraced reports whether Face starts a trace span for the requests of a route. For calls of applications and
// operations of bindings, other packages start the spans. Watches have no span, because they last as long as the client
// wants.
func isTraced(pattern string) bool {
	_, rest, _ := strings.Cut(strings.TrimPrefix(pattern, "/"), "/") // after the version
	switch block, _, _ := strings.Cut(rest, "/"); block {
	case "state", "secrets", "actors", "jobs", "configuration":
		return !strings.HasSuffix(pattern, "/watch")
	}
	return false
}

// startSpan starts the span of a request. It returns nil if the endpoint is not traced, spans are not exported, or the
// tracer starts no span.
func (e *endpoint) startSpan(r *http.Request) api.RequestSpan {
	if !e.traced || !e.face.tracer.Exports() {
		return nil
	}
	name, more := spanOf(r)
	span := e.face.tracer.StartRequest(r.Context(), r.Header, name)
	if span == nil {
		return nil
	}
	span.Set(append(more, api.SpanProtocol, "http", api.SpanAPI, r.Method+" "+r.URL.Path)...)
	if strings.HasPrefix(name, callActor) {
		span.Inject(r.Header) // the actor continues the trace
	}
	return span
}

// endSpan ends the span of a request that was answered.
func endSpan(span api.RequestSpan, p *reply) {
	span.Set(api.SpanStatus, strconv.Itoa(p.status))
	span.End(p.status, nil)
}

const callActor = "CallActor/"

// spanOf returns the name and the attributes of the span of a request, as in Dapr. The name is the path, except for
// calls, reminders and timers of actors.
func spanOf(r *http.Request) (name string, attributes []string) {
	path, statement := r.URL.Path, r.Method+" "+r.URL.Path
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 6)
	for len(parts) < 6 {
		parts = append(parts, "")
	}
	switch parts[1] {
	case "state", "secrets":
		return path, api.StoreAttributes(parts[1], parts[2], statement)
	case "actors":
		kind, actor := parts[2], parts[2]+"."+parts[3]
		attributes = []string{api.SpanActor, actor}
		switch parts[4] {
		case "state":
			return path, append(attributes, api.StoreAttributes("state", "actor", statement)...)
		case "method":
			method, _, _ := strings.Cut(parts[5], "/")
			return callActor + kind + "/" + method, append(attributes, api.SpanService, "ServiceInvocation",
				api.SpanPeer, actor)
		case "reminders":
			return actorOperation(r.Method) + "ActorReminder/" + kind, attributes
		case "timers":
			return actorOperation(r.Method) + "ActorTimer/" + kind, attributes
		}
		return path, attributes
	}
	return path, nil
}

// actorOperation returns the first word of the span name for an operation on reminders or timers, as in Dapr. verb is
// the HTTP method. For example, the word is "Register" for POST.
func actorOperation(verb string) string {
	switch verb {
	case http.MethodGet, http.MethodHead:
		return "Get"
	case http.MethodDelete:
		return "Unregister"
	}
	return "Register"
}
