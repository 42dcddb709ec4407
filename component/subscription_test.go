package component_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component"
)

func subscription(t *testing.T, version, spec string) (component.Subscription, error) {
	t.Helper()
	text := "apiVersion: dapr.io/" + version + "\nkind: Subscription\nmetadata: {name: orders}\nscopes: [shop]\n" +
		"spec:\n" + spec
	file, err := component.Parse("f.yaml", strings.NewReader(text))
	if err != nil || len(file.Documents) != 1 {
		t.Fatal(file, err)
	}
	return component.ParseSubscription(file.Documents[0])
}

func TestParseSubscription(t *testing.T) {
	v1, err := subscription(t, "v1alpha1", "  pubsubname: messages\n  topic: orders\n  route: /orders\n"+
		"  deadLetterTopic: dead\n  metadata: {rawPayload: true}\n"+
		"  bulkSubscribe: {enabled: true, maxMessagesCount: 5, maxAwaitDurationMs: 10}\n")
	if err != nil {
		t.Fatal(err)
	}
	want := component.Subscription{Name: "orders", Scopes: []string{"shop"}, Pos: v1.Pos, PubSub: "messages",
		Topic: "orders", Default: "/orders", DeadLetter: "dead", Metadata: map[string]string{"rawPayload": "true"},
		Bulk: true, MaxMessages: 5, MaxAwaitMs: 10}
	if diff := cmp.Diff(want, v1); diff != "" {
		t.Error(diff)
	}
	v2, err := subscription(t, "v2alpha1", "  pubsubname: messages\n  topic: orders\n  routes:\n    default: /other\n"+
		"    rules:\n    - match: event.type == \"a\"\n      path: /a\n")
	if err != nil {
		t.Fatal(err)
	}
	want = component.Subscription{Name: "orders", Scopes: []string{"shop"}, Pos: v2.Pos, PubSub: "messages",
		Topic: "orders", Default: "/other",
		Rules: []component.SubscriptionRule{{Match: `event.type == "a"`, Path: "/a"}}}
	if diff := cmp.Diff(want, v2); diff != "" {
		t.Error(diff)
	}
}

func TestParseSubscription_Refuses(t *testing.T) {
	for spec, problem := range map[string]string{
		"  topic: orders\n":                                                      "spec.pubsubname is missing",
		"  pubsubname: messages\n":                                               "spec.topic is missing",
		"  pubsubname: m\n  topic: o\n  rout: /x\n":                              "f.yaml:8",
		"  pubsubname: m\n  topic: o\n  routes: {rules: {a: b}}\n":               "must be a list",
		"  pubsubname: m\n  topic: o\n  metadata: [a]\n":                         "must be a mapping",
		"  pubsubname: m\n  topic: o\n  bulkSubscribe: {maxMessagesCount: -1}\n": "not a number from 0",
	} {
		if _, err := subscription(t, "v1alpha1", spec); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v", spec, err)
		}
	}
}
