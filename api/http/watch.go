package http

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
)

// Values of headers of a watch.
var (
	valueEvents    = []string{"text/event-stream"}
	valueLines     = []string{"application/x-ndjson"}
	valueNoStore   = []string{"no-cache, no-transform"}
	valueNotStored = []string{"no"}
)

const (
	headerLastEvent = "Last-Event-Id"
	eventRetry      = "retry: 1000\n\n"
	watchFlush      = 64 << 10 // bytes that are gathered for one write
)

// watchState serves GET /v1.0/watch/{store}. The request timeout does not apply.
func (f *Face) watchState(p *reply, r *http.Request) error {
	request, values, err := decodeWatch(r)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		return api.MethodNotAllowed(r.Method, http.MethodGet)
	}
	ctx, cancel := context.WithTimeout(r.Context(), f.timeout)
	w, err := f.state.Watch(ctx, request)
	cancel()
	if err != nil {
		return err
	}
	s := &stream{watch: w, buffers: &f.streams, values: values, events: wantsEvents(r), snapshot: request.Snapshot}
	s.header(p.Header())
	count := p.count
	if takeOver(p.ResponseWriter, r, func(ctx context.Context, c net.Conn) { f.runAlone(ctx, s, c, count) }) {
		p.status = http.StatusOK
		return nil
	}
	s.out, s.control = p, http.NewResponseController(p.ResponseWriter)
	s.run(r.Context())
	return nil
}

// runAlone runs a stream on a connection that was taken over from net/http. The metrics of the request were recorded at
// its start, except the size of the answer.
func (f *Face) runAlone(ctx context.Context, s *stream, c net.Conn, count *routeMetrics) {
	f.metrics.inFlight.Add(1)
	defer func() {
		if cause := recover(); cause != nil {
			f.log.Error("a watch ended in a panic; please report it", "route", count.pattern, "panic",
				describePanic(cause), "stack", string(debug.Stack()))
			s.watch.Close(errPanic)
		}
		f.metrics.inFlight.Add(-1)
	}()
	s.out, s.chunked, s.sent = c, true, count.series(http.MethodGet).sent
	s.run(ctx)
}

// errPanic is the reason of a watch that ended in a panic.
var errPanic = errors.New("panic")

func wantsEvents(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// decodeWatch reads the parameters of a watch. key may be repeated.
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
		w.Snapshot = false // an EventSource that reconnects goes on after the snapshot
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

// stream writes the events of one watch.
type stream struct {
	watch    *api.Watch
	out      io.Writer
	control  *http.ResponseController // nil = out needs no flush
	chunked  bool                     // the stream writes the chunks itself
	sent     prometheus.Counter       // bytes of the answer; nil = out counts them
	values   bool
	events   bool    // server-sent events, otherwise lines
	snapshot bool    // its items are being sent
	buffer   *[]byte // of buffers; nil = nothing is to be sent
	buffers  *sync.Pool
}

// header sets the headers of the answer.
func (s *stream) header(h http.Header) {
	h[headerContentType], h["Cache-Control"], h["X-Accel-Buffering"] = valueLines, valueNoStore, valueNotStored
	if s.watch.Session != "" {
		h[headerSession] = []string{s.watch.Session}
	}
	if s.events {
		h[headerContentType] = valueEvents
	}
}

// run writes events until the client has gone or the watch ends.
func (s *stream) run(ctx context.Context) {
	if s.events {
		s.append(eventRetry)
	}
	if !s.snapshot {
		s.bookmark(s.watch.Position())
	}
	err := s.flush()
	for err == nil {
		var part state.WatchPart
		if part, err = s.watch.Next(ctx); err == nil {
			err = s.send(&part)
		} else if ctx.Err() == nil {
			s.end(err)
		}
	}
	s.watch.Close(err)
	if s.chunked {
		_, _ = io.WriteString(s.out, lastChunk) // the client may have gone
	}
}

// send writes a part and flushes it.
func (s *stream) send(part *state.WatchPart) error {
	for i := range part.Items {
		if err := s.change("item", &part.Items[i]); err != nil {
			return err
		}
	}
	if part.Synced {
		s.snapshot = false
		s.object("synced", s.watch.Position(), append(appendRevision([]byte(`{"type":"synced"`), part.Seen), '}'))
	}
	for i := range part.Changes {
		kind := "put"
		if part.Changes[i].Deleted {
			kind = "delete"
		}
		if err := s.change(kind, &part.Changes[i]); err != nil {
			return err
		}
	}
	if !part.Synced && len(part.Items)+len(part.Changes) == 0 {
		s.bookmark(s.watch.Position())
	}
	return s.flush()
}

func (s *stream) change(kind string, c *state.Change) error {
	id := ""
	if c.Position != 0 {
		id = s.watch.PositionAt(c.Position)
	}
	s.object(kind, id, appendChange(nil, kind, c, s.values))
	if len(*s.buffer) < watchFlush {
		return nil
	}
	return s.flush()
}

func (s *stream) bookmark(position string) {
	revision := position[strings.IndexByte(position, '.')+1:]
	s.object("bookmark", position, []byte(`{"type":"bookmark","revision":"`+revision+`"}`))
}

// end writes why the watch has ended, as its last object.
func (s *stream) end(err error) {
	e, reason, resume := s.watch.EndOf(err)
	b := appendField([]byte(`{"type":"error"`), "errorCode", e.Code)
	b = appendField(appendField(b, "reason", reason), "message", e.Message)
	if resume != "" {
		b = appendField(b, "resume", resume)
	}
	s.object("error", "", append(b, '}'))
	_ = s.flush() // the client may have gone
}

// object appends one event or line. id is empty if it is no position.
func (s *stream) object(event, id string, data []byte) {
	if !s.events {
		s.append("")
		*s.buffer = append(append(*s.buffer, data...), '\n')
		return
	}
	if id != "" {
		s.append("id: ", id, "\n")
	}
	s.append("event: ", event, "\ndata: ")
	*s.buffer = append(append(*s.buffer, data...), "\n\n"...)
}

func (s *stream) append(parts ...string) {
	if s.buffer == nil {
		s.buffer = s.buffers.Get().(*[]byte)
		if *s.buffer = (*s.buffer)[:0]; s.chunked {
			*s.buffer = append(*s.buffer, chunkRoom...)
		}
	}
	for _, p := range parts {
		*s.buffer = append(*s.buffer, p...)
	}
}

// flush sends what was appended, and releases the buffer.
func (s *stream) flush() error {
	if s.buffer != nil {
		if s.chunked {
			*s.buffer = finishChunk(*s.buffer)
		}
		n, err := s.out.Write(*s.buffer)
		if s.sent != nil {
			s.sent.Add(float64(n))
		}
		if cap(*s.buffer) <= 2*watchFlush { // others would keep much memory
			s.buffers.Put(s.buffer)
		}
		if s.buffer = nil; err != nil {
			return err
		}
	}
	if s.control == nil {
		return nil
	}
	return s.control.Flush()
}

func appendRevision(dst []byte, revision uint64) []byte {
	dst = append(dst, `,"revision":"`...)
	dst = strconv.AppendUint(dst, revision, 10)
	return append(dst, '"')
}

// appendChange appends an event with the key of the application. If the parameter values is false, the event does not
// contain the value of the item.
func appendChange(dst []byte, kind string, c *state.Change, values bool) []byte {
	dst = appendString(append(dst, `{"type":`...), kind)
	dst = appendField(appendRevision(dst, c.Revision), "key", c.Key)
	if c.Deleted {
		reason := "deleted"
		if c.Expired {
			reason = "expired"
		}
		return append(appendField(dst, "reason", reason), '}')
	}
	binary := c.ContentType != "" || !json.Valid(c.Value)
	if values {
		dst = append(dst, `,"value":`...)
		if binary {
			dst = appendBase64(dst, c.Value)
		} else {
			dst = appendOneLine(dst, c.Value)
		}
	}
	if !c.Expires.IsZero() {
		dst = appendField(dst, state.MetadataExpireTime, expires(c.Expires))
	}
	if binary {
		contentType := c.ContentType
		if contentType == "" {
			contentType = state.OctetStream
		}
		dst = appendField(dst, state.MetadataContentType, contentType)
	}
	return append(dst, '}')
}

// appendOneLine appends the JSON text value to dst and replaces each line break by a space. A line break would end the
// event of the stream. In valid JSON, line breaks occur only as white space between tokens.
func appendOneLine(dst, value []byte) []byte {
	for _, b := range value {
		if b == '\n' || b == '\r' {
			b = ' '
		}
		dst = append(dst, b)
	}
	return dst
}
