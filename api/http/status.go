package http

import (
	"net/http"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
)

// status returns the HTTP status of the answer for a kind of failure.
func status(k api.Kind) int {
	switch k {
	case api.Malformed, api.Missing:
		return http.StatusBadRequest
	case api.Unauthenticated:
		return http.StatusUnauthorized
	case api.Denied:
		return http.StatusForbidden
	case api.NotFound:
		return http.StatusNotFound
	case api.Method:
		return http.StatusMethodNotAllowed
	case api.NotServed:
		return http.StatusNotImplemented
	case api.Conflict, api.Exists:
		return http.StatusConflict
	case api.Compacted:
		return http.StatusGone
	case api.BadAnswer:
		return http.StatusBadGateway
	case api.LockLost:
		return http.StatusPreconditionFailed
	case api.Failed, api.ActorMoved, api.NotConfigured, api.Unsupported, api.Unavailable, api.Timeout,
		api.Indeterminate, api.NotReady:
		return http.StatusInternalServerError
	default:
		return http.StatusInternalServerError
	}
}

// statusNotNow is the HTTP status for which load balancers and orchestrators regard a node as temporarily
// unavailable.
const statusNotNow = http.StatusServiceUnavailable

// fail answers the request with err. It logs internal errors and errors about damaged data, because only the operator
// of the node can fix them.
func (f *Face) fail(p *reply, r *http.Request, err error) {
	e := api.AsError(err)
	if e.Details.Reason == api.ReasonInternal || e.Details.Reason == api.ReasonCorrupt {
		f.log.Error("a request failed", "method", r.Method, "route", p.count.pattern, "code", e.Code, "error",
			e.Message)
	}
	if e.Kind == api.Unauthenticated {
		p.Header()["Www-Authenticate"] = []string{"dapr-api-token"}
	}
	if f.observer != nil {
		f.observer.Failed(e.Code)
	}
	f.problem(p, r, status(e.Kind), e)
}

// drainTime is how long an error answer may wait for the rest of the request's body.
const drainTime = time.Second

// problem answers with a status and the JSON form of e.
func (f *Face) problem(p *reply, r *http.Request, status int, e *api.Error) {
	if r.ProtoMajor == 1 && (r.ContentLength < 0 || r.ContentLength > p.received) {
		// Before net/http sends the answer, it reads up to 256 KiB of the rest of the body. Without a deadline, the
		// answer to a client that pauses would never be sent. net/http resets the deadline before the next request.
		// Response writers in tests support no deadlines, so the error is ignored.
		_ = http.NewResponseController(p.ResponseWriter).SetReadDeadline(time.Now().Add(drainTime))
	}
	b := f.buffer()
	defer f.release(b)
	b.data = append(jsonbody.AppendError(b.data, e), '}')
	p.respond(status, valueJSON, b.data)
}
