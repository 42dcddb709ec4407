package pubsub

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"mime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Content types.
const (
	contentCloudEvent = "application/cloudevents+json"
	contentJSON       = "application/json"
	contentOctets     = "application/octet-stream"
	contentText       = "text/plain"
	eventType         = "com.dapr.event.sent"
	eventTypeBulk     = "com.dapr.event.sent.bulk"
	specVersion       = "1.0"
	runtimeSource     = "Dapr" // the source of an event whose publisher is not known
)

// envelope converts payloads to CloudEvents.
type envelope struct {
	topic, pubsub, source string
	trace                 *trace
	now                   time.Time
	ttl                   time.Duration // 0 = none, or the broker applies it
}

// attributes are the attributes of a CloudEvent, as JSON.
type attributes map[string]json.RawMessage

// wrap returns the CloudEvent of a payload, and the id of the event.
func (e *envelope) wrap(p *Payload) (data []byte, id string, err error) {
	if isCloudEvent(p.ContentType) {
		return e.complete(p.Data)
	}
	id = newID()
	kind := p.ContentType
	if kind == "" {
		kind = contentText
	}
	a := e.attributes(kind)
	a.set("id", id)
	a.data(kind, p.Data)
	a.override(p.Metadata)
	a.set("topic", e.topic)
	a.set("pubsubname", e.pubsub)
	data, err = a.json()
	return data, a.text("id"), err
}

// attributes returns the attributes that every event has, without id, data and topic.
func (e *envelope) attributes(kind string) attributes {
	a := make(attributes, 16)
	a.set("source", e.source)
	a.set("type", eventType)
	a.set("specversion", specVersion)
	a.set("datacontenttype", kind)
	a.set("traceid", e.trace.parent)
	a.set("traceparent", e.trace.parent)
	a.set("tracestate", e.trace.state)
	a.set("time", e.now.Format(time.RFC3339))
	a.expire(e)
	return a
}

// expire sets the attribute expiration if the message has a time to live. The time is rounded up to a whole second,
// because the format has no fractions of seconds and a message must not expire too early.
func (a attributes) expire(e *envelope) {
	if e.ttl > 0 {
		end := e.now.Add(e.ttl).Add(time.Second - time.Nanosecond).Truncate(time.Second)
		a.set("expiration", end.UTC().Format(time.RFC3339))
	}
}

// complete prepares a CloudEvent that the application has sent. It sets the attributes topic and pubsubname, and adds
// defaults for attributes that the event lacks. id is the id of the event.
func (e *envelope) complete(event []byte) (data []byte, id string, err error) {
	var a attributes
	if err := json.Unmarshal(event, &a); err != nil || a == nil {
		return nil, "", errors.New("the payload is not a JSON object")
	}
	a.set("topic", e.topic)
	a.set("pubsubname", e.pubsub)
	if _, traced := a["traceid"]; !traced {
		a.set("traceid", e.trace.parent)
		a.set("traceparent", e.trace.parent)
	}
	for name, value := range map[string]string{"tracestate": e.trace.state, "time": e.now.Format(time.RFC3339),
		"source": runtimeSource, "type": eventType, "specversion": specVersion} {
		if _, present := a[name]; !present {
			a.set(name, value)
		}
	}
	a.expire(e)
	data, err = a.json()
	return data, a.text("id"), err
}

func (a attributes) set(name, value string) { a[name] = quote(value) }

// data sets the data of the event by its content type.
func (a attributes) data(kind string, data []byte) {
	base, _, _ := strings.Cut(kind, ";")
	base = strings.ToLower(strings.TrimSpace(base))
	switch {
	case base == contentJSON && json.Valid(data):
		a["data"] = data
	case base == contentOctets, base == "application/cloudevents+protobuf",
		base == "application/x-protobuf" && isEventProtobuf(data):
		a.set("data_base64", base64.StdEncoding.EncodeToString(data))
	default:
		a.set("data", string(data))
	}
}

// override sets the attributes that metadata names with the prefix "cloudevent.".
func (a attributes) override(metadata map[string]string) {
	if len(metadata) == 0 {
		return
	}
	for _, name := range []string{"id", "source", "type", "subject", "traceid", "tracestate", "traceparent"} {
		value, ok := metadata["cloudevent."+name]
		switch {
		case !ok:
		case name == "traceid", name == "traceparent": // traceparent is later in the list, so it wins
			a.set("traceid", value)
			a.set("traceparent", value)
		default:
			a.set(name, value)
		}
	}
}

// text returns the value of an attribute that is a string. It returns "" if there is no such attribute.
func (a attributes) text(name string) (out string) {
	value := a[name]
	switch n := len(value); {
	case n == 0:
		return ""
	case n > 1 && value[0] == '"' && value[n-1] == '"' && !bytes.ContainsRune(value, '\\') && utf8.Valid(value):
		return string(value[1 : n-1]) // most strings need no decoder
	}
	if json.Unmarshal(value, &out) != nil {
		return ""
	}
	return out
}

// json returns the attributes as an object, sorted by name, without spaces and without escapes for HTML.
func (a attributes) json() ([]byte, error) {
	names := make([]string, 0, len(a))
	size := len("{}")
	for name, value := range a {
		names = append(names, name)
		size += len(name) + len(value) + len(`"":,`)
	}
	slices.Sort(names)
	b := bytes.NewBuffer(make([]byte, 0, size))
	b.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(appendQuoted(b.AvailableBuffer(), name))
		b.WriteByte(':')
		value := a[name]
		if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' { // a string, which has no spaces to remove
			b.Write(value)
		} else if err := json.Compact(b, value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// quote returns a string as JSON, without escapes for HTML.
func quote(text string) json.RawMessage {
	return appendQuoted(make([]byte, 0, len(text)+len(`""`)), text)
}

// appendQuoted appends a string as JSON. Text without anything to escape needs no encoder.
func appendQuoted(b []byte, text string) []byte {
	if !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
		return append(append(append(b, '"'), text...), '"')
	}
	out := bytes.NewBuffer(b)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string can always be encoded
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func isCloudEvent(contentType string) bool {
	if contentType == contentJSON || contentType == contentText {
		return false // most messages need no parser
	}
	base, _, err := mime.ParseMediaType(contentType)
	return err == nil && base == contentCloudEvent
}

// isEventProtobuf reports whether data is a CloudEvent encoded as protobuf. Such an event has the fields id, source,
// spec version and type.
func isEventProtobuf(data []byte) bool {
	required := 0
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return false
		}
		data = data[n:]
		if number >= 1 && number <= 4 && kind == protowire.BytesType {
			required |= 1 << number
		}
	}
	return required == 0b11110
}
