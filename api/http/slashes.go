package http

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// collapse removes duplicate slashes from the path of r. For example, //v1.0//metadata becomes /v1.0/metadata. Keys are
// not changed, because they may contain any text. From the method name of an application, only the leading slashes are
// removed. If the result is a path that needs no token, collapse changes nothing.
func (f *Face) collapse(r *http.Request) {
	path := r.URL.EscapedPath()
	short := collapsed(r.Method, path)
	if short == path || f.exempt[short] {
		return
	}
	decoded, err := url.PathUnescape(short)
	if err != nil {
		return // the handler of the original path reports the error
	}
	r.URL.Path, r.URL.RawPath = decoded, ""
	if r.URL.EscapedPath() != short {
		r.URL.RawPath = short
	}
}

// collapsed returns an escaped path without duplicate slashes in its fixed part.
func collapsed(verb, path string) string {
	if !strings.Contains(path, "//") {
		return path
	}
	var parts []string
	rest := path
	for {
		rest = strings.TrimLeft(rest, "/")
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		if part == "" {
			break
		}
		parts = append(parts, part)
		if key, method := freeAfter(verb, parts); key && rest != "" {
			return "/" + strings.Join(parts, "/") + "/" + rest
		} else if method {
			return "/" + strings.Join(parts, "/") + "/" + strings.TrimLeft(rest, "/")
		}
	}
	out := "/" + strings.Join(parts, "/")
	if strings.HasSuffix(path, "/") && out != "/" {
		out += "/"
	}
	return out
}

// freeAfter reports whether a key or the method name of an application follows the given parts of a path. Both may
// contain any text, including duplicate slashes. If both results are false, another fixed part follows.
func freeAfter(verb string, parts []string) (key, method bool) {
	if len(parts) < 2 || parts[0] != "v1.0" {
		return false, false
	}
	keyVerb := slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodDelete}, verb)
	switch n := len(parts); parts[1] {
	case "state", "lock":
		return n == 3 && keyVerb, false
	case "secrets":
		return n == 3, false
	case "metadata":
		return n == 2, false
	case "actors":
		return n == 5 && parts[4] == "state" && keyVerb, false
	case "invoke":
		return false, n == 4 && parts[3] == "method"
	}
	return false, false
}
