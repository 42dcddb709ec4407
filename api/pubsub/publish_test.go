package pubsub_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/api/resiliency"
	broker "github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

// source is a fixed set of components.
type source []*broker.Instance

func (s source) PubSub(name string) (*broker.Instance, bool) {
	for _, i := range s {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

func (s source) PubSubs() []*broker.Instance { return s }

func (s source) Loaded() bool { return true }

// simple is a broker without abilities.
type simple struct{ broker.Broker }

func (simple) Abilities() broker.Abilities { return broker.Abilities{} }

// rig is a service with two components: messages has all abilities, simple has none.
type rig struct {
	*pubsub.Service
	messages broker.Broker
}

func newRig(t *testing.T) *rig {
	t.Helper()
	open := func() broker.Broker {
		b := inmemory.Open(inmemory.Options{})
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	messages := open()
	return &rig{messages: messages, Service: pubsub.New(pubsub.Options{App: api.App{ID: "shop"},
		Source: source{{Name: "messages", Broker: messages}, {Name: "simple", Type: "pubsub.simple",
			Broker: simple{messages}}},
		Now: func() time.Time { return time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC) }})}
}

// stored publishes a message to a topic of its own and returns what the broker has of it.
func (r *rig) stored(t *testing.T, component string, p pubsub.Payload) broker.Delivery {
	t.Helper()
	topic := t.Name()
	err := r.Publish(t.Context(), &pubsub.PublishRequest{PubSub: component, Topic: topic, Payload: p, TraceRaw: true,
		Trace: http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}})
	if err != nil {
		t.Fatal(err)
	}
	return r.receive(t, topic, 1)[0]
}

func (r *rig) receive(t *testing.T, topic string, n int) []broker.Delivery {
	t.Helper()
	s, err := r.messages.Subscribe(t.Context(), broker.SubscribeRequest{Topic: topic, Group: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.Receive(t.Context(), n)
	if err != nil || len(list) != n {
		t.Fatal(list, err)
	}
	return list
}

func decode(t *testing.T, data []byte) (out map[string]any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	if err := decoder.Decode(&out); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return out
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestPublish_Envelope(t *testing.T) {
	for name, c := range map[string]struct {
		component string
		payload   pubsub.Payload
		want      map[string]any // besides the attributes of every event
		absent    []string
	}{
		"text by default": {"messages", pubsub.Payload{Data: []byte(`say "hi" <b>`)},
			map[string]any{"datacontenttype": "text/plain", "data": `say "hi" <b>`}, []string{"expiration", "subject"}},
		"JSON keeps large numbers": {"messages", pubsub.Payload{Data: []byte(`{"n":12345678901234567890}`),
			ContentType: "application/json; charset=utf-8"},
			map[string]any{"datacontenttype": "application/json; charset=utf-8",
				"data": map[string]any{"n": json.Number("12345678901234567890")}}, nil},
		"JSON that is none": {"messages", pubsub.Payload{Data: []byte(`{`), ContentType: "application/json"},
			map[string]any{"data": "{"}, nil},
		"+json is text": {"messages", pubsub.Payload{Data: []byte(`{}`), ContentType: "application/vnd.x+json"},
			map[string]any{"data": "{}"}, nil},
		"bytes": {"messages", pubsub.Payload{Data: []byte{0, 1}, ContentType: "application/octet-stream"},
			map[string]any{"data_base64": "AAE="}, []string{"data"}},
		"overrides": {"messages", pubsub.Payload{Data: []byte("x"), Metadata: map[string]string{"cloudevent.id": "7",
			"cloudevent.source": "s", "cloudevent.type": "t", "cloudevent.subject": "about", "cloudevent.topic": "no",
			"cloudevent.other": "no", "cloudevent.traceid": "a", "cloudevent.traceparent": "b"}},
			map[string]any{"id": "7", "source": "s", "type": "t", "subject": "about", "traceid": "b",
				"traceparent": "b"}, []string{"other"}},
		"TTL without a broker that has it": {"simple", pubsub.Payload{Data: []byte("x"),
			Metadata: map[string]string{"TTLInSeconds": "60"}},
			map[string]any{"expiration": "2030-01-02T03:05:05Z", "pubsubname": "simple"}, nil},
		"TTL that is none": {"simple", pubsub.Payload{Data: []byte("x"), Metadata: map[string]string{"ttl": "soon"}},
			map[string]any{"pubsubname": "simple"}, []string{"expiration"}},
		"CloudEvent": {"messages", pubsub.Payload{ContentType: "application/cloudevents+json; charset=utf-8",
			Data:     []byte(`{"id":"9","source":"mine","extra":{"a":1},"topic":"wrong"}`),
			Metadata: map[string]string{"cloudevent.id": "no"}},
			map[string]any{"id": "9", "source": "mine", "extra": map[string]any{"a": json.Number("1")}},
			[]string{"data", "datacontenttype"}},
		"CloudEvent without id": {"messages", pubsub.Payload{ContentType: "application/cloudevents+json",
			Data: []byte(`{}`)}, map[string]any{"source": "Dapr"}, []string{"id"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := decode(t, newRig(t).stored(t, c.component, c.payload).Data)
			want := map[string]any{"specversion": "1.0", "type": "com.dapr.event.sent", "topic": t.Name(),
				"pubsubname": "messages", "traceid": parent, "traceparent": parent, "tracestate": "",
				"time": "2030-01-02T03:04:05Z"}
			for attribute, value := range c.want {
				want[attribute] = value
			}
			for attribute, value := range want {
				if diff := cmp.Diff(value, got[attribute]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", attribute, diff)
				}
			}
			for _, attribute := range c.absent {
				if value, present := got[attribute]; present {
					t.Errorf("%s is %v", attribute, value)
				}
			}
			if c.payload.ContentType == "" && (got["source"] != "shop" || got["id"] == "") && c.want["id"] == nil {
				t.Errorf("source %v, id %v", got["source"], got["id"])
			}
		})
	}
}

func TestPublish_Message(t *testing.T) {
	r := newRig(t)
	d := r.stored(t, "messages", pubsub.Payload{Data: []byte("x"), Metadata: map[string]string{
		"cloudevent.id": "7", "partitionKey": "k", "ttlInSeconds": "90", "color": "red"}})
	if d.ID != "7" || d.Key != "k" || d.TTL != 90*time.Second || d.Metadata["color"] != "red" ||
		d.ContentType != "application/cloudevents+json" {
		t.Errorf("stored %+v", d.Message)
	}
}

func TestPublish_RawKeepsBytes(t *testing.T) {
	d := newRig(t).stored(t, "messages", pubsub.Payload{Data: []byte{0xff, 0}, ContentType: "image/png",
		Metadata: map[string]string{"rawPayload": "true"}})
	if string(d.Data) != "\xff\x00" || d.ID != "" || d.ContentType != "image/png" || d.Metadata["traceid"] != parent {
		t.Errorf("stored %+v", d.Message)
	}
}

func TestPublish_Delay(t *testing.T) {
	r := newRig(t)
	publish := func(component string, metadata map[string]string) error {
		return r.Publish(t.Context(), &pubsub.PublishRequest{PubSub: component, Topic: "later",
			Payload: pubsub.Payload{Data: []byte("x"), Metadata: metadata}})
	}
	for _, metadata := range []map[string]string{{"delayInSeconds": "3600"},
		{"deliverAt": "2099-01-02T03:04:05+02:00"}} {
		if err := publish("messages", metadata); err != nil {
			t.Error(err)
		}
		var e *api.Error
		if err := publish("simple", metadata); !errors.As(err, &e) || e.Code != api.CodePubSubMetadata {
			t.Errorf("a broker without delays took %v: %v", metadata, err)
		}
	}
	for _, metadata := range []map[string]string{{"delayInSeconds": "-1"}, {"deliverAt": "tomorrow"},
		{"delayInSeconds": "99999999999999"}, {"deliverAt": "9999-01-02T03:04:05Z"}} {
		if err := publish("messages", metadata); err == nil {
			t.Errorf("%v was accepted", metadata)
		}
	}
}

func TestPublishBulk_NamesTheEntryThatIsWrong(t *testing.T) {
	r := newRig(t)
	request := &pubsub.BulkRequest{PubSub: "messages", Topic: "t"}
	for second, want := range map[string]string{
		`,{"entryId":"2","event":"b"}]`: "entry 1: contentType is missing: set it, such as application/json",
		`,{"event":"b","contentType":"text/plain"}]`: "entryId is duplicated or not present for entry 1: " +
			"give each entry an entryId of its own",
	} {
		err := r.PublishBulk(t.Context(), request, func() ([]pubsub.Entry, *api.Error) {
			var list []pubsub.EntryJSON
			body := `[{"entryId":"1","event":"a","contentType":"text/plain"}` + second
			if err := json.Unmarshal([]byte(body), &list); err != nil {
				t.Fatal(err)
			}
			return r.EntriesOf(request, list)
		})
		var e *api.Error
		if !errors.As(err, &e) || e.Kind != api.Malformed ||
			!slices.Contains(e.Details.Metadata, api.Attribute{Name: "error", Value: want}) {
			t.Errorf("%s: the error is %v, want %s", second, err, want)
		}
	}
}

func TestPublishBulk_KeepsOrderAndFillsMetadata(t *testing.T) {
	r := newRig(t)
	request := &pubsub.BulkRequest{PubSub: "messages", Topic: "bulk",
		Metadata: map[string]string{"partitionKey": "k", "color": "red"}}
	err := r.PublishBulk(t.Context(), request, func() ([]pubsub.Entry, *api.Error) {
		return []pubsub.Entry{{ID: "1", Payload: pubsub.Payload{Data: []byte("a")}},
			{ID: "2", Payload: pubsub.Payload{Data: []byte("b"), Metadata: map[string]string{"color": "blue"}}}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	list := r.receive(t, "bulk", 2)
	if decode(t, list[0].Data)["data"] != "a" || list[0].Metadata["color"] != "red" ||
		decode(t, list[1].Data)["data"] != "b" || list[1].Metadata["color"] != "blue" || list[1].Key != "k" {
		t.Errorf("stored %+v", list)
	}
}

func TestPublish_BoundsMetadata(t *testing.T) {
	r := newRig(t)
	many := map[string]string{}
	for i := range 200 {
		many[strings.Repeat("x", i+1)] = ""
	}
	for name, metadata := range map[string]map[string]string{"pairs": many,
		"bytes": {"a": strings.Repeat("x", 100_000)}} {
		err := r.Publish(context.Background(), &pubsub.PublishRequest{PubSub: "messages", Topic: "t",
			Payload: pubsub.Payload{Metadata: metadata}})
		if err == nil {
			t.Errorf("too many %s were accepted", name)
		}
	}
}

// PublishBulk bounds the metadata of all entries together. Each entry gets the metadata of the request, so a small
// request could otherwise take much memory.
func TestPublishBulk_BoundsFilledMetadata(t *testing.T) {
	r := newRig(t)
	metadata := map[string]string{}
	for i := range 100 {
		metadata[strconv.Itoa(i)] = ""
	}
	err := r.PublishBulk(t.Context(), &pubsub.BulkRequest{PubSub: "messages", Topic: "t", Metadata: metadata},
		func() ([]pubsub.Entry, *api.Error) {
			out := make([]pubsub.Entry, 1001)
			for i := range out {
				out[i] = pubsub.Entry{ID: strconv.Itoa(i)}
			}
			return out, nil
		})
	if err == nil || !strings.Contains(err.Error(), "100100 pairs") {
		t.Error(err)
	}
}

// failing is a broker that fails with one error after the other.
type failing struct {
	broker.Broker
	errs []error
}

func (f *failing) Publish(context.Context, broker.PublishRequest) ([]broker.Failure, error) {
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, err
}

func TestPublish_KeepsTheUnknownOutcomeOfAnEarlierAttempt(t *testing.T) {
	r := newRig(t)
	policy := &resiliency.Policy{Retry: &resiliency.Retry{Pause: time.Nanosecond, Max: 1}}
	errs := []error{fault.New(fault.Indeterminate, "test", "no answer"), fault.New(fault.Unavailable, "test", "down")}
	s := pubsub.New(pubsub.Options{App: api.App{ID: "shop"}, Now: time.Now,
		Source: source{{Name: "messages", Broker: &failing{r.messages, errs}}},
		Policy: func(string) *resiliency.Policy { return policy }})
	err := s.Publish(t.Context(), &pubsub.PublishRequest{PubSub: "messages", Topic: "t"})
	e, ok := errors.AsType[*api.Error](err)
	if !ok || !fault.Is(e.Cause, fault.Indeterminate) || !strings.Contains(e.Message, "may have been executed") {
		t.Error(err)
	}
}

// partly is a broker that first gives no answer, and then refuses the first message of a request.
type partly struct {
	broker.Broker
	asked bool
}

func (p *partly) Publish(context.Context, broker.PublishRequest) ([]broker.Failure, error) {
	if !p.asked {
		p.asked = true
		return nil, fault.New(fault.Indeterminate, "test", "no answer")
	}
	return []broker.Failure{{Err: fault.New(fault.Unavailable, "test", "refused")}}, nil
}

func TestPublish_KeepsTheUnknownOutcomeOfOneOfSeveralMessages(t *testing.T) {
	r := newRig(t)
	policy := &resiliency.Policy{Retry: &resiliency.Retry{Pause: time.Nanosecond, Max: 1}}
	s := pubsub.New(pubsub.Options{App: api.App{ID: "shop"}, Now: time.Now,
		Source: source{{Name: "messages", Broker: &partly{Broker: r.messages}}},
		Policy: func(string) *resiliency.Policy { return policy }})
	err := s.PublishBulk(t.Context(), &pubsub.BulkRequest{PubSub: "messages", Topic: "t"},
		func() ([]pubsub.Entry, *api.Error) {
			return []pubsub.Entry{{ID: "1", Payload: pubsub.Payload{Data: []byte("a"), ContentType: "text/plain"}},
				{ID: "2", Payload: pubsub.Payload{Data: []byte("b"), ContentType: "text/plain"}}}, nil
		})
	e, ok := errors.AsType[*pubsub.Partial](err)
	if !ok || len(e.Entries) != 1 || !strings.Contains(e.Entries[0].Error, "may have published") {
		t.Errorf("%v: %+v", err, e)
	}
}
