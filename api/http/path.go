package http

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

// rest reads the path segments after a fixed prefix one by one. It decodes every segment exactly once: '+' stays '+',
// and "%2F" is a slash in a segment.
type rest struct {
	text    string
	escaped bool
}

// restOf returns the path after prefix. The route has matched the prefix.
func restOf(u *url.URL, prefix string) rest {
	if u.RawPath != "" {
		return rest{text: u.RawPath[len(prefix):], escaped: true}
	}
	return rest{text: u.Path[len(prefix):]}
}

// next returns the part up to the next slash and moves past the slash.
func (r *rest) next() (string, error) {
	part, after, _ := strings.Cut(r.text, "/")
	r.text = after
	return r.decode(part)
}

// all returns the whole rest, including slashes.
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

const (
	statePrefix    = "/v1.0/state/"
	watchPrefix    = "/v1.0/watch/"
	actorsPrefix   = "/v1.0/actors/"
	metadataPrefix = "/v1.0/metadata/"
	secretsPrefix  = "/v1.0/secrets/"
	bindingsPrefix = "/v1.0/bindings/"
)

// stateStore returns the store of a path without a key.
func stateStore(u *url.URL) (string, error) {
	path := restOf(u, statePrefix)
	return path.next()
}

// stateKey returns the store and the key of a path.
func stateKey(u *url.URL) (store, key string, err error) {
	path := restOf(u, statePrefix)
	if store, err = path.next(); err != nil {
		return "", "", err
	}
	key, err = path.all()
	return store, key, err
}

// actorPath returns the actor and the key in a path such as /v1.0/actors/{type}/{id}/state/{key}. Instead of "state",
// the path may have "method", "reminders" or "timers". The key is the part of the path after that word.
func actorPath(u *url.URL) (actor api.Actor, key string, err error) {
	path := restOf(u, actorsPrefix)
	if actor.Type, err = path.next(); err != nil {
		return actor, "", err
	}
	if actor.ID, err = path.next(); err != nil {
		return actor, "", err
	}
	if _, err = path.next(); err != nil { // "state"
		return actor, "", err
	}
	key, err = path.all()
	return actor, key, err
}

// actorMethod returns the method and the query of a request for /v1.0/actors/{type}/{id}/method/{method}, without dot
// segments and otherwise unchanged.
func actorMethod(r *http.Request) (string, error) {
	path, query, mark := received(r)
	rest, _ := strings.CutPrefix(collapsed(r.Method, path), actorsPrefix)
	parts := strings.SplitN(rest, "/", 4) // type, id, "method", the method
	if len(parts) < 4 {
		return actors.ParseMethod("")
	}
	if mark {
		return actors.ParseMethod(parts[3] + "?" + query)
	}
	return actors.ParseMethod(parts[3])
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
