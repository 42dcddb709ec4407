package eventgrid

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// defaultType is the type of an event if the request does not set a type.
const defaultType = "quorate.binding.event"

// envelope returns the body to publish and its content type. A CloudEvent, an event in the Event Grid schema, and an
// array of either kind stay unchanged. Any other value becomes the data of a new CloudEvent. envelope returns
// fault.Invalid in these cases:
//
//   - The data is not JSON, or contains a malformed CloudEvent.
//   - An array mixes CloudEvents with other values.
//   - A new CloudEvent is needed, but the metadata for it is malformed.
func (o *output) envelope(r bindings.Request) (body []byte, media string, err error) {
	data := bytes.TrimSpace(r.Data)
	switch {
	case len(data) > 0 && !json.Valid(data):
		return nil, "", fault.New(fault.Invalid, "eventgrid.Invoke", "data are no JSON")
	case isEvent(data):
		return data, mediaEvent, published(data, "data")
	case isGridEvent(data):
		return data, mediaJSON, nil
	}
	var all []json.RawMessage
	if bytes.HasPrefix(data, []byte("[")) && json.Unmarshal(data, &all) == nil {
		count := 0
		for _, e := range all {
			if isEvent(e) {
				count++
			}
		}
		if count > 0 {
			return data, mediaBatch, allPublished(all)
		}
		if len(all) > 0 && !slices.ContainsFunc(all, func(e json.RawMessage) bool { return !isGridEvent(e) }) {
			return data, mediaJSON, nil
		}
	}
	body, err = o.wrap(r.Metadata, data)
	return body, mediaEvent, err
}

// isEvent reports whether data is a JSON object with the field specversion, which only CloudEvents have.
func isEvent(data []byte) bool {
	var o struct {
		Version json.RawMessage `json:"specversion"`
	}
	return bytes.HasPrefix(data, []byte("{")) && json.Unmarshal(data, &o) == nil && o.Version != nil
}

// isGridEvent reports whether data is an event in the Event Grid schema. This is a JSON object with the strings id,
// subject and eventType, and with data or eventTime. Event Grid itself checks the other fields.
func isGridEvent(data []byte) bool {
	var e struct {
		ID, Subject, EventType, EventTime *string
		Data                              json.RawMessage
	}
	return bytes.HasPrefix(data, []byte("{")) && json.Unmarshal(data, &e) == nil &&
		e.ID != nil && e.Subject != nil && e.EventType != nil && (e.EventTime != nil || e.Data != nil)
}

func allPublished(all []json.RawMessage) error {
	for i, e := range all {
		if err := published(e, "element "+strconv.Itoa(i)+" of data"); err != nil {
			return err
		}
	}
	return nil
}

// published returns fault.Invalid unless data is a CloudEvent of the supported version with all required attributes.
// The parameter what names the event in the error.
func published(data []byte, what string) error {
	var r required
	if !isEvent(data) || json.Unmarshal(data, &r) != nil {
		return &fault.Error{Code: fault.Invalid, Op: "eventgrid.Invoke", Msg: what + " is no CloudEvent",
			Hint: "in an array give CloudEvents alone, or none"}
	}
	if name := r.missing(); name != "" {
		return fault.New(fault.Invalid, "eventgrid.Invoke", what+" is a CloudEvent without "+name)
	}
	if *r.Version != specVersion {
		return fault.New(fault.Invalid, "eventgrid.Invoke",
			what+" is a CloudEvent of another specversion than "+specVersion)
	}
	return nil
}

// wrap returns a new CloudEvent that contains data. Its attributes come from the metadata of the request.
func (o *output) wrap(metadata map[string]string, data []byte) ([]byte, error) {
	content := metadata["datacontenttype"]
	if content == "" {
		content = mediaJSON
	}
	media, _, err := mime.ParseMediaType(content)
	if err != nil {
		return nil, fault.New(fault.Invalid, "eventgrid.Invoke",
			"the metadata datacontenttype is not a media type such as application/json")
	}
	if !isJSON(media) && len(data) > 0 && data[0] != '"' {
		return nil, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Invoke", Msg: "data of the type " + media +
			" must be a JSON string",
			Hint: "give them in quotes, or leave out the metadata datacontenttype"}
	}
	event := object{"specversion": text(specVersion), "id": text(uuid.NewString()),
		"source": text(url.PathEscape(o.name)), "type": text(defaultType),
		"time": text(time.Now().UTC().Format(time.RFC3339Nano)), "datacontenttype": text(content)}
	for _, name := range []string{"id", "source", "type", "time", "subject", "dataschema", "traceparent",
		"tracestate"} {
		if v := metadata[name]; v != "" {
			event[name] = text(v)
		}
	}
	if v := metadata["time"]; v != "" {
		if _, err := time.Parse(time.RFC3339, v); err != nil {
			return nil, fault.New(fault.Invalid, "eventgrid.Invoke",
				"the metadata time is not a time such as 2026-01-31T12:00:00Z")
		}
	}
	if len(data) > 0 {
		event["data"] = data
	} else {
		delete(event, "datacontenttype")
	}
	return event.bytes(), nil
}
