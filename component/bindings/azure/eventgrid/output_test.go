package eventgrid_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid/eventgridtest"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	"github.com/quorate/quorate/internal/fault"
)

func TestOutput_Conformance(t *testing.T) {
	bindingstest.RunOutput(t, bindingstest.Output{
		Open: func(t *testing.T) bindings.Binding { f := newFake(t); return open(t, f, outputMetadata(f)) },
		Hang: func(t *testing.T) (bindings.Binding, <-chan struct{}) {
			arrived := make(chan struct{}, 1)
			topic := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // otherwise net/http does not notice that the client disconnects
				arrived <- struct{}{}
				<-r.Context().Done()
			}))
			t.Cleanup(topic.Close)
			f := newFake(t)
			return open(t, f, with(outputMetadata(f), "topicEndpoint", topic.URL+"/api/events")), arrived
		},
		Request: bindings.Request{Operation: "create", Data: []byte(`{"a":1}`)},
	})
}

func create(t *testing.T, f *eventgridtest.Fake, data string, metadata map[string]string) error {
	t.Helper()
	_, err := open(t, f, outputMetadata(f)).Output.Invoke(t.Context(),
		bindings.Request{Operation: "create", Data: []byte(data), Metadata: metadata})
	return err
}

func TestInvoke_EventsAreUnchanged(t *testing.T) {
	grid := `{"id":"1","subject":"orders/7","eventType":"Order.Placed","eventTime":"2026-01-31T12:00:00Z",` +
		`"dataVersion":"1.0","data":{"n":1.50,"html":"<&>"}}`
	for data, media := range map[string]string{
		grid:                           "application/json",
		"[" + grid + ", " + grid + "]": "application/json",
		event("1"):                     "application/cloudevents+json",
		"[" + event("1") + ", " + event("2") + "]": "application/cloudevents-batch+json",
	} {
		f := newFake(t)
		if err := create(t, f, data, map[string]string{"type": "ignored"}); err != nil {
			t.Fatal(err)
		}
		got := f.Requests("topic")
		if len(got) != 1 || got[0].Body != data || got[0].Header.Get("Content-Type") != media ||
			got[0].Header.Get("Aeg-Sas-Key") != f.AccessKey || got[0].URI != "/topic/api/events" {
			t.Errorf("the topic got %+v", got)
		}
	}
}

// Like Dapr, the binding sends an event without a time unchanged, and does not wrap it in another event. Event Grid
// checks the rest.
func TestInvoke_EventsWithoutTimeAreUnchanged(t *testing.T) {
	for _, data := range []string{`{"id":"1","subject":"s","eventType":"t","data":null}`,
		`[{"id":"1","subject":"s","eventType":"t","data":{"n":1}}]`} {
		f := newFake(t)
		_ = create(t, f, data, nil) // the topic may refuse the event
		if got := f.Requests("topic"); len(got) != 1 || got[0].Body != data ||
			got[0].Header.Get("Content-Type") != "application/json" {
			t.Errorf("the topic got %+v", got)
		}
	}
}

func TestInvoke_WrapsOtherData(t *testing.T) {
	for _, data := range []string{`{"n":1.50,"html":"<&>"}`, `[1,2]`, `[]`, `{"id":"1","subject":"s"}`,
		`{"id":1,"subject":"s","eventType":"t","eventTime":"2026-01-31T12:00:00Z"}`, `"text"`, `7`, `null`} {
		f := newFake(t)
		if err := create(t, f, data, nil); err != nil {
			t.Fatal(err)
		}
		sent := f.Requests("topic")[0].Body
		want := regexp.MustCompile(`^\{"data":` + regexp.QuoteMeta(data) +
			`,"datacontenttype":"application/json",` +
			`"id":"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",` +
			`"source":"orders-grid","specversion":"1\.0","time":"20[^"]+Z","type":"quorate\.binding\.event"\}$`)
		if !want.MatchString(sent) {
			t.Errorf("%s was sent as %s", data, sent)
		}
	}
	f := newFake(t)
	metadata := map[string]string{"id": "1", "source": "/shop", "type": "order.placed", "time": "2026-01-31T12:00:00Z",
		"datacontenttype": "text/plain",
		"subject":         "orders/1", "dataschema": "https://shop.example/schema",
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "other": "x"}
	if err := create(t, f, `"hello"`, metadata); err != nil {
		t.Fatal(err)
	}
	delete(metadata, "other")
	metadata["specversion"], metadata["data"] = "1.0", "hello"
	var got map[string]string
	if err := json.Unmarshal([]byte(f.Requests("topic")[0].Body), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(metadata, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestInvoke_RefusesInvalidEvents(t *testing.T) {
	f := newFake(t)
	for data, want := range map[string]string{
		`{`: "no JSON",
		`{"specversion":"1.0","source":"s","type":"t"}`:          "without id",
		`{"specversion":"1.0","id":"1","source":"","type":"t"}`:  "without source",
		`{"specversion":"1.0","id":1,"source":"s","type":"t"}`:   "data is no CloudEvent",
		`{"specversion":"0.3","id":"1","source":"s","type":"t"}`: "another specversion",
		"[" + event("1") + `,{"n":1}]`:                           "element 1 of data is no CloudEvent",
	} {
		if err := create(t, f, data, nil); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", data, err)
		}
	}
	for name, value := range map[string]string{"time": "yesterday", "datacontenttype": "text/plain"} {
		if err := create(t, f, `{}`, map[string]string{name: value}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s %s: %v", name, value, err)
		}
	}
	if n := len(f.Requests("topic")); n != 0 {
		t.Errorf("%d requests reached the topic", n)
	}
}

func TestInvoke_AnswersOfTopic(t *testing.T) {
	body := `{"error":{"code":"Code","message":"words KEY","details":[]}}`
	for status, code := range map[int]fault.Code{
		200: "", 201: "", 202: "", 204: "", 302: fault.Invalid, 400: fault.Invalid, 401: fault.Denied,
		403: fault.Denied, 404: fault.Invalid,
		413: fault.TooLarge, 500: fault.Indeterminate, 502: fault.Indeterminate, 503: fault.Indeterminate,
		504: fault.Indeterminate,
	} {
		f := newFake(t)
		f.Refuse("topic", "POST", eventgridtest.Refusal{Status: status,
			Body: strings.ReplaceAll(body, "KEY", f.AccessKey)})
		err := create(t, f, `{}`, nil)
		if fault.CodeOf(err) != code || len(f.Requests("topic")) != 1 {
			t.Errorf("%d: %v after %d requests", status, err, len(f.Requests("topic")))
		}
		if err != nil && (!strings.Contains(err.Error(), "Code words ***") ||
			strings.Contains(err.Error(), f.AccessKey)) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestInvoke_HonoursRetryAfter(t *testing.T) {
	f := newFake(t)
	f.Refuse("topic", "POST", eventgridtest.Refusal{Status: 429, RetryAfter: "1"},
		eventgridtest.Refusal{Status: 503, RetryAfter: "0"})
	start := time.Now()
	if err := create(t, f, event("1"), nil); err != nil {
		t.Fatal(err)
	}
	if got := f.Requests("topic"); len(got) != 3 || got[2].Body != event("1") || time.Since(start) < time.Second {
		t.Errorf("%d requests in %v", len(got), time.Since(start))
	}
	for i, after := range []string{"3000", "3601", "9223372036", "9223372037", "99999999999999999999",
		"Fri, 31 Dec 9999 23:59:59 GMT"} {
		f.Refuse("topic", "POST", eventgridtest.Refusal{Status: 429, RetryAfter: after})
		if err := create(t, f, event("1"), nil); !fault.Is(err, fault.Overloaded) || len(f.Requests("topic")) != 4+i {
			t.Errorf("patience %s beyond the request: %v", after, err)
		}
	}
}

func TestInvoke_TopicThatClosesTheConnectionMayHaveTakenTheEvents(t *testing.T) {
	topic := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // closes the connection
	}))
	defer topic.Close()
	f := newFake(t)
	b := open(t, f, with(outputMetadata(f), "topicEndpoint", topic.URL+"/api/events"))
	if _, err := b.Output.Invoke(t.Context(), bindings.Request{Operation: "create", Data: []byte(`{}`)}); !fault.Is(err,
		fault.Indeterminate) {
		t.Errorf("%v", err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestInvoke_UnreachableTopic(t *testing.T) {
	f := newFake(t)
	b := open(t, f, with(outputMetadata(f), "topicEndpoint", "http://127.0.0.1:"+freePort(t)+"/api/events"))
	if _, err := b.Output.Invoke(t.Context(), bindings.Request{Operation: "create", Data: []byte(`{}`)}); !fault.Is(err,
		fault.Unavailable) {
		t.Errorf("%v", err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Output.Invoke(t.Context(), bindings.Request{Operation: "create", Data: []byte(`{}`)}); !fault.Is(err,
		fault.Unavailable) {
		t.Errorf("after the close: %v", err)
	}
}
