package http

import (
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/quorate/quorate/component/state"
)

// reply is the response writer of one request. It remembers what metrics need. Replies
// are pooled: none may be kept after its request.
type reply struct {
	http.ResponseWriter
	start    time.Time
	count    *routeMetrics
	status   int // 0 = nothing sent yet
	broken   bool
	sent     int64 // bytes of the body
	received int64 // bytes of the request's body
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

// Names of headers, in the form that the header map uses.
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

// Values of headers that never change. net/http does not write to them, and an append
// would copy them.
var (
	valueJSON         = []string{"application/json"}
	valueOctetStream  = []string{state.OctetStream}
	valueNoSniff      = []string{"nosniff"}
	valueLinearizable = []string{string(state.Linearizable)}
	valueSession      = []string{string(state.SessionLevel)}
	valueBounded      = []string{string(state.Bounded)}
	valueStale        = []string{string(state.Stale)}
)

// autoLength is the body size from which net/http no longer finds the length itself.
const autoLength = 2048

// send answers 200 or another status with a body.
func (p *reply) send(status int, contentType []string, body []byte) {
	h := p.Header()
	h[headerContentType] = contentType
	if len(body) >= autoLength {
		h[headerContentLength] = []string{strconv.Itoa(len(body))}
	}
	if status != http.StatusOK {
		p.WriteHeader(status)
	}
	_, _ = p.Write(body) // a reader that went away is nobody's error
}

// empty answers 204.
func (p *reply) empty() { p.WriteHeader(http.StatusNoContent) }

// item answers a read of one key.
func (p *reply) item(item *state.Item, etag bool) {
	h := p.Header()
	values := make([]string, 0, 4) // one allocation for all
	values = proofHeaders(h, values, &item.Proof)
	if !item.Found() {
		p.empty()
		return
	}
	if etag {
		values = setHeader(h, values, headerETag, item.ETag)
	}
	if !item.Expires.IsZero() {
		setHeader(h, values, headerExpires, expires(item.Expires))
	}
	p.send(http.StatusOK, p.contentType(item), item.Value)
}

// contentType is JSON unless the value is something else; then the browser must not guess.
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

// written answers a write. etag, if not empty, is that of the one item written.
func (p *reply) written(w *state.Written, etag string) {
	proof := w.Proof
	proof.Age = -1 // only reads have an age
	values := proofHeaders(p.Header(), make([]string, 0, 2), &proof)
	if etag != "" {
		setHeader(p.Header(), values, headerETag, etag)
	}
	p.empty()
}

// proofHeaders says what an answer is worth.
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

// setHeader sets a header to value, which it keeps in values.
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

// expires is how an instant of expiry is written in headers and bodies.
func expires(at time.Time) string { return at.UTC().Format(time.RFC3339) }

func typeName(v any) string { return reflect.TypeOf(v).String() }
