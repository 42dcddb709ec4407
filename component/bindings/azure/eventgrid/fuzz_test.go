package eventgrid_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid"
	"github.com/quorate/quorate/internal/fault"
)

// isEvent reports whether a document has the required attributes of a CloudEvent.
func isEvent(data []byte) bool {
	var e struct{ SpecVersion, ID, Source, Type string }
	return json.Unmarshal(data, &e) == nil && e.SpecVersion == "1.0" && e.ID != "" && e.Source != "" && e.Type != ""
}

func FuzzEvents(f *testing.F) {
	for _, media := range []string{"application/cloudevents+json", "application/cloudevents-batch+json",
		"application/json", "text/plain; charset=x", ""} {
		for _, body := range []string{event("1"), "[" + event("1") + "," + event("2") + "]", "[]", "{}", "null",
			`{"a":`, "\xff"} {
			f.Add(media, "", body)
			f.Add(media, "%20%ff", body)
		}
	}
	f.Fuzz(func(t *testing.T, media, id, body string) {
		h := http.Header{"Content-Type": {media}}
		if id != "" {
			h["Ce-Specversion"], h["Ce-Id"], h["Ce-Source"], h["Ce-Type"] =
				[]string{"1.0"}, []string{id}, []string{"s"}, []string{"t"}
		}
		all, err := eventgrid.Events(h, []byte(body))
		if err != nil {
			if !fault.Is(err, fault.Invalid) || all != nil {
				t.Fatal(all, err)
			}
			return
		}
		for _, e := range all {
			if !isEvent(e) {
				t.Fatalf("%q is no event", e)
			}
		}
		_, _ = eventgrid.ValidationCode([]byte(body))
	})
}

func FuzzEnvelope(f *testing.F) {
	for _, data := range []string{event("1"), "[" + event("1") + "]", "[1]", "{}", `"x"`, "", " null ",
		`{"specversion":1}`, "[{\"specversion\":\"1.0\"}]"} {
		f.Add(data, "", "")
		f.Add(data, "text/plain", "a<&>\xff")
	}
	f.Fuzz(func(t *testing.T, data, content, id string) {
		body, media, err := eventgrid.Envelope(bindings.Request{Operation: "create", Data: []byte(data),
			Metadata: map[string]string{"datacontenttype": content, "id": id}})
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		all := []json.RawMessage{body}
		if media == "application/cloudevents-batch+json" {
			if err := json.Unmarshal(body, &all); err != nil || len(all) == 0 {
				t.Fatalf("%q: %v", body, err)
			}
		}
		for _, e := range all {
			if !isEvent(e) {
				t.Fatalf("%q was made %q", data, e)
			}
		}
	})
}

func FuzzWanted(f *testing.F) {
	for _, existing := range []string{"", "null", "{}",
		`{"id":"x","properties":{"filter":{"a":1.50},"destination":{"endpointType":"WebHook",` +
			`"properties":{"endpointBaseUrl":"b"}}}}`, `{"properties":[]}`, `{"properties":{"destination":3}}`} {
		f.Add(existing)
	}
	f.Fuzz(func(t *testing.T, existing string) {
		document, err := eventgrid.Wanted("https://shop.example", []byte(existing))
		if err != nil {
			return
		}
		var got struct {
			Properties map[string]json.RawMessage `json:"properties"`
		}
		if err := json.Unmarshal(document, &got); err != nil ||
			!strings.Contains(string(got.Properties["destination"]),
				`"endpointUrl":"https://shop.example/api/events"`) {
			t.Fatalf("%q became %q: %v", existing, document, err)
		}
	})
}

func FuzzParseScope(f *testing.F) {
	for _, scope := range []string{topicScope, "/subscriptions/a/", "/subscriptions/a/resourceGroups/..",
		"/subscriptions/%2e%2e", "//", "/subscriptions/a?b"} {
		f.Add(scope)
	}
	f.Fuzz(func(t *testing.T, text string) {
		scope, err := eventgrid.ParseScope(text)
		if err != nil {
			return
		}
		u, err := url.Parse("https://management.example" + scope + "/providers")
		if err != nil || u.Host != "management.example" || u.RawQuery != "" || u.Fragment != "" ||
			strings.Contains(u.Path, "/../") || u.JoinPath().Path != u.Path || strings.HasSuffix(scope, "/") {
			t.Fatalf("%q became %q: %v", text, scope, u)
		}
	})
}
