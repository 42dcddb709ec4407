package redis

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/quorate/quorate/component/pubsub"
)

// FuzzEntry encodes a message and decodes it again. It also decodes arbitrary metadata and ids.
func FuzzEntry(f *testing.F) {
	f.Add("1", []byte(`{"a":1}`), "application/json", "k", "name", "value", `{"a":"b"}`, "1-2")
	f.Add("", []byte(nil), "", "", "", "", `{"a":1}`, "18446744073709551615-18446744073709551616")
	f.Add("<&>", []byte("\x00\xff"), "x", "", "partitionKey", "p", `{"a":`, "01-0")
	f.Add("0", []byte("0"), "\xd1", "\x827", "partitionKey", "p", `{"a":`, "01-0")
	f.Fuzz(func(t *testing.T, id string, data []byte, kind, key, name, value, foreign, position string) {
		m := pubsub.Message{ID: id, Data: data, ContentType: kind, Key: key, Metadata: map[string]string{name: value}}
		fields := fieldsOf(&m)
		for i, v := range fields {
			if b, ok := v.([]byte); ok {
				fields[i] = string(b)
			}
		}
		var e entry
		if err := e.read(fields); err != nil {
			t.Fatal(err)
		}
		got := e.message
		if !bytes.Equal(got.Data, data) {
			t.Errorf("data %q became %q", data, got.Data)
		}
		long := len(id)+len(kind)+len(key)+len(name)+len(value) > maxMetadata/6
		// Each text by itself: two invalid texts may be a valid one together.
		valid := !slices.ContainsFunc([]string{id, kind, key, name, value},
			func(s string) bool { return !utf8.ValidString(s) })
		if valid && !long && (got.ID != id || got.ContentType != kind || got.Metadata[name] != value ||
			key != "" && got.Key != key) {
			t.Errorf("%+v became %+v", m, got)
		}
		if out, notice := metadataOf(foreign); notice != "" && out != nil || len(out) > pubsub.MaxMessageMetadata {
			t.Errorf("%q is %v, %s", foreign, out, notice)
		}
		if p, ok := idOf(position); ok && (p.String() != position || !p.less(p.after()) && p.after() != p0()) {
			t.Errorf("%q is %s", position, p)
		}
	})
}

// p0 returns the id that after returns for the greatest id.
func p0() (p position) { return p }

// Another client of Redis has set the largest number of attempts. The number of attempts plus one must not overflow.
func TestPendingOf_BoundsAttempts(t *testing.T) {
	reply := []any{[]any{"1-1", "member", int64(60_000), int64(math.MaxInt64)}}
	list, err := pendingOf(reply, 1)
	if err != nil || len(list) != 1 || list[0].attempts+1 <= 0 {
		t.Errorf("the pending messages are %v, %v", list, err)
	}
}
