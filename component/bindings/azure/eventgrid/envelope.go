package eventgrid

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"strconv"
	"time"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// defaultType is the type of events whose request names none.
const defaultType = "quorate.binding.event"

// envelope decides what is sent: CloudEvents as they are, anything else as the data of one.
func (o *output) envelope(r bindings.Request) (body []byte, media string, err error) {
	data := bytes.TrimSpace(r.Data)
	switch {
	case len(data) > 0 && !json.Valid(data):
		return nil, "", fault.New(fault.Invalid, "eventgrid.Invoke", "data are no JSON")
	case isEvent(data):
		return data, mediaEvent, published(data, "data")
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
	}
	body, err = o.wrap(r.Metadata, data)
	return body, mediaEvent, err
}

// isEvent reports whether JSON is meant as a CloudEvent: nothing else has a specversion.
func isEvent(data []byte) bool {
	var o struct {
		Version json.RawMessage `json:"specversion"`
	}
	return bytes.HasPrefix(data, []byte("{")) && json.Unmarshal(data, &o) == nil && o.Version != nil
}

func allPublished(all []json.RawMessage) error {
	for i, e := range all {
		if err := published(e, "element "+strconv.Itoa(i)+" of data"); err != nil {
			return err
		}
	}
	return nil
}

// published refuses an event that no topic would take.
func published(data []byte, what string) error {
	var r required
	if !isEvent(data) || json.Unmarshal(data, &r) != nil {
		return &fault.Error{Code: fault.Invalid, Op: "eventgrid.Invoke", Msg: what + " is no CloudEvent", Hint: "in an array give CloudEvents alone, or none"}
	}
	if name := r.missing(); name != "" {
		return fault.New(fault.Invalid, "eventgrid.Invoke", what+" is a CloudEvent without "+name)
	}
	if *r.Version != specVersion {
		return fault.New(fault.Invalid, "eventgrid.Invoke", what+" is a CloudEvent of another specversion than "+specVersion)
	}
	return nil
}

// wrap makes an event. Its attributes are those of the request's metadata.
func (o *output) wrap(metadata map[string]string, data []byte) ([]byte, error) {
	content := metadata["datacontenttype"]
	if content == "" {
		content = mediaJSON
	}
	media, _, err := mime.ParseMediaType(content)
	if err != nil {
		return nil, fault.New(fault.Invalid, "eventgrid.Invoke", "the metadata datacontenttype is not a media type such as application/json")
	}
	if !isJSON(media) && len(data) > 0 && data[0] != '"' {
		return nil, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Invoke", Msg: "data of the type " + media + " must be a JSON string",
			Hint: "give them in quotes, or leave out the metadata datacontenttype"}
	}
	event := object{"specversion": text(specVersion), "id": text(newID()), "source": text(url.PathEscape(o.name)), "type": text(defaultType),
		"time": text(time.Now().UTC().Format(time.RFC3339Nano)), "datacontenttype": text(content)}
	for _, name := range []string{"id", "source", "type", "time", "subject", "dataschema", "traceparent", "tracestate"} {
		if v := metadata[name]; v != "" {
			event[name] = text(v)
		}
	}
	if v := metadata["time"]; v != "" {
		if _, err := time.Parse(time.RFC3339, v); err != nil {
			return nil, fault.New(fault.Invalid, "eventgrid.Invoke", "the metadata time is not a time such as 2026-01-31T12:00:00Z")
		}
	}
	if len(data) > 0 {
		event["data"] = data
	} else {
		delete(event, "datacontenttype")
	}
	return event.bytes(), nil
}

// newID makes a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
