package pubsub

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/pubsub"
)

// A token of a delivery comes from its broker, never from the publisher of the message.
func TestBatchEntry_PublisherSetsNoToken(t *testing.T) {
	for _, token := range []string{"", "real"} {
		e := BatchEntry{Event: &Event{Token: token, Metadata: map[string]string{api.MetadataAck: "forged", "a": "b"}}}
		if m := e.metadata(); m[api.MetadataAck] != token || m["a"] != "b" {
			t.Errorf("token %q: the metadata are %v", token, m)
		}
	}
}

// The gRPC message omits attributes that are nested so deeply that gRPC clients could not read the message.
func TestEvent_LeavesDeepAttributesOut(t *testing.T) {
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	data := `{"id":"1","specversion":"1.0","text":"[[{{\\\"[[[[[[[[[[[[[[[[[[[[","flat":[1,{"a":[]},[],[]],"most":` +
		nested(maxLevels) + `,"more":` + nested(maxLevels+1) + `,"deep":` + nested(3000) + `}`
	if !json.Valid([]byte(data)) {
		t.Fatal("the event is not valid")
	}
	s := &Subscription{}
	e, err := s.eventOf(&pubsub.Delivery{Message: pubsub.Message{Data: []byte(data)}})
	if err != nil {
		t.Fatal(err)
	}
	fields := e.Proto().GetExtensions().GetFields()
	for name, want := range map[string]bool{"text": true, "flat": true, "most": true, "more": false, "deep": false} {
		if got := fields[name] != nil; got != want {
			t.Errorf("the attribute %s is in the message: %v, want %v", name, got, want)
		}
	}
}

// As in Dapr, rules of a raw bulk subscription see the payload as a string. Other rules see a CloudEvent.
func TestSubscription_RulesOfRawMessages(t *testing.T) {
	for _, one := range []struct {
		match string
		bulk  bool
		want  bool
	}{
		{`event.contains("gold")`, true, true},
		{`event.contains("silver")`, true, false},
		{`event.topic == "orders"`, false, true},
	} {
		s, err := Definition{PubSub: "m", Topic: "orders", Metadata: map[string]string{"rawPayload": "true"},
			Rules: []RuleDefinition{{one.match, "/gold"}}, Bulk: BulkDefinition{Enabled: one.bulk}}.Check()
		if err != nil {
			t.Fatal(err)
		}
		e, err := s.eventOf(&pubsub.Delivery{Message: pubsub.Message{Data: []byte("a gold ring")}})
		if err != nil {
			t.Fatal(err)
		}
		if _, found, err := s.route(t.Context(), e); found != one.want || err != nil {
			t.Errorf("%s: %v, %v, want %v", one.match, found, err, one.want)
		}
	}
}

func TestEvent_TraceIsValid(t *testing.T) {
	const valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, one := range []struct{ parent, id, state, want, wantState string }{
		{valid, "", "a=b", valid, "a=b"},
		{"", valid, "a=b", valid, "a=b"},
		{"other", valid, "a=b", valid, "a=b"},
		{"", "", "a=b", noParent, ""},
		{noParent, "", "a=b", noParent, ""},
		{"other", "", "a=b", noParent, ""},
		{valid + "\n", "", "", noParent, ""},
		{valid[:53] + "\n1", "", "", noParent, ""},
		{valid[:36] + strings.Repeat("\u00e9", 8) + valid[52:], "", "", noParent, ""},
	} {
		e := &Event{fields: attributes{}}
		e.fields.set("traceparent", one.parent)
		e.fields.set("traceid", one.id)
		e.fields.set("tracestate", one.state)
		if parent, state := e.Trace(); parent != one.want || state != one.wantState {
			t.Errorf("%+v: %q, %q", one, parent, state)
		}
	}
}
