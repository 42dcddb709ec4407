// Package remoteinvoke carries calls to applications from one node to another. It has the client for the caller's node,
// the server for the callee's node, and the protocol between them.
//
// It owns the connections, which use HTTP/1.1 over tunnels of the peer port. A connection carries one call at a time
// and is reused for later calls. Bodies are streamed in both directions. Trailers and upgrades are passed on. If the
// caller cancels a call, the call is also canceled at the application.
//
// Choosing the node and checking access rights are the work of invoke.Service and invoke.Callee.
//
// Server.Open starts a goroutine that accepts connections, and net/http starts further goroutines. Close ends all of
// them.
package remoteinvoke

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// Headers of a call between nodes. Applications do not see them, because package invoke removes headers that begin
// with Quorate- from requests and answers.
const (
	headerTarget  = "Quorate-Target"  // app id of the target, a dot, and the namespace
	headerCaller  = "Quorate-Caller"  // app id of the caller, a dot, and the namespace
	headerSession = "Quorate-Session" // session token of the sender; absent = none
	headerFault   = "Quorate-Fault"   // in an answer: the error, if the application did not answer
	headerRemote  = "Quorate-Remote"  // network address of the calling application
	headerMethod  = "Quorate-Method"  // escaped invoke.MethodPath.Text; absent = none
)

// prefix precedes every path between nodes. Without it, a path that begins with two slashes could be parsed as a
// host.
const prefix = "/-"

// faultStatus is the status of an answer with a fault. The client ignores this status, and looks only for the header
// headerFault.
const faultStatus = http.StatusBadGateway

func encodeFault(err error) string {
	return base64.StdEncoding.EncodeToString(fault.Marshal(err))
}

func decodeFault(text string) error {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) == 0 {
		return fault.New(fault.Internal, "api.peer", "the other node answered with an error that cannot be read")
	}
	return fault.Unmarshal(b)
}

func first(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func encodeApp(a api.App) string { return a.ID + "." + a.Namespace }

func decodeApp(text string) (api.App, bool) {
	id, ns, ok := strings.Cut(text, ".")
	return api.App{ID: id, Namespace: ns}, ok && id != ""
}

// stripPrefix removes prefix from a request target, and splits the rest into path and query. ok is false if the target
// does not begin with prefix and a slash.
func stripPrefix(target string) (path, query string, mark, ok bool) {
	target, query, mark = strings.Cut(target, "?")
	path, ok = strings.CutPrefix(target, prefix)
	return path, query, mark, ok && strings.HasPrefix(path, "/")
}

// wireURL returns the URL of a call between nodes.
func wireURL(server string, call *url.URL) *url.URL {
	path := call.Opaque
	if path == "" {
		path = call.RawPath
	}
	return &url.URL{Scheme: "http", Host: server, Opaque: prefix + path, RawQuery: call.RawQuery,
		ForceQuery: call.ForceQuery}
}
