package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/admission"
)

// reply is the response writer of one request. It also records the status and sizes for the metrics. Replies are
// pooled, so a reply must not be used after its request has ended.
type reply struct {
	http.ResponseWriter
	ctx      context.Context // of the request
	start    time.Time
	count    *routeMetrics
	trusted  bool // the request has a valid token, or none is required
	proven   bool // the request has a valid token, and one is required
	status   int  // 0 = nothing sent yet
	broken   bool
	sent     int64 // bytes of the body
	received int64 // bytes of the request's body

	share  admission.Share // reserved memory for the request
	answer admission.Share // reserved memory for the answer
}

// WriteHeader sends the status.
func (p *reply) WriteHeader(status int) {
	if p.status == 0 && status >= http.StatusOK {
		p.status = status
	}
	p.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (p *reply) Write(b []byte) (int, error) {
	if p.status == 0 {
		p.status = http.StatusOK
	}
	n, err := p.ResponseWriter.Write(b)
	p.sent += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (p *reply) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Names of headers in the canonical form of http.Header.
const (
	headerContentType   = "Content-Type"
	headerContentLength = "Content-Length"
	headerETag          = "Etag"
	headerExpires       = "Metadata.ttlexpiretime"
	headerNoSniff       = "X-Content-Type-Options"
	headerSession       = "Quorate-Session"
	headerTraceparent   = "Traceparent"
	headerConsistency   = "Quorate-Consistency"
	headerAge           = "Quorate-Age"
	headerRequestID     = "Quorate-Request-Id"
	headerIfMatch       = "If-Match"
)

// Header values that all answers share. Sharing is safe, because net/http does not modify them, and appending to such a
// slice copies it.
var (
	valueJSON         = []string{"application/json"}
	valueOctetStream  = []string{state.OctetStream}
	valueNoSniff      = []string{"nosniff"}
	valueLinearizable = []string{string(state.Linearizable)}
	valueSession      = []string{string(state.SessionLevel)}
	valueBounded      = []string{string(state.Bounded)}
	valueStale        = []string{string(state.Stale)}
)

// autoLength is the minimum size in bytes of a body for which net/http does not set the Content-Length. A smaller body
// fits into a buffer of net/http, so writing it never waits for the client.
const autoLength = 2048

// send answers a read. For a large body, it first reserves memory. If no memory is free, it sends nothing and returns
// an error of kind api.Unavailable, so that the client repeats the read. If the request may have changed something, the
// handler must call room and respond instead.
func (p *reply) send(status int, contentType []string, body []byte) error {
	if err := p.room(len(body)); err != nil {
		return api.Overloaded(err)
	}
	p.respond(status, contentType, body)
	return nil
}

// respond answers with a status, a content type and a body. It reserves no memory, so it cannot fail. If clients can
// make the body large, the caller must call room first.
func (p *reply) respond(status int, contentType []string, body []byte) {
	h := p.Header()
	h[headerContentType] = contentType
	if len(body) >= autoLength {
		h[headerContentLength] = []string{strconv.Itoa(len(body))}
	}
	if status != http.StatusOK {
		p.WriteHeader(status)
	}
	if len(body) >= autoLength && (p.answer.Held() || p.share.Held()) {
		p.transmit(body)
		return
	}
	_, _ = p.Write(body) // fails only if the client has closed the connection
}

// empty answers 204.
func (p *reply) empty() { p.WriteHeader(http.StatusNoContent) }

// item answers a read of one key. If withETag is true and the item has an ETag, the answer has an ETag header. item
// returns the errors of send.
func (p *reply) item(item *state.Item, withETag bool) error {
	h := p.Header()
	values := make([]string, 0, 4) // one allocation for all
	values = proofHeaders(h, values, &item.Proof)
	if !item.Found() {
		p.empty()
		return nil
	}
	if withETag && item.ETag != "" {
		values = setHeader(h, values, headerETag, item.ETag)
	}
	if !item.Expires.IsZero() {
		setHeader(h, values, headerExpires, jsonbody.Expires(item.Expires))
	}
	return p.send(http.StatusOK, p.contentType(item), item.Value)
}

// contentType returns the content type of a value as a header value. For a type other than JSON, it also sets the
// header that forbids browsers to guess the type.
func (p *reply) contentType(item *state.Item) []string {
	switch item.ContentType {
	case "":
		return valueJSON
	case state.OctetStream:
		p.Header()[headerNoSniff] = valueNoSniff
		return valueOctetStream
	default:
		p.Header()[headerNoSniff] = valueNoSniff
		return []string{item.ContentType}
	}
}

// written answers a successful write. The parameter etag is the new ETag if exactly one item was written, and
// otherwise empty.
func (p *reply) written(w *state.Written, etag string) {
	proof := w.Proof
	proof.Age = -1 // only reads have an age
	values := proofHeaders(p.Header(), make([]string, 0, 2), &proof)
	if etag != "" {
		setHeader(p.Header(), values, headerETag, etag)
	}
	p.empty()
}

// proofHeaders sets the headers that report the freshness of an answer. Like setHeader, it stores values of headers at
// the end of values and returns the longer slice.
func proofHeaders(h http.Header, values []string, proof *state.Proof) []string {
	if proof.Session != "" {
		values = setHeader(h, values, headerSession, proof.Session)
	}
	if level := levelValue(proof.Level); level != nil {
		h[headerConsistency] = level
	}
	if proof.Level != state.Linearizable && proof.Level != "" && proof.Age >= 0 {
		values = setHeader(h, values, headerAge, strconv.FormatInt(proof.Age.Milliseconds(), 10))
	}
	return values
}

// setHeader sets a header of h. It stores the header's value at the end of values and returns the longer slice, so that
// several headers share one allocation.
func setHeader(h http.Header, values []string, name, value string) []string {
	n := len(values)
	values = append(values, value)
	h[name] = values[n : n+1 : n+1]
	return values
}

func levelValue(l state.Level) []string {
	switch l {
	case state.Linearizable:
		return valueLinearizable
	case state.SessionLevel:
		return valueSession
	case state.Bounded:
		return valueBounded
	case state.Stale:
		return valueStale
	default:
		return nil
	}
}
