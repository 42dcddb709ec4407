package eventgrid

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/internal/fault"
)

// The media types of CloudEvents.
const (
	mediaEvent = "application/cloudevents+json"
	mediaBatch = "application/cloudevents-batch+json"
	mediaJSON  = "application/json"
)

// specVersion is the supported version of CloudEvents.
const specVersion = "1.0"

// attributePrefix is the prefix of headers that contain an attribute of a CloudEvent.
const attributePrefix = "Ce-"

// events returns the events of a delivery, each as a JSON document. An event that arrives as JSON is returned
// unchanged, byte for byte. For a malformed delivery, events returns fault.Invalid, because a retry cannot succeed.
func events(h http.Header, body []byte) ([]json.RawMessage, error) {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil && h.Get("Content-Type") != "" {
		return nil, malformed("the Content-Type is malformed")
	}
	switch {
	case media == mediaEvent:
		return single(body)
	case media == mediaBatch:
		return batch(body)
	case h.Get(attributePrefix+"Specversion") != "":
		return binary(h, media, body)
	case media == mediaJSON && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")):
		return batch(body)
	case media == mediaJSON:
		return single(body)
	}
	return nil, malformed("the Content-Type is not one of CloudEvents")
}

func single(body []byte) ([]json.RawMessage, error) {
	if err := checkEvent(body); err != nil {
		return nil, err
	}
	return []json.RawMessage{body}, nil
}

func batch(body []byte) ([]json.RawMessage, error) {
	noArray := malformed("the body is no JSON array of events")
	d := json.NewDecoder(bytes.NewReader(body))
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return nil, noArray
	}
	all := []json.RawMessage{}
	for d.More() { // one by one, so that a batch of invalid events does not use a multiple of its size in memory
		var e json.RawMessage
		if d.Decode(&e) != nil {
			return nil, noArray
		}
		if err := checkEvent(e); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if _, err := d.Token(); err != nil { // the end of the array
		return nil, noArray
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, noArray
	}
	return all, nil
}

// required has the attributes that every CloudEvent must have.
type required struct {
	Version *string `json:"specversion"`
	ID      *string `json:"id"`
	Source  *string `json:"source"`
	Type    *string `json:"type"`
}

// missing returns the name of the first attribute without a value, or "" if all attributes have one.
func (r required) missing() string {
	for _, a := range []struct {
		name  string
		value *string
	}{{"specversion", r.Version}, {"id", r.ID}, {"source", r.Source}, {"type", r.Type}} {
		if a.value == nil || *a.value == "" {
			return a.name
		}
	}
	return ""
}

// checkEvent returns fault.Invalid unless data is a CloudEvent of the supported version.
func checkEvent(data []byte) error {
	var r required
	if !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) || json.Unmarshal(data, &r) != nil {
		return malformed("an event is no JSON object with the attributes of a CloudEvent")
	}
	if name := r.missing(); name != "" {
		return malformed("an event has no attribute " + name + "; the delivery schema must be " + schemaCloudEvents)
	}
	if *r.Version != specVersion {
		return malformed("an event has another specversion than " + specVersion)
	}
	return nil
}

// binary converts an event in the binary mode of CloudEvents to one JSON document. In this mode, the attributes are in
// headers, and the body is the data.
func binary(h http.Header, media string, body []byte) ([]json.RawMessage, error) {
	o := object{}
	for header, values := range h {
		name, ok := strings.CutPrefix(header, attributePrefix)
		if !ok {
			continue
		}
		name = strings.ToLower(name)
		if !isAttribute(name) || len(values) != 1 {
			return nil, malformed("a header Ce-... is not an attribute of a CloudEvent")
		}
		value, err := url.PathUnescape(values[0])
		if err != nil || !utf8.ValidString(value) {
			return nil, malformed("the attribute " + name + " is malformed")
		}
		o[name] = text(value)
	}
	if kind := h.Get("Content-Type"); kind != "" {
		o["datacontenttype"] = text(kind)
	}
	switch {
	case len(body) == 0:
	case isJSON(media) && json.Valid(body):
		o["data"] = body
	case isJSON(media):
		return nil, malformed("the data of the event are no JSON, as their type says")
	default:
		o["data_base64"] = text(base64.StdEncoding.EncodeToString(body))
	}
	document := o.bytes()
	if err := checkEvent(document); err != nil {
		return nil, err
	}
	return []json.RawMessage{document}, nil
}

// isAttribute reports whether name is allowed as the name of a CloudEvents attribute in a header. The names "data" and
// "datacontenttype" are not allowed, because the body and the Content-Type provide these values.
func isAttribute(name string) bool {
	for _, c := range []byte(name) {
		if !letterOrDigit(c) {
			return false
		}
	}
	return name != "" && name != "data" && name != "datacontenttype"
}

func isJSON(media string) bool { return media == mediaJSON || strings.HasSuffix(media, "+json") }

// validationCode returns the code in a validation handshake of the Event Grid schema. The body of such a handshake is
// an array with one event of a special type. For any other body, ok is false.
func validationCode(body []byte) (code string, ok bool) {
	var all [2]json.RawMessage // json.Unmarshal skips further elements
	var event struct {
		Type string `json:"eventType"`
		Data struct {
			Code string `json:"validationCode"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &all) != nil || all[0] == nil || all[1] != nil || json.Unmarshal(all[0], &event) != nil ||
		event.Type != "Microsoft.EventGrid.SubscriptionValidationEvent" || event.Data.Code == "" {
		return "", false
	}
	return event.Data.Code, true
}

func malformed(msg string) error { return fault.New(fault.Invalid, "eventgrid.events", msg) }
