package http_test

import (
	"maps"
	"strconv"
	"testing"

	"github.com/quorate/quorate/api/apitest"
)

// Spans have the names and attributes of Dapr, so that dashboards and searches for Dapr work.
func TestSpans_HaveNamesAndAttributesOfDapr(t *testing.T) {
	spans := &apitest.Spans{}
	f := newFixture(t)
	f.config.Tracer = spans
	base := f.serve(t)
	store := func(system, name, statement string) map[string]string {
		return map[string]string{"db.system": system, "db.connection_string": system, "db.name": name,
			"db.statement": statement}
	}
	actor := map[string]string{"dapr.actor": "T.1"}
	for _, c := range []struct {
		verb, path, name string
		more             map[string]string
	}{
		{"GET", "/v1.0/state/orders/a/b", "/v1.0/state/orders/a/b",
			store("state", "orders", "GET /v1.0/state/orders/a/b")},
		{"POST", "/v1.0/state/orders", "/v1.0/state/orders", store("state", "orders", "POST /v1.0/state/orders")},
		{"GET", "/v1.0/secrets/vault/x", "/v1.0/secrets/vault/x",
			store("secrets", "vault", "GET /v1.0/secrets/vault/x")},
		{"GET", "/v1.0/configuration/items", "/v1.0/configuration/items", nil},
		{"GET", "/v1.0/jobs/j", "/v1.0/jobs/j", nil},
		{"GET", "/v1.0-alpha1/jobs/j", "/v1.0-alpha1/jobs/j", nil},
		{"POST", "/v1.0/actors/T/1/reminders/r", "RegisterActorReminder/T", actor},
		{"GET", "/v1.0/actors/T/1/reminders/r", "GetActorReminder/T", actor},
		{"DELETE", "/v1.0/actors/T/1/reminders/r", "UnregisterActorReminder/T", actor},
		{"POST", "/v1.0/actors/T/1/timers/r", "RegisterActorTimer/T", actor},
		{"DELETE", "/v1.0/actors/T/1/timers/r", "UnregisterActorTimer/T", actor},
		{"GET", "/v1.0/actors/T/1/state/k", "/v1.0/actors/T/1/state/k", func() map[string]string {
			all := store("state", "actor", "GET /v1.0/actors/T/1/state/k")
			maps.Copy(all, actor)
			return all
		}()},
		{"PUT", "/v1.0/actors/T/1/method/m", "CallActor/T/m", map[string]string{"dapr.actor": "T.1",
			"rpc.service": "ServiceInvocation", "net.peer.name": "T.1"}},
		{"GET", "/v1.0/healthz", "", nil},
		{"GET", "/v1.0/metadata", "", nil},
		{"POST", "/v1.0/bindings/out", "", nil}, // api.Bindings starts the span
	} {
		status, _, _ := do(t, c.verb, base+c.path, "[]")
		list := spans.Take()
		if c.name == "" {
			if len(list) > 0 {
				t.Errorf("%s %s: %+v", c.verb, c.path, list[0])
			}
			continue
		}
		want := map[string]string{"dapr.protocol": "http", "dapr.api": c.verb + " " + c.path,
			"dapr.status_code": strconv.Itoa(status)}
		maps.Copy(want, c.more)
		if len(list) != 1 || list[0].Name != c.name || !list[0].Ended || list[0].Status != status ||
			!maps.Equal(list[0].Attributes, want) {
			t.Errorf("%s %s is %d: %+v, want %s %v", c.verb, c.path, status, list, c.name, want)
		}
	}
}
