package state_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func TestParseConsistencyAndConcurrency(t *testing.T) {
	for text, want := range map[string]state.Consistency{"": state.DefaultConsistency, "eventual": state.Eventual,
		"strong": state.Strong} {
		got, err := state.ParseConsistency(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("ParseConsistency(%q) = %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]state.Concurrency{"": state.LastWrite, "last-write": state.LastWrite,
		"first-write": state.FirstWrite} {
		if got, err := state.ParseConcurrency(text); err != nil || got != want {
			t.Errorf("ParseConcurrency(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"Strong", "strong ", "quorum", "first_write", "FIRST-WRITE", "last"} {
		if got, err := state.ParseConsistency(text); !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseConsistency(%q) = %v, %v", text, got, err)
		}
		if got, err := state.ParseConcurrency(text); !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseConcurrency(%q) = %v, %v", text, got, err)
		}
	}
	if state.DefaultConsistency >= state.Eventual || state.Eventual >= state.Strong {
		t.Error("the levels must be ordered by strictness")
	}
}

func TestParseTTL(t *testing.T) {
	never := state.TTL{Set: true}
	at := time.Date(2030, 1, 2, 3, 4, 5, 600e6, time.UTC)
	last := time.Unix(state.LastExpiry, 0).UTC()
	for _, c := range []struct {
		metadata map[string]string
		want     state.TTL
	}{
		{nil, state.TTL{}}, {map[string]string{"other": "1"}, state.TTL{}}, {map[string]string{"ttlInSeconds": ""},
			state.TTL{}},
		{map[string]string{"ttlInSeconds": "1"}, state.TTL{Set: true, Seconds: 1}},
		{map[string]string{"TTLinSECONDS": "060"}, state.TTL{Set: true, Seconds: 60}},
		{map[string]string{"ttlInSeconds": "2147483647"}, state.TTL{Set: true, Seconds: math.MaxInt32}},
		{map[string]string{"ttlInSeconds": "0"}, never}, {map[string]string{"ttlInSeconds": "-1"},
			never}, {map[string]string{"ttlInSeconds": "-0"}, never},
		{map[string]string{"ttlExpireTime": "2030-01-02T03:04:05.6Z"}, state.TTL{Set: true, At: &at}},
		{map[string]string{"ttlexpiretime": "2030-01-02T05:04:05.600+02:00", "ttlInSeconds": ""},
			state.TTL{Set: true, At: &at}},
		{map[string]string{"ttlExpireTime": "0001-01-01T00:00:00Z"}, state.TTL{Set: true, At: &time.Time{}}},
		{map[string]string{"ttlExpireTime": "9999-12-31T23:59:59-01:00"}, state.TTL{Set: true, At: &last}},
	} {
		got, err := state.ParseTTL(c.metadata)
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("ParseTTL(%v): %v (-want +got)\n%s", c.metadata, err, diff)
		}
	}
	for _, metadata := range []map[string]string{
		{"ttlInSeconds": "-2"}, {"ttlInSeconds": "2147483648"}, {"ttlInSeconds": "99999999999999999999"},
		{"ttlInSeconds": "1.5"},
		{"ttlInSeconds": "1s"},
		{"ttlInSeconds": " 1"}, {"ttlInSeconds": "+1"}, {"ttlInSeconds": "0x10"}, {"ttlInSeconds": "1_000"},
		{"ttlInSeconds": "forever"},
		{"ttlExpireTime": "tomorrow"}, {"ttlExpireTime": "2030-01-02"}, {"ttlExpireTime": "2030-01-02T03:04:05"},
		{"ttlExpireTime": "1893553445"},
		{"ttlInSeconds": "1", "ttlExpireTime": "2030-01-02T03:04:05Z"}, {"ttlInSeconds": "1",
			"TTLINSECONDS": "2"}, {"ttlExpireTime": "", "ttlexpiretime": ""},
	} {
		if got, err := state.ParseTTL(metadata); !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseTTL(%v) = %+v, %v", metadata, got, err)
		}
	}
}

func TestExpirySecond_RoundsUp(t *testing.T) {
	last := time.Unix(state.LastExpiry, 0)
	for at, want := range map[time.Time]string{
		time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC):                                "2030-01-02T03:04:05Z",
		time.Date(2030, 1, 2, 3, 4, 5, 1, time.FixedZone("east", 3600)):            "2030-01-02T02:04:06Z",
		time.Date(2030, 1, 2, 3, 4, 5, 999999999, time.FixedZone("west", -1*3600)): "2030-01-02T04:04:06Z",
		last: "9999-12-31T23:59:59Z", last.Add(time.Millisecond): "9999-12-31T23:59:59Z",
	} {
		if got := state.ExpirySecond(at).Format(time.RFC3339Nano); got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
	if !state.ExpirySecond(time.Time{}).IsZero() {
		t.Error("the zero time, which means never, was rounded")
	}
}

func FuzzParseTTL(f *testing.F) {
	for _, text := range []string{"", "0", "-1", "1", "2147483648", "2030-01-02T03:04:05Z", "0000-01-01T00:00:00+23:59",
		"9999-12-31T23:59:60Z"} {
		f.Add(text, "")
		f.Add("", text)
	}
	f.Fuzz(func(t *testing.T, seconds, at string) {
		ttl, err := state.ParseTTL(map[string]string{"ttlInSeconds": seconds, "ttlExpireTime": at})
		switch {
		case err != nil && (!fault.Is(err, fault.Invalid) || ttl != state.TTL{}):
			t.Fatalf("%+v, %v", ttl, err)
		case err == nil && (ttl.Seconds < 0 || ttl.Seconds > math.MaxInt32 || ttl.Seconds != 0 && ttl.At != nil):
			t.Fatalf("out of range: %+v", ttl)
		case err == nil && ttl.Set != (seconds != "" || at != ""):
			t.Fatalf("Set is %v", ttl.Set)
		}
	})
}

func TestParseContentType_OnlyOctetStreamMatters(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "application/octet-stream": state.OctetStream,
		"Application/Octet-Stream; charset=binary": state.OctetStream,
		"application/json":                         "", "text/plain": "", "nonsense": "",
		"application/octet-stream2": "",
	} {
		if got, err := state.ParseContentType(map[string]string{"CONTENTTYPE": text}); err != nil || got != want {
			t.Errorf("contentType %q = %q, %v; want %q", text, got, err, want)
		}
	}
	if got, err := state.ParseContentType(map[string]string{"contentType": "a/b", "contenttype": "a/b"}); !fault.Is(err,
		fault.Invalid) {
		t.Errorf("two spellings = %q, %v", got, err)
	}
}

func TestDecodeBinary(t *testing.T) {
	for text, want := range map[string]string{`""`: "", `"AP/+"`: "\x00\xff\xfe", `"AA=="`: "\x00", `"AA"`: "\x00",
		`"\u0041A=="`: "\x00"} {
		if got, err := state.DecodeBinary([]byte(text)); err != nil || string(got) != want {
			t.Errorf("DecodeBinary(%s) = %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "null", "1", "{}", `["AA=="]`, `"A"`, `"AA-_"`, `"*"`, `"AA==`, `AA==`,
		`"AA==" x`, `"=AA"`} {
		if got, err := state.DecodeBinary([]byte(text)); !fault.Is(err, fault.Invalid) {
			t.Errorf("DecodeBinary(%s) = %q, %v", text, got, err)
		}
	}
}

func FuzzDecodeBinary(f *testing.F) {
	f.Add([]byte(`"AAEC"`))
	f.Add([]byte(`"AA="`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := state.DecodeBinary(data); err != nil && (!fault.Is(err, fault.Invalid) || got != nil) {
			t.Fatalf("%q, %v", got, err)
		}
		quoted, err := json.Marshal(base64.StdEncoding.EncodeToString(data))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := state.DecodeBinary(quoted); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%x came back as %x, %v", data, got, err)
		}
	})
}
