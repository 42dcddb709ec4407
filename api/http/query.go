package http

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
)

// query holds the query parameters that endpoints read. If a parameter is repeated, its first value applies. Names are
// case-sensitive. Unknown names are ignored.
type query struct {
	consistency string
	concurrency string
	prefix      string
	limit       string
	token       string
	appID       string
	metadata    map[string]string // of the parameters metadata.<name>; nil = none

	seen uint8
}

const metadataParameter = "metadata."

// parseQuery reads the query of a request.
func parseQuery(r *http.Request) (query, error) {
	var q query
	for raw := r.URL.RawQuery; raw != ""; {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" {
			continue
		}
		name, value, err := decodePair(pair)
		if err != nil {
			return q, err
		}
		q.take(name, value)
	}
	return q, nil
}

func decodePair(pair string) (name, value string, err error) {
	name, value, _ = strings.Cut(pair, "=")
	if name, err = url.QueryUnescape(name); err == nil {
		value, err = url.QueryUnescape(value)
	}
	if err != nil {
		return "", "", api.MalformedRequest("the query has a '%' that is not followed by two hexadecimal digits")
	}
	return name, value, nil
}

func (q *query) take(name, value string) {
	switch name {
	case "consistency":
		q.first(&q.consistency, value, 1<<0)
	case "concurrency":
		q.first(&q.concurrency, value, 1<<1)
	case "prefix":
		q.first(&q.prefix, value, 1<<2)
	case "limit":
		q.first(&q.limit, value, 1<<3)
	case "token":
		q.first(&q.token, value, 1<<4)
	case "appid":
		q.first(&q.appID, value, 1<<5)
	default:
		q.takeMetadata(name, value)
	}
}

func (q *query) first(into *string, value string, bit uint8) {
	if q.seen&bit == 0 {
		q.seen |= bit
		*into = value
	}
}

func (q *query) takeMetadata(parameter, value string) {
	name, ok := strings.CutPrefix(parameter, metadataParameter)
	if !ok || name == "" {
		return
	}
	if q.metadata == nil {
		q.metadata = make(map[string]string, 1)
	}
	if _, taken := q.metadata[name]; !taken {
		q.metadata[name] = value
	}
}

// readOptions returns the options of a read from the query and the session header.
func (q *query) readOptions(r *http.Request) (api.ReadOptions, error) {
	consistency, err := state.ParseConsistency(q.consistency)
	if err != nil {
		return api.ReadOptions{}, api.InvalidOption("", err)
	}
	return api.ReadOptions{
		Consistency: consistency,
		Session:     header(r, headerSession),
		Trace:       api.TraceID(header(r, headerTraceparent)),
		Metadata:    q.metadata,
	}, nil
}

// writeOptions returns the options of a write that are not part of its body.
func (q *query) writeOptions(r *http.Request) api.WriteOptions {
	return api.WriteOptions{
		Session:   header(r, headerSession),
		Trace:     api.TraceID(header(r, headerTraceparent)),
		RequestID: header(r, headerRequestID),
		Metadata:  q.metadata,
		Locks:     r.Header[headerLock],
	}
}

// header returns the first value of a header, or "". name must have the canonical form of http.Header.
func header(r *http.Request, name string) string {
	if v := r.Header[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
