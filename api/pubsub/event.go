package pubsub

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// Event is one message on its way to the application. Targets do not change it.
type Event struct {
	PubSub   string // component
	Topic    string // subscribed to
	Path     string // path of the application
	ID       string // of the CloudEvent
	Data     []byte // the CloudEvent as JSON
	Metadata map[string]string
	Attempt  int
	Token    string // acknowledges the message in a state transaction; "" = none

	sent    func() // called by Sent
	raw     bool
	payload []byte     // data of a raw message
	fields  attributes // of the CloudEvent
}

// eventOf converts a delivery to an event. The message must be a CloudEvent, unless the subscription is raw. For other
// content, eventOf returns fault.Invalid.
func (s *Subscription) eventOf(d *pubsub.Delivery) (*Event, error) {
	e := &Event{PubSub: s.PubSub, Topic: s.Topic, Metadata: d.Metadata, Attempt: d.Attempt, raw: s.raw}
	if d.Token != "" {
		e.Token = s.PubSub + tokenSeparator + d.Token
	}
	if s.raw {
		return e, e.wrapRaw(d)
	}
	if err := json.Unmarshal(d.Data, &e.fields); err != nil || e.fields == nil {
		return e, fault.New(fault.Invalid, "pubsub.eventOf",
			"the message is not a CloudEvent in JSON (subscribe with rawPayload for other data)")
	}
	e.Data, e.ID = d.Data, e.fields.text("id")
	return e, nil
}

// wrapRaw puts a raw message into a CloudEvent.
func (e *Event) wrapRaw(d *pubsub.Delivery) (err error) {
	e.payload = d.Data
	e.fields = attributes{}
	e.fields.set("id", newID())
	e.fields.set("specversion", specVersion)
	e.fields.set("datacontenttype", contentOctets)
	e.fields.set("type", eventType)
	e.fields.set("source", runtimeSource)
	e.fields.set("topic", e.Topic)
	e.fields.set("pubsubname", e.PubSub)
	e.fields.set("data_base64", base64.StdEncoding.EncodeToString(d.Data))
	for _, name := range []string{"traceid", "traceparent", "tracestate"} {
		if v, ok := d.Metadata[name]; ok {
			e.fields.set(name, v)
		}
	}
	e.ID = e.fields.text("id")
	e.Data, err = e.fields.json()
	return err
}

// expired reports whether the expiration time of the event has passed. An event without a valid expiration time never
// expires.
func (e *Event) expired(now time.Time) bool {
	text := e.fields.text("expiration")
	if text == "" {
		return false
	}
	at, err := time.Parse(time.RFC3339, text)
	return err == nil && at.Before(now)
}

// route finds the path of an event. found is false if no rule matches.
func (s *Subscription) route(ctx context.Context, e *Event) (path string, found bool, err error) {
	var value any
	for i := range s.rules {
		r := &s.rules[i]
		if r.program != nil && value == nil {
			if value, err = s.value(e); err != nil {
				return "", false, err
			}
		}
		yes, err := r.matches(ctx, value)
		if err != nil {
			return "", false, err
		}
		if yes {
			return r.path, true, nil
		}
	}
	return "", false, nil
}

// value returns the value that routing rules match: the decoded CloudEvent. For a raw bulk subscription, the value is
// the payload as a string, as in Dapr.
func (s *Subscription) value(e *Event) (any, error) {
	if s.raw && s.bulk > 0 {
		return string(e.payload), nil
	}
	var out map[string]any
	if err := json.Unmarshal(e.Data, &out); err != nil {
		return nil, fault.New(fault.Invalid, "pubsub.value", "the message is not a CloudEvent in JSON")
	}
	return out, nil
}

// Sent permits the delivery of the next event of a stream. The target must call Sent when it has sent e to the client
// of the stream.
func (e *Event) Sent() { e.sent() }

// noParent is the traceparent of an event without one.
const noParent = "00-00000000000000000000000000000000-0000000000000000-00"

// Trace returns the traceparent and the tracestate of the event. The traceparent is the first valid one of the fields
// traceparent and traceid. If neither is valid, Trace returns a traceparent with only zeros and an empty tracestate.
func (e *Event) Trace() (parent, state string) {
	for _, name := range []string{"traceparent", "traceid"} {
		if parent = e.fields.text(name); isTraceparent(parent) {
			return parent, e.fields.text("tracestate")
		}
	}
	return noParent, ""
}

func isTraceparent(text string) bool {
	return len(text) == len(noParent) && api.TraceID(text) != "" && strings.Trim(text, "0123456789abcdef-") == ""
}

// data returns the data of the CloudEvent as bytes. Text is without quotes.
func (e *Event) data() []byte {
	if encoded := e.fields.text("data_base64"); encoded != "" {
		if out, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			return out
		}
	}
	data := e.fields["data"]
	base, _, _ := strings.Cut(e.fields.text("datacontenttype"), ";")
	base = strings.ToLower(strings.TrimSpace(base))
	if text := e.fields.text("data"); text != "" && base != contentJSON && base != contentCloudEvent {
		return []byte(text)
	}
	return data
}

// maxLevels limits how deeply arrays and objects may be nested in an attribute of a gRPC message. Each level of the
// value takes three nested protobuf messages, and some clients refuse more than 100 nested messages.
const maxLevels = 16

// levels returns how deeply the arrays and objects of a valid JSON value are nested.
func levels(value []byte) (most int) {
	depth, inText, escaped := 0, false, false
	for _, c := range value {
		switch {
		case escaped:
			escaped = false
		case inText:
			escaped, inText = c == '\\', c != '"'
		case c == '"':
			inText = true
		case c == '[', c == '{':
			depth++
			most = max(most, depth)
		case c == ']', c == '}':
			depth--
		}
	}
	return most
}

// extensions returns the attributes that have no field of their own in a gRPC message. It omits attributes that are
// nested too deeply for some clients (see maxLevels). A client that cannot decode a message would end its stream, and
// would then get the same message again.
func (e *Event) extensions() *structpb.Struct {
	rest := maps.Clone(e.fields)
	for _, name := range []string{"id", "source", "type", "specversion", "datacontenttype", "data", "data_base64"} {
		delete(rest, name)
	}
	for name, value := range rest {
		if levels(value) > maxLevels {
			delete(rest, name)
		}
	}
	text, err := rest.json()
	out := &structpb.Struct{}
	if err != nil || protojson.Unmarshal(text, out) != nil {
		return nil
	}
	return out
}

// Proto returns the event as a message of Dapr's gRPC services.
func (e *Event) Proto() *runtimev1.TopicEventRequest {
	return &runtimev1.TopicEventRequest{Id: e.ID, Source: e.fields.text("source"), Type: e.fields.text("type"),
		SpecVersion: e.fields.text("specversion"), DataContentType: e.fields.text("datacontenttype"), Topic: e.Topic,
		Data: e.data(), PubsubName: e.PubSub, Path: e.Path, Extensions: e.extensions()}
}

// Batch is several messages of one subscription on their way to one path.
type Batch struct {
	ID            string
	PubSub, Topic string
	Path          string
	Entries       []BatchEntry
}

// BatchEntry is one message of a Batch. EntryID is unique in the Batch.
type BatchEntry struct {
	*Event
	EntryID string
}

// contentType returns the content type of an entry.
func (e *BatchEntry) contentType() string {
	if e.raw {
		return contentOctets
	}
	return contentCloudEvent
}

// metadata returns the metadata of an entry, with the token of its delivery. A token that the publisher has set is
// removed.
func (e *BatchEntry) metadata() map[string]string {
	out := maps.Clone(e.Metadata)
	if out == nil {
		out = map[string]string{}
	}
	delete(out, api.MetadataAck)
	if e.Token != "" {
		out[api.MetadataAck] = e.Token
	}
	return out
}

// JSON returns the batch as the body of a request.
func (b *Batch) JSON() ([]byte, error) {
	type entry struct {
		EntryID     string            `json:"entryId"`
		Event       json.RawMessage   `json:"event"`
		Metadata    map[string]string `json:"metadata"`
		ContentType string            `json:"contentType"`
	}
	list := make([]entry, len(b.Entries))
	for i := range b.Entries {
		e := &b.Entries[i]
		list[i] = entry{e.EntryID, e.Data, e.metadata(), e.contentType()}
		if e.raw {
			list[i].Event = quote(base64.StdEncoding.EncodeToString(e.payload))
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(struct {
		ID       string            `json:"id"`
		Type     string            `json:"type"`
		Topic    string            `json:"topic"`
		PubSub   string            `json:"pubsubname"`
		Metadata map[string]string `json:"metadata"`
		Entries  []entry           `json:"entries"`
	}{b.ID, eventTypeBulk, b.Topic, b.PubSub, map[string]string{}, list})
	return out.Bytes(), err
}

// Proto returns the batch as a message of Dapr's gRPC services.
func (b *Batch) Proto() *runtimev1.TopicEventBulkRequest {
	out := &runtimev1.TopicEventBulkRequest{Id: b.ID, Topic: b.Topic, PubsubName: b.PubSub, Type: eventTypeBulk,
		Path: b.Path}
	for i := range b.Entries {
		e := &b.Entries[i]
		entry := &runtimev1.TopicEventBulkRequestEntry{EntryId: e.EntryID, ContentType: e.contentType(),
			Metadata: validText(e.metadata())}
		if e.raw {
			entry.Event = &runtimev1.TopicEventBulkRequestEntry_Bytes{Bytes: e.payload}
		} else {
			p := e.Proto()
			entry.Event = &runtimev1.TopicEventBulkRequestEntry_CloudEvent{CloudEvent: &runtimev1.TopicEventCERequest{
				Id: p.GetId(), Source: p.GetSource(), Type: p.GetType(), SpecVersion: p.GetSpecVersion(),
				DataContentType: p.GetDataContentType(), Data: p.GetData(), Extensions: p.GetExtensions()}}
		}
		out.Entries = append(out.Entries, entry)
	}
	return out
}

// validText returns metadata in which invalid UTF-8 is replaced. Publishers over HTTP can send any bytes, but protobuf
// refuses a message with invalid UTF-8.
func validText(metadata map[string]string) map[string]string {
	valid := true
	for name, value := range metadata {
		valid = valid && utf8.ValidString(name) && utf8.ValidString(value)
	}
	if valid {
		return metadata
	}
	out := make(map[string]string, len(metadata))
	for name, value := range metadata {
		out[strings.ToValidUTF8(name, "\uFFFD")] = strings.ToValidUTF8(value, "\uFFFD")
	}
	return out
}
