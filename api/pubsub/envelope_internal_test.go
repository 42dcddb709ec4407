package pubsub

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/pubsub"
)

// encoded returns v as JSON in the form of encoding/json, without escapes for HTML.
func encoded(t testing.TB, v any) string {
	t.Helper()
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func TestQuote_IsThatOfTheStandardLibrary(t *testing.T) {
	for _, text := range []string{"", "plain text, 1", `a "quote"`, `\`, "<&>", "\x7f", "\x1f\n", "ä", "\u2028",
		"\xff"} {
		if got, want := string(quote(text)), encoded(t, text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestAttributes_AreEncodedAsByTheStandardLibrary(t *testing.T) {
	for _, a := range []attributes{{}, {"c": []byte(` "x" `), "b": quote("<1>"), "ä\"": []byte("1"),
		"a": []byte(" { \"x\" : [ 1 , \"\u2028 &\" ] } ")}} {
		got, err := a.json()
		if want := encoded(t, a); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
	for _, value := range []string{"", "{", "1 2"} {
		if got, err := (attributes{"a": []byte(value)}).json(); err == nil {
			t.Errorf("%q is accepted: %s", value, got)
		}
	}
}

func TestAttributes_TextIsDecodedAsByTheStandardLibrary(t *testing.T) {
	for _, value := range []string{"", `""`, `"plain"`, `"ä"`, `"\u00e4\n"`, `"\\"`, "\"\xff\"", ` "x" `, `1`, `null`,
		`{}`, `"`} {
		want := ""
		_ = json.Unmarshal([]byte(value), &want) // an error leaves want empty
		if got := (attributes{"a": []byte(value)}).text("a"); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}

// The attribute expiration has whole seconds. A message must not expire before the end of its time to live.
func TestEnvelope_ExpiresNotTooEarly(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	for _, after := range []time.Duration{0, 1, time.Second / 2, time.Second - 1} {
		now := time.Unix(1, int64(after))
		e := envelope{topic: "orders", pubsub: "pubsub", source: "shop", now: now, trace: &trace{}, ttl: ttl}
		for _, p := range []Payload{{Data: []byte("x")}, {Data: []byte(`{"id":"1"}`), ContentType: contentCloudEvent}} {
			data, _, err := e.wrap(&p)
			if err != nil {
				t.Fatal(err)
			}
			event, err := new(Subscription).eventOf(&pubsub.Delivery{Message: pubsub.Message{Data: data}})
			if err != nil {
				t.Fatal(err)
			}
			if end := now.Add(ttl); event.expired(end) || !event.expired(end.Add(time.Second)) {
				t.Errorf("published at %v, the message has the end %s", now, event.fields.text("expiration"))
			}
		}
	}
}

func BenchmarkWrap(b *testing.B) {
	e := envelope{topic: "orders", pubsub: "pubsub", source: "shop", now: time.Unix(1, 0),
		trace: &trace{parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	p := Payload{ContentType: contentJSON, Data: quote(strings.Repeat("v", 254))}
	for b.Loop() {
		if _, _, err := e.wrap(&p); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTTL_IsBoundedAndIgnoredIfUnreadable(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "5m": 5 * time.Minute,
		"3153600001": maxTTL, "9223372036854775807": maxTTL, "99999999999999999999": maxTTL, "2000000h": maxTTL,
		"0": 0, "-1": 0, "-99999999999999999999": 0, "soon": 0, "": 0,
	} {
		if got := ttlOf(map[string]string{"ttlInSeconds": text}); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// A map has no order, so every case is repeated.
func TestTTL_HasOneOfSeveralNames(t *testing.T) {
	for want, metadata := range map[time.Duration]map[string]string{
		1: {"ttlInSeconds": "1", "TTLInSeconds": "9", "ttl": "9", "TTL": "9"},
		2: {"ttlinseconds": "9", "TTLInSeconds": "2", "ttl": "9", "color": "9"},
		3: {"ttl": "3", "TTL": "9", "Ttl": "9"},
		4: {"TTL": "4", "Ttl": "9", "tTL": "9"},
		5: {"ttlInSeconds": "soon", "TTLInSeconds": "0", "ttl": "5"},
	} {
		for range 100 {
			if got := ttlOf(metadata); got != want*time.Second {
				t.Fatalf("%v: %v, want %v", metadata, got, want*time.Second)
			}
		}
	}
}

func TestFill_TimesToLiveAreOneSetting(t *testing.T) {
	request := map[string]string{"ttlInSeconds": "60", "TTL": "60", "color": "red"}
	for name, want := range map[string]map[string]string{
		"ttl":          {"ttl": "5", "color": "red"},
		"TTLINSECONDS": {"TTLINSECONDS": "5", "color": "red"},
		"size":         {"ttlInSeconds": "60", "TTL": "60", "color": "red", "size": "5"},
	} {
		if diff := cmp.Diff(want, fill(map[string]string{name: "5"}, request)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
