package invoke

import (
	"net/url"
	"strings"
	"unicode"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/discovery/records"
)

// ParseTarget parses the target of a call. The target is an app id, or an app id and a namespace with a dot between
// them. Without a dot, the application is in the given namespace. ParseTarget returns false for an invalid target.
func ParseTarget(text, namespace string) (api.App, bool) {
	id, ns, dotted := strings.Cut(text, ".")
	if !dotted {
		ns = namespace
	}
	if state.ValidateAppID(id) != nil || strings.Contains(id, ".") || dotted &&
		(ns == "" || strings.Contains(ns, ".") || state.ValidateAppID(ns) != nil) {
		return api.App{}, false
	}
	return api.App{ID: id, Namespace: CanonicalNamespace(ns)}, true
}

// CanonicalNamespace returns "" if ns is the default namespace, otherwise ns.
func CanonicalNamespace(ns string) string {
	if ns == records.DefaultNamespace {
		return ""
	}
	return ns
}

// MethodPath is the path of a method. Access rules check it, and applications receive it.
type MethodPath struct {
	Path    string // escaped; begins with a slash and has no dot segments
	Decoded string
	Text    string // method for a gRPC application, if the caller used gRPC; "" = it gets Decoded
}

// ParseText parses the method of a gRPC call. In contrast to the path of an HTTP request, the text is not escaped and
// does not begin with a slash. A gRPC application gets the text unchanged, except that dot segments are removed. Access
// rules and HTTP applications decode escape sequences such as %2F in the text.
func ParseText(text string) (MethodPath, error) {
	escaped := Escape(text)
	if _, err := url.PathUnescape(escaped); err != nil {
		escaped = strings.ReplaceAll(escaped, "%", "%25") // a percent sign that begins no escape sequence
	}
	m, err := ParseMethod("/" + escaped)
	if err == nil {
		m.Text = removeDotSegments("/" + text)[1:]
	}
	return m, err
}

// Escape percent-encodes the characters that an HTTP request line must not contain. It leaves percent signs unchanged.
func Escape(text string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range []byte(text) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"#<>\\^`{|}", c) >= 0 {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// ParseMethod parses the escaped path of a method and removes dot segments (RFC 3986, 5.2.4). It rejects a path with
// one of these properties, because an application might interpret it differently from the access rules:
//
//   - a raw '?', '#' or space
//   - a control character, escaped or not
//   - a dot segment that is escaped, has parameters or is next to a backslash
//
// It also rejects a path that does not begin with a slash, has an invalid escape sequence, or becomes "/" when its dot
// segments are removed.
func ParseMethod(escaped string) (MethodPath, error) {
	switch {
	case !strings.HasPrefix(escaped, "/"):
		return MethodPath{}, malformed("the method does not begin with a slash")
	case strings.ContainsAny(escaped, "?# "): // HTTP/2 can carry spaces, which would end the path in HTTP/1.1
		return MethodPath{}, malformed("the method contains an unescaped '?', '#' or space (write %3F, %23 or %20)")
	}
	path := removeDotSegments(escaped)
	if path == "/" && escaped != "/" {
		return MethodPath{}, MethodMissing()
	}
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return MethodPath{}, malformed("the method has a '%' that is not followed by two hexadecimal digits")
	}
	for _, r := range decoded {
		if unicode.IsControl(r) {
			return MethodPath{}, malformed("the method contains a control character")
		}
	}
	for part := range strings.FieldsFuncSeq(decoded, func(r rune) bool { return r == '/' || r == '\\' }) {
		if bare, _, _ := strings.Cut(part, ";"); bare == "." || bare == ".." {
			return MethodPath{}, malformed(
				`the method contains "." or ".." that is escaped, or next to a backslash or semicolon`)
		}
	}
	return MethodPath{Path: path, Decoded: decoded}, nil
}

// CheckQuery returns an error if query contains an unescaped '#' or space, because applications may interpret such a
// query in different ways.
func CheckQuery(query string) error {
	if strings.ContainsAny(query, "# ") {
		return malformed("the query contains an unescaped '#' or space (write %23 or %20)")
	}
	return nil
}

// removeDotSegments resolves the segments "." and ".." of a path that begins with a slash. For example, "/a/./b/../c"
// becomes "/a/c". All other segments stay unchanged, even empty ones.
func removeDotSegments(path string) string {
	if !strings.Contains(path, "/.") {
		return path
	}
	parts := strings.Split(path[1:], "/")
	out := make([]string, 0, len(parts))
	for i, part := range parts {
		if part != "." && part != ".." {
			out = append(out, part)
			continue
		}
		if part == ".." && len(out) > 0 {
			out = out[:len(out)-1]
		}
		if i == len(parts)-1 {
			out = append(out, "") // "/a/." becomes "/a/"
		}
	}
	return "/" + strings.Join(out, "/")
}

// MethodURL returns a URL for the path m. If mark is true, the URL has a question mark even if query is empty.
//
// The URL has m.Path in Opaque, which net/http sends unchanged. If m.Path begins with two slashes, the URL has it in
// RawPath instead, because net/http would take the first segment of Opaque for a host. In RawPath, bytes that net/url
// does not accept are escaped.
func MethodURL(m MethodPath, query string, mark bool) *url.URL {
	u := &url.URL{Path: m.Decoded, RawQuery: query, ForceQuery: mark}
	if strings.HasPrefix(m.Path, "//") {
		u.RawPath = escapeRest(m.Path)
	} else {
		u.Opaque = m.Path
	}
	return u
}

// escapeRest escapes the bytes that net/url does not accept in an escaped path.
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
