package invoke

import (
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/headers"
)

// passes reports whether a header of a request or an answer is forwarded to the next hop. It returns false for
// hop-by-hop headers, and for headers that only the runtime sets. Names that end with -bin (binary metadata of gRPC)
// are forwarded only if binary is true.
func passes(name string, binary bool) bool {
	return !headers.PerHop(name) && (binary || !strings.HasSuffix(name, "-Bin")) && !headers.FoldsToOurs(name)
}

// trailerPasses reports whether a trailer is forwarded to the next hop. It returns false for:
//
//   - hop-by-hop fields, and fields that only the runtime sets (see passes)
//   - fields that affect the framing, the target or the sender of a message
func trailerPasses(name string) bool {
	switch name {
	case "Content-Length", "Content-Type", "Content-Encoding", "Content-Range", "Host", "Authorization", "Cookie",
		"Set-Cookie", "Expect", "Traceparent", "Dapr-Api-Token", "X-Forwarded-For", "X-Forwarded-Host", "Forwarded":
		return false
	}
	return passes(name, true)
}

// ForwardHeader returns the headers to forward to the next hop. The result is a new map that shares the slices of
// values with in. The caller must not change these slices.
func ForwardHeader(in http.Header) http.Header {
	out := make(http.Header, len(in)+8)
	binary := isGRPC(in)
	for name, values := range in {
		if passes(name, binary) {
			out[name] = values
		}
	}
	for _, name := range connectionNames(in) {
		delete(out, name)
	}
	if to := upgradeTo(in); to != "" {
		out["Connection"], out["Upgrade"] = []string{"Upgrade"}, []string{to}
	}
	if hasToken(in["Te"], "trailers") {
		out["Te"] = []string{"trailers"}
	}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = []string{""} // net/http would add its own
	}
	return out
}

// connectionNames returns the headers that a message declares as hop-by-hop.
func connectionNames(h http.Header) (out []string) {
	for _, list := range h["Connection"] {
		for token := range strings.SplitSeq(list, ",") {
			out = append(out, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(token)))
		}
	}
	return out
}

// CleanAnswer removes from an application's answer all fields that must not be forwarded: hop-by-hop headers, headers
// that only the runtime sets, and forbidden trailers.
func CleanAnswer(r *http.Response) {
	upgraded := r.StatusCode == http.StatusSwitchingProtocols
	hop := connectionNames(r.Header)
	for _, name := range hop {
		if !upgraded || name != "Upgrade" {
			delete(r.Header, name)
		}
	}
	for name := range r.Header {
		if !passes(name, true) && !(upgraded && (name == "Upgrade" || name == "Connection")) {
			delete(r.Header, name)
		}
	}
	if upgraded {
		return // a tunnel has no trailers
	}
	clean := func() { cleanTrailer(r.Trailer, hop) }
	clean()
	r.Body = &finishedBody{ReadCloser: r.Body, finished: clean}
}

// CleanHeader removes all headers that must not be forwarded. It is for informational (1xx) answers, and for answers
// that are forwarded without their bodies.
func CleanHeader(h http.Header) {
	for _, name := range connectionNames(h) {
		delete(h, name)
	}
	for name := range h {
		if !passes(name, true) {
			delete(h, name)
		}
	}
}

func cleanTrailer(trailer http.Header, hop []string) {
	for name := range trailer {
		if !trailerPasses(name) || slices.Contains(hop, name) {
			delete(trailer, name)
		}
	}
}

// ForwardTrailer returns the body to send to the next hop, and the trailers to forward. The arguments are the headers,
// the body and the trailers of the received request. The values of the trailers are complete only when the returned
// body has been read to its end, because net/http receives trailers after the body.
func ForwardTrailer(header http.Header, body io.ReadCloser, received http.Header) (io.ReadCloser, http.Header) {
	if len(received) == 0 {
		return body, nil
	}
	hop, out := connectionNames(header), http.Header{}
	fill := func() {
		for name, values := range received {
			if trailerPasses(name) && !slices.Contains(hop, name) {
				out[name] = values
			}
		}
	}
	fill() // the announced names, with their current values
	return &finishedBody{ReadCloser: body, finished: fill}, out
}

// finishedBody is a body that calls a function before it returns io.EOF.
type finishedBody struct {
	io.ReadCloser
	finished func()
}

func (b *finishedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.finished()
	}
	return n, err
}

// isGRPC reports whether a message belongs to a gRPC call, whose -bin fields are forwarded.
func isGRPC(h http.Header) bool {
	kind := h["Content-Type"]
	return len(kind) > 0 && strings.HasPrefix(kind[0], "application/grpc")
}

// upgradeTo returns the protocol to which a message requests an upgrade, or "" if there is no such request. It ignores
// upgrades to other versions of HTTP. After such an upgrade, a caller could send requests that no access rule has
// checked.
func upgradeTo(h http.Header) string {
	to := h["Upgrade"]
	if len(to) == 0 || !hasToken(h["Connection"], "upgrade") {
		return ""
	}
	for protocol := range strings.SplitSeq(to[0], ",") {
		name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(protocol)), "/")
		if name == "h2c" || name == "h2" || name == "http" || name == "tls" {
			return ""
		}
	}
	return to[0]
}

func hasToken(lists []string, token string) bool {
	for _, list := range lists {
		for t := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// Chunked returns the transfer encoding for requests with trailers. With another encoding, net/http would read the
// first byte of a GET body in a separate goroutine, which would race with the code that fills the trailers.
func Chunked() []string { return []string{"chunked"} }
