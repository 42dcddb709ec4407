package redis

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/quorate/quorate/component/pubsub"
)

// The fields of an entry of a stream.
const (
	fieldData     = "data"
	fieldMetadata = "metadata"
	fieldQuorate  = "quorate"
)

// extra is the JSON object in the field "quorate" of a stream entry. It contains the parts of a message for which
// Dapr's layout has no field.
type extra struct {
	ID   string `json:"id,omitempty"`
	Type string `json:"type,omitempty"`
	Key  string `json:"key,omitempty"`
}

// fieldsOf returns the fields of the stream entry for a message, as a list that alternates between names and values.
func fieldsOf(m *pubsub.Message) []any {
	out := []any{fieldData, m.Data}
	if len(m.Metadata) > 0 {
		text, _ := json.Marshal(m.Metadata) // texts can always be encoded
		out = append(out, fieldMetadata, text)
	}
	if e := (extra{m.ID, m.ContentType, m.Key}); e != (extra{}) {
		text, _ := json.Marshal(e)
		out = append(out, fieldQuorate, text)
	}
	return out
}

// position is the id of a stream entry: a time in milliseconds and a sequence number. Later entries have greater ids.
type position struct{ ms, seq uint64 }

func (p position) String() string {
	return strconv.FormatUint(p.ms, 10) + "-" + strconv.FormatUint(p.seq, 10)
}

func (p position) less(o position) bool { return p.ms < o.ms || p.ms == o.ms && p.seq < o.seq }

// after returns the next id after p. If p is the greatest possible id, after returns the zero id.
func (p position) after() position {
	if p.seq++; p.seq == 0 {
		p.ms++
	}
	return p
}

// idOf returns the id in a reply. It returns false if the reply is not an id.
func idOf(v any) (position, bool) {
	text, _ := v.(string)
	ms, seq, ok := strings.Cut(text, "-")
	if !ok {
		return position{}, false
	}
	var p position
	var first, second error
	p.ms, first = strconv.ParseUint(ms, 10, 64)
	p.seq, second = strconv.ParseUint(seq, 10, 64)
	return p, first == nil && second == nil && p.String() == text
}

// errForm is the error of a reply that does not have the documented form.
var errForm = errors.New("the answer has another form than Redis documents")

// entry is one message of a stream.
type entry struct {
	id      position
	message pubsub.Message
	notice  string // why the metadata cannot be read; "" = no problem
}

// entriesOf decodes a list of stream entries. It returns an error if the list has more entries than the limit most.
func entriesOf(v any, most int) ([]entry, error) {
	list, ok := v.([]any)
	if !ok || len(list) > most {
		return nil, errForm
	}
	out := make([]entry, 0, len(list))
	for _, v := range list {
		pair, _ := v.([]any)
		if len(pair) != 2 {
			return nil, errForm
		}
		id, ok := idOf(pair[0])
		fields, isList := pair[1].([]any)
		if !ok || !isList || len(fields)%2 != 0 {
			return nil, errForm
		}
		e := entry{id: id}
		if err := e.read(fields); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// readOf returns the entries of a reply to XREADGROUP for one stream. topic is the name of this stream, and most is the
// maximum number of entries.
func readOf(v any, topic string, most int) ([]entry, error) {
	if v == nil {
		return nil, nil
	}
	streams, _ := v.([]any)
	if len(streams) != 1 {
		return nil, errForm
	}
	pair, _ := streams[0].([]any)
	if len(pair) != 2 || pair[0] != any(topic) {
		return nil, errForm
	}
	return entriesOf(pair[1], most)
}

// read fills e from the fields of a stream entry. The list alternates between names and values. Unknown names are
// ignored.
func (e *entry) read(fields []any) error {
	for i := 0; i < len(fields); i += 2 {
		name, isName := fields[i].(string)
		value, isValue := fields[i+1].(string)
		if !isName || !isValue {
			return errForm
		}
		switch name {
		case fieldData:
			e.message.Data = []byte(value)
		case fieldMetadata:
			if e.message.Metadata, e.notice = metadataOf(value); e.message.Metadata == nil {
				continue
			}
			if e.message.Key == "" {
				e.message.Key = e.message.Metadata["partitionKey"]
			}
		case fieldQuorate:
			var x extra
			if len(value) <= maxMetadata && json.Unmarshal([]byte(value), &x) == nil {
				e.message.ID, e.message.ContentType, e.message.Key = x.ID, x.Type, x.Key
			}
		}
	}
	return nil
}

// maxMetadata is the maximum size in bytes of a message's metadata in JSON. It is larger than the API's limit for
// metadata, because JSON escapes need additional bytes.
const maxMetadata = 512 << 10

// metadataOf decodes the metadata of a message. If the metadata is malformed or too large, it returns no metadata and
// the reason. The message is then delivered without metadata, as in Dapr.
func metadataOf(text string) (out map[string]string, notice string) {
	if len(text) > maxMetadata {
		return nil, fmt.Sprintf("its metadata has %d bytes; the limit is %d", len(text), maxMetadata)
	}
	if json.Unmarshal([]byte(text), &out) != nil {
		return nil, "its metadata is no JSON object of texts"
	}
	if len(out) > pubsub.MaxMessageMetadata {
		return nil, fmt.Sprintf("it has %d pairs of metadata; the limit is %d", len(out), pubsub.MaxMessageMetadata)
	}
	return out, ""
}

// maxAttempts limits the number of delivery attempts that is read from Redis. A greater number is reduced to
// maxAttempts. Any client of Redis can set the number, and incrementing it must not overflow.
const maxAttempts = 1 << 30

// idle is a pending message.
type idle struct {
	id       position
	ms       int64 // idle time in milliseconds
	attempts int64
}

// pendingOf decodes the list of pending messages in a reply to XPENDING. It returns an error if the list is longer than
// the given maximum.
func pendingOf(v any, most int) ([]idle, error) {
	list, ok := v.([]any)
	if !ok || len(list) > most {
		return nil, errForm
	}
	out := make([]idle, 0, len(list))
	for _, v := range list {
		four, _ := v.([]any)
		if len(four) != 4 {
			return nil, errForm
		}
		id, isID := idOf(four[0])
		ms, isTime := four[2].(int64)
		attempts, isCount := four[3].(int64)
		if !isID || !isTime || !isCount || attempts < 0 {
			return nil, errForm
		}
		out = append(out, idle{id, ms, min(attempts, maxAttempts)})
	}
	return out, nil
}

// idsOf decodes a list of ids. It returns an error if the list has more ids than the limit most.
func idsOf(v any, most int) (map[position]bool, error) {
	list, ok := v.([]any)
	if !ok || len(list) > most {
		return nil, errForm
	}
	out := make(map[position]bool, len(list))
	for _, v := range list {
		id, ok := idOf(v)
		if !ok {
			return nil, errForm
		}
		out[id] = true
	}
	return out, nil
}
