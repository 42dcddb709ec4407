package api

import (
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"unicode"

	"github.com/quorate/quorate/component/state"
)

// String is the form in which an application is named in calls: the namespace after a dot,
// unless there is none.
func (a App) String() string {
	if a.Namespace == "" {
		return a.ID
	}
	return a.ID + "." + a.Namespace
}

// ParseTarget reads the target of a call, "app" in the given namespace or "app.namespace".
func ParseTarget(text, namespace string) (App, bool) {
	id, ns, dotted := strings.Cut(text, ".")
	if !dotted {
		ns = namespace
	}
	if state.ValidateAppID(id) != nil || strings.Contains(id, ".") || dotted && (ns == "" || strings.Contains(ns, ".") || state.ValidateAppID(ns) != nil) {
		return App{}, false
	}
	return App{ID: id, Namespace: CanonicalNamespace(ns)}, true
}

// DefaultNamespace is what a node without a namespace belongs to.
const DefaultNamespace = "default"

// CanonicalNamespace writes the default namespace as none.
func CanonicalNamespace(ns string) string {
	if ns == DefaultNamespace {
		return ""
	}
	return ns
}

// MethodPath decodes the path of a method and refuses what an application could read as
// another path than the one that a policy has seen.
func MethodPath(escaped string) (string, error) {
	decoded, err := url.PathUnescape(escaped)
	if err != nil {
		return "", invokeMalformed("the method has a '%' that is not followed by two hexadecimal digits")
	}
	for _, r := range decoded {
		if unicode.IsControl(r) {
			return "", invokeMalformed("the method contains a control character")
		}
	}
	for part := range strings.FieldsFuncSeq(decoded, func(r rune) bool { return r == '/' || r == '\\' }) {
		if bare, _, _ := strings.Cut(part, ";"); bare == ".." {
			return "", invokeMalformed(`the method contains ".."`)
		}
	}
	return decoded, nil
}

// MethodURL is the URL whose wire form is path, byte for byte. In the opaque form a path
// that begins with two slashes would be taken for a host: there it keeps its escapes, and
// only bytes that no path may hold are escaped.
func MethodURL(path, decoded, query string, mark bool) *url.URL {
	u := &url.URL{Path: decoded, RawQuery: query, ForceQuery: mark}
	if strings.HasPrefix(path, "//") {
		u.RawPath = escapeRest(path)
	} else {
		u.Opaque = path
	}
	return u
}

// escapeRest escapes what net/url does not take for part of an escaped path.
func escapeRest(path string) string {
	const hex, allowed = "0123456789ABCDEF", "-_.~$&+,/:;=@!'()*[]%"
	var b strings.Builder
	for _, c := range []byte(path) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(allowed, c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// policyPath is the form of a decoded path that rules are held against: without empty
// parts, without ".", in lower case.
func policyPath(decoded string) []string {
	parts := strings.Split(strings.ToLower(decoded), "/")
	out := parts[:0]
	for _, p := range parts {
		if p != "" && p != "." {
			out = append(out, p)
		}
	}
	return out
}

// perHop reports whether a header belongs to one connection, or to the runtime itself.
func perHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding",
		"Upgrade", "Http2-Settings", "Dapr-App-Id", "Destination-App-Id", "Dapr-Caller-App-Id", "Dapr-Caller-Namespace", "Dapr-Callee-App-Id":
		return true
	}
	return strings.HasPrefix(name, "Quorate-") || strings.HasSuffix(name, "-Bin")
}

// ForwardHeader copies what belongs to the message. Values are shared: nobody changes them.
func ForwardHeader(in http.Header) http.Header {
	out := make(http.Header, len(in)+8)
	binary := isGRPC(in)
	for name, values := range in {
		if !perHop(name) || binary && strings.HasSuffix(name, "-Bin") {
			out[name] = values
		}
	}
	for _, list := range in["Connection"] {
		for token := range strings.SplitSeq(list, ",") {
			delete(out, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(token)))
		}
	}
	if to := UpgradeTo(in); to != "" {
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

// answerHeader removes from an answer what belongs to one connection.
func answerHeader(h http.Header, upgraded bool) {
	for _, list := range h["Connection"] {
		for token := range strings.SplitSeq(list, ",") {
			if token = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(token)); !upgraded || token != "Upgrade" {
				delete(h, token)
			}
		}
	}
	for name := range h {
		if perHop(name) && !(upgraded && (name == "Upgrade" || name == "Connection")) && !strings.HasSuffix(name, "-Bin") {
			delete(h, name)
		}
	}
}

// isGRPC reports whether a message is a call of gRPC, whose binary fields belong to it.
func isGRPC(h http.Header) bool {
	kind := h["Content-Type"]
	return len(kind) > 0 && strings.HasPrefix(kind[0], "application/grpc")
}

// UpgradeTo is the protocol that a message asks to go on with, or nothing.
func UpgradeTo(h http.Header) string {
	if !hasToken(h["Connection"], "upgrade") {
		return ""
	}
	if to := h["Upgrade"]; len(to) > 0 {
		return to[0]
	}
	return ""
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
