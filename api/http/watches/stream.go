package watches

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/component/state"
)

// Headers of the answer, in the canonical form of http.Header.
const (
	headerContentType = "Content-Type"
	headerSession     = "Quorate-Session"
)

// Values of headers.
var (
	valueEvents    = []string{"text/event-stream"}
	valueLines     = []string{"application/x-ndjson"}
	valueNoStore   = []string{"no-cache, no-transform"}
	valueNotStored = []string{"no"}
)

const eventRetry = "retry: 1000\n\n"

// Stream encodes the events of one watch.
type Stream struct {
	Watch    *api.Watch
	Values   bool // events contain the values of the items
	Events   bool // true = server-sent events, false = lines of JSON
	Snapshot bool // the items of the snapshot are still being sent
}

// Postpone answers an EventSource whose watch cannot start now. It sends the error as an event with status 200, because
// a browser reconnects after status 200 only. last is the last event id that the EventSource has received. The event
// contains it as the position to continue from.
func Postpone(w http.ResponseWriter, e *api.Error, last string) {
	s := Stream{Events: true}
	s.header(w.Header())
	_, _ = w.Write(s.appendError([]byte(eventRetry), e, e.Details.Reason, last)) // the client may have gone
}

// header sets the headers of the answer.
func (s *Stream) header(h http.Header) {
	h[headerContentType], h["Cache-Control"], h["X-Accel-Buffering"] = valueLines, valueNoStore, valueNotStored
	if s.Watch != nil && s.Watch.Session != "" {
		h[headerSession] = []string{s.Watch.Session}
	}
	if s.Events {
		h[headerContentType] = valueEvents
	}
}

// greet appends the data that a client receives before the first change.
func (s *Stream) greet(b []byte) []byte {
	if s.Events {
		b = append(b, eventRetry...)
	}
	if !s.Snapshot {
		b = s.appendBookmark(b)
	}
	return b
}

// appendPart appends the events of a part. A part may have no events.
func (s *Stream) appendPart(b []byte, part *state.WatchPart) []byte {
	for i := range part.Items {
		b = s.appendChange(b, "item", &part.Items[i])
	}
	if part.Synced {
		s.Snapshot = false
		data := append(appendRevision([]byte(`{"type":"synced"`), part.Seen), '}')
		b = s.appendObject(b, "synced", s.Watch.Position(), data)
	}
	for i := range part.Changes {
		kind := "put"
		if part.Changes[i].Deleted {
			kind = "delete"
		}
		b = s.appendChange(b, kind, &part.Changes[i])
	}
	// A client must not continue from a bookmark within a snapshot.
	if !part.Synced && !s.Snapshot && len(part.Items)+len(part.Changes) == 0 {
		b = s.appendBookmark(b)
	}
	return b
}

func (s *Stream) appendChange(b []byte, kind string, c *state.Change) []byte {
	id := ""
	if c.Position != 0 {
		id = s.Watch.PositionAt(c.Position)
	}
	return s.appendObject(b, kind, id, appendChange(nil, kind, c, s.Values))
}

func (s *Stream) appendBookmark(b []byte) []byte {
	position := s.Watch.Position()
	revision := position[strings.IndexByte(position, '.')+1:]
	return s.appendObject(b, "bookmark", position, []byte(`{"type":"bookmark","revision":"`+revision+`"}`))
}

// appendEnd appends the last object of the answer, which says why the watch has ended.
func (s *Stream) appendEnd(b []byte, err error) []byte {
	e, reason, resume := s.Watch.EndOf(err)
	return s.appendError(b, e, reason, resume)
}

// appendError appends e as the last object. reason is the reason that the object names. resume is the position to
// continue from, or empty.
func (s *Stream) appendError(b []byte, e *api.Error, reason, resume string) []byte {
	data := jsonbody.AppendField([]byte(`{"type":"error"`), "errorCode", e.Code)
	data = jsonbody.AppendField(jsonbody.AppendField(data, "reason", reason), "message", e.Message)
	if resume != "" {
		data = jsonbody.AppendField(data, "resume", resume)
	}
	return s.appendObject(b, "error", "", append(data, '}'))
}

// appendObject appends one server-sent event, or one line of JSON. id is the position from which a client can continue,
// or empty. Lines of JSON contain neither id nor event.
func (s *Stream) appendObject(b []byte, event, id string, data []byte) []byte {
	if !s.Events {
		return append(append(b, data...), '\n')
	}
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	b = append(append(append(b, "event: "...), event...), "\ndata: "...)
	return append(append(b, data...), "\n\n"...)
}

func appendRevision(dst []byte, revision uint64) []byte {
	dst = append(dst, `,"revision":"`...)
	dst = strconv.AppendUint(dst, revision, 10)
	return append(dst, '"')
}

// appendChange appends the JSON of a change to dst. If values is true, the JSON contains the value of the item.
func appendChange(dst []byte, kind string, c *state.Change, values bool) []byte {
	dst = jsonbody.AppendString(append(dst, `{"type":`...), kind)
	dst = jsonbody.AppendField(appendRevision(dst, c.Revision), "key", c.Key)
	if c.Deleted {
		reason := "deleted"
		if c.Expired {
			reason = "expired"
		}
		return append(jsonbody.AppendField(dst, "reason", reason), '}')
	}
	binary := c.ContentType != "" || !json.Valid(c.Value)
	if values {
		dst = append(dst, `,"value":`...)
		if binary {
			dst = jsonbody.AppendBase64(dst, c.Value)
		} else {
			dst = appendOneLine(dst, c.Value)
		}
	}
	if !c.Expires.IsZero() {
		dst = jsonbody.AppendField(dst, state.MetadataExpireTime, jsonbody.Expires(c.Expires))
	}
	if binary {
		contentType := c.ContentType
		if contentType == "" {
			contentType = state.OctetStream
		}
		dst = jsonbody.AppendField(dst, state.MetadataContentType, contentType)
	}
	return append(dst, '}')
}

// appendOneLine appends JSON text to dst, and replaces each line break with a space, because a line break would end the
// event. In valid JSON, line breaks are only white space between tokens.
func appendOneLine(dst, value []byte) []byte {
	for _, b := range value {
		if b == '\n' || b == '\r' {
			b = ' '
		}
		dst = append(dst, b)
	}
	return dst
}
