package http

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/watches"
)

const headerLastEvent = "Last-Event-Id"

const watchPrefix = "/v1.0/watch/"

// watchState serves GET /v1.0/watch/{store}. The request timeout bounds the start of the watch, but not its duration.
func (s *stateRoutes) watchState(p *reply, r *http.Request) error {
	request, values, err := decodeWatch(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.timeout)
	w, err := s.state.Watch(ctx, request)
	cancel()
	if err != nil {
		if last := header(r, headerLastEvent); last != "" && wantsEvents(r) && isTransient(err) {
			watches.Postpone(p, api.AsError(err), last)
			return nil
		}
		return err
	}
	stream := &watches.Stream{Watch: w, Values: values, Events: wantsEvents(r), Snapshot: request.Snapshot}
	if s.watches.Serve(p, r, stream, p.count.series(http.MethodGet).sent) {
		p.status = http.StatusOK
	}
	return nil
}

func isTransient(err error) bool {
	kind := api.AsError(err).Kind
	return kind == api.Unavailable || kind == api.Timeout
}

func wantsEvents(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// decodeWatch decodes a request for a watch. The query parameter key may be repeated. values reports whether the
// events must contain the values of the items.
func decodeWatch(r *http.Request) (w api.WatchRequest, values bool, err error) {
	path := restOf(r.URL, watchPrefix)
	if w.Store, err = path.next(); err != nil {
		return w, false, err
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return w, false, api.MalformedRequest("the query cannot be read: " + err.Error())
	}
	w.Prefix, w.Keys, w.From = q.Get("prefix"), q["key"], q.Get("from")
	w.Session = header(r, headerSession)
	w.HasBoth = q.Has("prefix") && q.Has("key")
	if last := r.Header.Get(headerLastEvent); last != "" {
		w.From = last
	}
	if w.Snapshot, err = boolean(q, "snapshot", false); err != nil {
		return w, false, err
	}
	if text := q.Get("bookmark"); text != "" {
		if w.Bookmark, err = time.ParseDuration(text); err != nil || w.Bookmark == 0 {
			return w, false, api.MalformedRequest("bookmark must be a duration such as 15s")
		}
	}
	if r.Header.Get(headerLastEvent) != "" {
		w.Snapshot = false // an EventSource that reconnects continues from its last event
	}
	values, err = boolean(q, "values", true)
	return w, values, err
}

func boolean(q url.Values, name string, fallback bool) (bool, error) {
	if q.Get(name) == "" {
		return fallback, nil
	}
	v, err := strconv.ParseBool(q.Get(name))
	if err != nil {
		return false, api.MalformedRequest(name + " must be true or false")
	}
	return v, nil
}
