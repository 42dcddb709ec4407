package cosmosdb

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// document is an item of the container.
type document struct {
	ID          string          `json:"id"`
	Value       json.RawMessage `json:"value"`
	IsBinary    bool            `json:"isBinary"`
	Partition   string          `json:"partitionKey"`
	TTL         *int64          `json:"ttl,omitempty"`
	ContentType string          `json:"contentType,omitempty"`
	ETag        string          `json:"_etag,omitempty"`
	Time        int64           `json:"_ts,omitempty"` // time of the write in seconds since 1970
}

// encode returns the document for a write to a partition. ttl is in seconds; 0 = the value never expires.
func encode(w *state.Write, partition string, ttl int64) ([]byte, error) {
	d := document{ID: w.Key, Value: w.Value, Partition: partition, ContentType: w.ContentType}
	if ttl > 0 {
		d.TTL = &ttl
	}
	if w.ContentType != "" || !json.Valid(w.Value) {
		d.IsBinary = true
		d.Value = json.RawMessage(`"` + base64.StdEncoding.EncodeToString(w.Value) + `"`)
		d.ContentType = state.OctetStream
	}
	return json.Marshal(d)
}

// fromBase64 decodes the base64 value of a document into out. A binary value without a content type was written by
// Dapr. It counts as JSON if it is valid JSON, and otherwise as bytes.
func fromBase64(out *state.Item, d document) error {
	var text string
	err := json.Unmarshal(d.Value, &text)
	if err == nil {
		out.Value, err = base64.StdEncoding.DecodeString(text)
	}
	if d.ContentType != "" || !json.Valid(out.Value) {
		out.ContentType = state.OctetStream
	}
	return err
}

// unstorable returns why Cosmos DB cannot store a key, or "" if it can.
func unstorable(key string) string {
	switch {
	case len(key) > 1023:
		return "is longer than 1023 bytes"
	case strings.ContainsAny(key, `/\?#`):
		return `has one of / \ ? #`
	case strings.HasSuffix(key, " "):
		return "ends with a space"
	}
	for _, r := range key {
		if r < ' ' {
			return "has a control character"
		}
	}
	return ""
}

// decode returns the item that a document contains, and the partition key of the document. If the document does not
// have the format of a state store, Item.Err is set. If the partition key is not a string, decode returns "" for it.
func decode(raw []byte) (state.Item, string) {
	var d document
	err := json.Unmarshal(raw, &d) // after an error about one field, the other fields are set
	out := state.Item{Key: d.ID, ETag: d.ETag, Value: d.Value}
	if err == nil && d.IsBinary {
		err = fromBase64(&out, d)
	}
	if err != nil {
		return state.Item{Key: d.ID, Err: &fault.Error{Code: fault.Corrupt, Op: "cosmosdb.Get", Key: d.ID, Err: err,
			Msg: "the item is not one of a state store"}}, d.Partition
	}
	if d.TTL != nil && *d.TTL > 0 {
		out.Expires = time.Unix(d.Time+*d.TTL, 0).UTC()
	}
	return out, d.Partition
}
