package http

import (
	"net/url"
	"strings"

	"github.com/quorate/quorate/api"
)

// rest reads the path segments after a fixed prefix one by one. It decodes every segment exactly once: '+' stays '+',
// and "%2F" is a slash in a segment.
type rest struct {
	text    string
	escaped bool
}

// restOf returns the part of the path after prefix. It skips as many bytes as prefix has, without comparing them. The
// path must not be shorter than prefix.
func restOf(u *url.URL, prefix string) rest {
	if u.RawPath != "" {
		return rest{text: u.RawPath[len(prefix):], escaped: true}
	}
	return rest{text: u.Path[len(prefix):]}
}

// next returns the decoded text up to the next slash, and moves past the slash.
func (r *rest) next() (string, error) {
	part, after, _ := strings.Cut(r.text, "/")
	r.text = after
	return r.decode(part)
}

// all returns the whole remaining path, decoded and including slashes.
func (r *rest) all() (string, error) { return r.decode(r.text) }

func (r *rest) decode(part string) (string, error) {
	if !r.escaped {
		return part, nil
	}
	out, err := url.PathUnescape(part)
	if err != nil {
		return "", api.MalformedRequest("the path has a '%' that is not followed by two hexadecimal digits")
	}
	return out, nil
}

// storePath reads the first three segments of a path: the version, the building block and the store. It returns the
// remaining path and the store.
func storePath(u *url.URL) (path rest, store string, err error) {
	path = restOf(u, "/")
	for range 2 { // the version and the building block
		if _, err := path.next(); err != nil {
			return path, "", err
		}
	}
	store, err = path.next()
	return path, store, err
}
