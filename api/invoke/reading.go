package invoke

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Limits for a path that servers may interpret in several ways. A path that exceeds a limit is refused, because
// checking all its interpretations would take too long and no client needs such a path.
const (
	maxReadings       = 256 // readings, including intermediate steps
	maxAmbiguousParts = 64  // parts, plus characters that may separate more parts
)

// everyReading reports whether allowed returns true for every common interpretation of a request path. It returns false
// if the path has too many interpretations. The path must be escaped and accepted by ParseMethod. The argument of
// allowed is one interpretation: its segments, decoded and in lower case, without an empty last segment.
//
// Servers differ in these points:
//
//   - %2F separates segments (WSGI) or is part of a segment (net/http, Express).
//   - A backslash, escaped or not, may separate segments (WHATWG URL, .NET).
//   - Parameters after ';' are part of the path (net/http, Node), are removed everywhere (Java servlets) or only from
//     the last segment (Python's urlparse). %3B may also begin a parameter.
//   - Empty segments stay (Node), are removed (Flask), or are removed at the start (http.server).
//   - Two slashes at the start may introduce a host (URL parsers).
//
// Frameworks combine these rules in any order, so everyReading tries every combination.
func everyReading(path string, allowed func(parts []string) bool) bool {
	first := reading{parts: strings.Split(path[1:], "/")}
	plain := decodeParts(first)
	marks := ambiguities(plain)
	switch {
	case marks == 0:
		return allowed(withoutLastSlash(plain))
	case marks+len(plain) > maxAmbiguousParts:
		return false
	}
	seen := map[string]bool{}
	var open []reading
	add := func(r reading) {
		if key := r.key(); !seen[key] {
			seen[key] = true
			open = append(open, r)
		}
	}
	add(first)
	for len(open) > 0 {
		r := open[len(open)-1]
		open = open[:len(open)-1]
		if len(seen) > maxReadings || r.decoded && !allowed(withoutLastSlash(r.parts)) {
			return false
		}
		for _, step := range steps() {
			add(reading{parts: step(r.parts), decoded: r.decoded})
		}
		add(reading{parts: decodeParts(r), decoded: true})
	}
	return true
}

// ambiguities counts the places in a decoded path that servers interpret in different ways: slashes and backslashes
// within a segment, semicolons, and empty segments. An empty segment at the end of the path does not count.
func ambiguities(parts []string) (n int) {
	for i, part := range parts {
		if part == "" && i < len(parts)-1 {
			n++
		}
		n += strings.Count(part, ";") + strings.Count(part, `\`) + strings.Count(part, "/")
	}
	return n
}

// reading is one possible interpretation of a path, or an intermediate form on the way to one (see steps).
type reading struct {
	parts   []string
	decoded bool
}

func (r reading) key() string {
	return strconv.FormatBool(r.decoded) + "\x00" + strings.Join(r.parts, "\x00") // no path has a NUL
}

// decodeParts returns the segments of r, decoded and in lower case. Decoding cannot fail, because ParseMethod has
// already decoded the path of these segments.
func decodeParts(r reading) []string {
	if r.decoded {
		return r.parts
	}
	out := make([]string, len(r.parts))
	for i, part := range r.parts {
		text, err := url.PathUnescape(part)
		if err != nil {
			text = part
		}
		out[i] = strings.ToLower(text)
	}
	return out
}

// steps returns the transformations that servers apply to the parts of a path.
func steps() []func([]string) []string {
	return []func([]string) []string{
		splitSlash, splitBackslash, cutAll, cutLast, dropEmpty, trimEmpty, dropHost, dropHostAfterSlashes,
	}
}

func withoutLastSlash(parts []string) []string {
	if n := len(parts); n > 0 && parts[n-1] == "" {
		return parts[:n-1]
	}
	return parts
}

func splitSlash(parts []string) []string     { return splitEach(parts, "/") }
func splitBackslash(parts []string) []string { return splitEach(parts, `\`) }

func splitEach(parts []string, separator string) []string {
	var out []string
	for _, part := range parts {
		out = append(out, strings.Split(part, separator)...)
	}
	return out
}

// cutAll removes the parameters of every part.
func cutAll(parts []string) []string {
	out := slices.Clone(parts)
	for i, part := range out {
		out[i], _, _ = strings.Cut(part, ";")
	}
	return out
}

// cutLast removes the parameters of the last part.
func cutLast(parts []string) []string {
	out := slices.Clone(parts)
	if n := len(out); n > 0 {
		out[n-1], _, _ = strings.Cut(out[n-1], ";")
	}
	return out
}

func dropEmpty(parts []string) []string {
	return slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return part == "" })
}

// trimEmpty removes empty parts at the start.
func trimEmpty(parts []string) []string {
	for len(parts) > 0 && parts[0] == "" {
		parts = parts[1:]
	}
	return parts
}

// dropHost removes the first two segments of a path that begins with two slashes. The first segment is empty. Some
// servers interpret the second segment as a host, even if it is empty.
func dropHost(parts []string) []string {
	if len(parts) > 1 && parts[0] == "" {
		return parts[2:]
	}
	return parts
}

// dropHostAfterSlashes removes the first non-empty segment of a path that begins with two or more slashes. Some
// servers read that segment as a host.
func dropHostAfterSlashes(parts []string) []string {
	if rest := trimEmpty(parts); len(rest) < len(parts) && len(rest) > 0 {
		return rest[1:]
	}
	return parts
}
