// Package peer carries calls of applications from node to node: the client at the caller's
// node and the handler at the callee's, and the words they share.
//
// It owns the connections for that: HTTP/1.1 over tunnels of the peer port, one call at a
// time on each, kept for the next; so bodies stream both ways with the flow control of TCP,
// trailers and upgrades pass, and a call that is given up ends at the application. It must
// never know where applications run or who may call them: it is told the node, and the
// service that takes the calls decides. Goroutines: those of net/http, ended by Close.
package peer

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// The headers of a call between nodes. No application sees them: the service strips what
// begins with Quorate- on both ways.
const (
	headerTarget  = "Quorate-Target"  // app id, and namespace after a dot
	headerCaller  = "Quorate-Caller"  // the same of the caller
	headerSession = "Quorate-Session" // of either side; absent = none
	headerFault   = "Quorate-Fault"   // of an answer: why there is none of the application
	headerRemote  = "Quorate-Remote"  // network address of the calling application
)

// prefix begins every path between nodes, so that a path of an application that begins with
// two slashes is not taken for a host.
const prefix = "/-"

// faultStatus is the status of an answer that carries a fault. What counts is the header.
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

// stripPrefix undoes what the client put before the path, in both forms of u.
func stripPrefix(target string) (path, query string, mark, ok bool) {
	target, query, mark = strings.Cut(target, "?")
	path, ok = strings.CutPrefix(target, prefix)
	return path, query, mark, ok && strings.HasPrefix(path, "/")
}

// wireURL is the URL of a call between nodes.
func wireURL(server string, of *url.URL) *url.URL {
	path := of.Opaque
	if path == "" {
		path = of.RawPath
	}
	return &url.URL{Scheme: "http", Host: server, Opaque: prefix + path, RawQuery: of.RawQuery, ForceQuery: of.ForceQuery}
}
