package topics

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
)

func TestMessage_IsReadAsStored(t *testing.T) {
	want := pubsub.Message{ID: "1", Data: []byte("\x00{"), ContentType: "text/plain", Key: "k",
		Metadata: map[string]string{"b": "", "a": "x"}, DeliverAt: time.UnixMilli(1_700_000_000_123)}
	stored := append(make([]byte, 8), encodeMessage(&want)...)
	got, ok := decodeMessage(stored)
	if !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %t, want %+v", got, ok, want)
	}
	for n := range stored[:len(stored)-len(want.Data)] {
		if _, ok := decodeMessage(stored[:n]); ok {
			t.Errorf("%d of %d bytes are a message", n, len(stored))
		}
	}
}

func TestKeys_NamesDoNotMix(t *testing.T) {
	a, b := Topic{1, "ns/p", "a"}, Topic{1, "ns/p", "ab"}
	if strings.HasPrefix(b.messageKey(1), a.prefix()) {
		t.Error("the keys of a topic begin with those of another one")
	}
	if strings.HasPrefix(a.parkedKey("ab", 1), a.parkedPrefix("a")) {
		t.Error("the keys of a group begin with those of another one")
	}
	got, table, rest, ok := split(a.messageKey(7))
	if !ok || got != a || table != tableMessage || offsetOf(rest) != 7 {
		t.Errorf("split = %+v, %c, %q, %t", got, table, rest, ok)
	}
}

func TestNames_AreBounded(t *testing.T) {
	for what, name := range map[string]string{"empty": "", "NUL": "a\x00b", "long": strings.Repeat("n", 1025)} {
		if err := checkNames("test", name, "g"); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := checkNames("test", strings.Repeat("n", 1024), strings.Repeat("g", 512)); err != nil {
		t.Errorf("the longest names: %v", err)
	}
}

// FuzzRecords reads arbitrary bytes as every kind of record. What can be read is written with the same content.
func FuzzRecords(f *testing.F) {
	f.Add(append(make([]byte, 8), encodeMessage(&pubsub.Message{ID: "1", Metadata: map[string]string{"a": "b"}})...))
	f.Add((&cursor{upto: 9, open: []uint64{3, 5}}).encode())
	f.Add((&cursor{upto: 9, open: []uint64{3}, used: 1 << 40, ttl: 60_000}).encode())
	f.Add((&parked{attempts: 2, at: 77, key: "k"}).encode())
	f.Add((&count{upto: 1, messages: 2, bytes: 3}).encode())
	f.Add((&Policy{Retention: time.Hour, MaxBytes: 5}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, ok := decodeMessage(b); ok {
			if again, ok := decodeMessage(append(bytes.Clone(b[:8]), encodeMessage(&m)...)); !ok ||
				!reflect.DeepEqual(again, m) {
				t.Errorf("message %+v became %+v", m, again)
			}
		}
		if c, ok := readCursor(b, 1); ok {
			if again, ok := readCursor(c.encode(), 1); !ok || !reflect.DeepEqual(again, c) {
				t.Errorf("cursor %+v became %+v", c, again)
			}
		}
		if p, ok := readParked(b); ok {
			if again, ok := readParked(p.encode()); !ok || again != p {
				t.Errorf("parked %+v became %+v", p, again)
			}
		}
		if c, ok := readCount(b, 1); ok {
			if again, ok := readCount(c.encode(), 1); !ok || again != c {
				t.Errorf("count %+v became %+v", c, again)
			}
		}
		if p, ok := readPolicy(b); ok {
			if again, ok := readPolicy(p.encode()); !ok || again != p {
				t.Errorf("policy %+v became %+v", p, again)
			}
		}
		if topic, table, rest, ok := split(string(b)); ok && topic.key(table, rest) != string(b) {
			t.Errorf("key %q is split into %+v, %c and %q", b, topic, table, rest)
		}
	})
}

// FuzzCalls reads arbitrary bytes as calls and answers between nodes.
func FuzzCalls(f *testing.F) {
	join := Join{ID: 1, Topic: Topic{Store: "ns/p", Name: "orders"}, Group: "app", Concurrency: 1, Window: 2,
		GroupTTL: time.Hour, RetryBackoff: time.Second}
	for _, c := range []call{{what: callJoin, session: "s", fresh: true, join: join},
		{what: callLeave, session: "s", join: Join{ID: 3}}, {what: callPull, session: "s", answer: 7},
		{what: callSettle, settles: []Settle{{Topic: join.Topic, Group: "app", Offset: 9, Attempt: 1,
			Outcome: pubsub.Failed, DeadLetter: "dead"}}},
		{what: callReplay, join: Join{Topic: join.Topic, Group: "app"}, since: 5}} {
		f.Add(c.append())
	}
	f.Add(appendAnswer([]byte{1}, &Answer{Number: 3,
		List: []Handed{{ID: 1, Offset: 2, Attempt: 3, Value: []byte("v")}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := readCall(&lenprefix.Reader{Rest: b}, 0); err == nil && c.join.Concurrency >= 0 &&
			c.join.Window >= 0 && c.join.RetryBackoff >= 0 {
			if again, err := readCall(&lenprefix.Reader{Rest: c.append()}, 0); err != nil ||
				!reflect.DeepEqual(again, c) {
				t.Errorf("call %+v became %+v, %v", c, again, err)
			}
		}
		if known, a, err := readAnswer(b); err == nil && known && a.Number != 0 {
			if _, again, err := readAnswer(appendAnswer([]byte{1}, &a)); err != nil || !reflect.DeepEqual(again, a) {
				t.Errorf("answer %+v became %+v, %v", a, again, err)
			}
		}
	})
}
