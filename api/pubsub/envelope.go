package pubsub

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"mime"
	"strings"
	"time"

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

// envelope makes CloudEvents of payloads.
type envelope struct {
	topic, pubsub, source string
	trace                 *trace
	now                   time.Time
	ttl                   time.Duration // 0 = none, or the broker has it
}

// attributes are the attributes of a CloudEvent, as JSON.
type attributes map[string]json.RawMessage

// wrap returns the CloudEvent of a payload and its id.
func (e *envelope) wrap(p *Payload) (data []byte, id string, err error) {
	if isCloudEvent(p.ContentType) {
		return e.complete(p.Data)
	}
	id = newID()
	a := attributes{}
	a.set("id", id)
	a.set("source", e.source)
	a.set("type", eventType)
	a.set("specversion", specVersion)
	kind := p.ContentType
	if kind == "" {
		kind = contentText
	}
	a.set("datacontenttype", kind)
	a.set("traceid", e.trace.parent)
	a.set("traceparent", e.trace.parent)
	a.set("tracestate", e.trace.state)
	a.set("time", e.now.Format(time.RFC3339))
	if e.ttl > 0 {
		a.set("expiration", e.now.Add(e.ttl).UTC().Format(time.RFC3339))
	}
	a.data(kind, p.Data)
	a.override(p.Metadata)
	a.set("topic", e.topic)
	a.set("pubsubname", e.pubsub)
	data, err = a.json()
	return data, a.text("id"), err
}

// complete adds to a CloudEvent what it lacks.
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
	if e.ttl > 0 {
		a.set("expiration", e.now.Add(e.ttl).UTC().Format(time.RFC3339))
	}
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

// override applies the metadata that sets attributes.
func (a attributes) override(metadata map[string]string) {
	for _, name := range []string{"id", "source", "type", "subject", "traceid", "tracestate", "traceparent"} {
		value, ok := metadata["cloudevent."+name]
		switch {
		case !ok:
		case name == "traceid", name == "traceparent": // the later one wins
			a.set("traceid", value)
			a.set("traceparent", value)
		default:
			a.set(name, value)
		}
	}
}

// text returns an attribute that is a string; "" = there is none.
func (a attributes) text(name string) (out string) {
	if json.Unmarshal(a[name], &out) != nil {
		return ""
	}
	return out
}

func (a attributes) json() ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(a); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func quote(text string) json.RawMessage {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string can always be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func isCloudEvent(contentType string) bool {
	base, _, err := mime.ParseMediaType(contentType)
	return err == nil && base == contentCloudEvent
}

// isEventProtobuf reports whether data is a CloudEvent as protobuf: id, source, spec version and type are in it.
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
