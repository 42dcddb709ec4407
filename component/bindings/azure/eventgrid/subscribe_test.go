package eventgrid_test

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/bindings/azure/eventgrid"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid/eventgridtest"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// requested returns the requests to a part of the fake as "METHOD uri". An empty method means all methods.
func requested(f *eventgridtest.Fake, part, method string) []string {
	var out []string
	for _, r := range f.Requests(part) {
		if method == "" || r.Method == method {
			out = append(out, r.Method+" "+r.URI)
		}
	}
	return out
}

const subscriptionURI = topicScope +
	"/providers/Microsoft.EventGrid/eventSubscriptions/ordersgrid?api-version=2022-06-15"

func TestStart_RequestMatchesReference(t *testing.T) {
	r := receive(t)
	want := []string{"GET " + subscriptionURI, "PUT " + subscriptionURI,
		"GET /subscriptions/" + subscriptionID +
			"/providers/Microsoft.EventGrid/locations/westeurope/operationsStatus/op1?api-version=2022-06-15", "GET " +
			subscriptionURI}
	if diff := cmp.Diff(want, requested(r.fake, "management", "")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var got any
	for _, q := range r.fake.Requests("management") {
		if q.Method == "PUT" {
			if err := json.Unmarshal([]byte(q.Body), &got); err != nil ||
				q.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%v %s", err, q.Header.Get("Content-Type"))
			}
		}
	}
	wanted := map[string]any{"properties": map[string]any{
		"destination": map[string]any{"endpointType": "WebHook", "properties": map[string]any{
			"endpointUrl": r.endpoint, "azureActiveDirectoryTenantId": r.fake.Tenant,
			"azureActiveDirectoryApplicationIdOrUri": r.fake.Client,
		}},
		"eventDeliverySchema": "CloudEventSchemaV1_0",
	}}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	identity := requested(r.fake, "identity", "")
	for _, uri := range []string{"GET /" + r.fake.Tenant + "/v2.0/.well-known/openid-configuration", "GET /" +
		r.fake.Tenant + "/discovery/v2.0/keys", "POST /" + r.fake.Tenant + "/oauth2/v2.0/token"} {
		if !strings.Contains(strings.Join(identity, "\n")+"\n", uri+"\n") {
			t.Errorf("%s was not requested: %v", uri, identity)
		}
	}
}

func TestStart_RestartCreatesNoSecondSubscription(t *testing.T) {
	f := newFake(t)
	port := freePort(t)
	f.Lead("127.0.0.1:" + port)
	for range 2 {
		b := open(t, f, inputMetadata(f, port))
		if err := b.Input.Start(t.Context(), bindingstest.NewSink()); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if puts := requested(f, "management", "PUT"); len(puts) != 1 {
		t.Errorf("requested %v", puts)
	}
}

// patient grants a claim only when all nodes listen, because the handshake may reach any of them.
type patient struct {
	*claims
	nodes []string
}

func (p patient) Claim(ctx context.Context, key string, life time.Duration) (bool, error) {
	for _, node := range p.nodes {
		for {
			c, err := net.Dial("tcp", node)
			if err == nil {
				_ = c.Close()
				break
			}
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	return p.claims.Claim(ctx, key, life)
}

func TestStart_ThreeNodesCreateOneSubscription(t *testing.T) {
	f := newFake(t, func(c *eventgridtest.Config) { c.Polls = 5 })
	shared := patient{claims: &claims{}}
	var ports []string
	for range 3 {
		ports = append(ports, freePort(t))
		shared.nodes = append(shared.nodes, "127.0.0.1:"+ports[len(ports)-1])
	}
	f.Lead(shared.nodes...)
	sinks := make([]*bindingstest.Sink, 3)
	var nodes sync.WaitGroup
	for i := range sinks {
		sinks[i] = bindingstest.NewSink()
		b := open(t, f, inputMetadata(f, ports[i]), func(o *eventgrid.Options) { o.Claims = shared })
		nodes.Go(func() {
			if err := b.Input.Start(t.Context(), sinks[i]); err != nil {
				t.Error(err)
			}
		})
	}
	nodes.Wait()
	if puts := requested(f, "management", "PUT"); len(puts) != 1 {
		t.Errorf("requested %v", puts)
	}
	for _, id := range []string{"1", "2", "3"} {
		o, err := f.Deliver(t.Context(), f.Ingress+"/api/events", rawEvents(id), 1, 0)
		if err != nil || !o.Handled {
			t.Fatal(o, err)
		}
	}
	total := 0
	for _, s := range sinks {
		total += len(s.Events())
	}
	if total != 3 {
		t.Errorf("%d events of 3", total)
	}
}

func TestStart_WaitsForNodeWithClaim(t *testing.T) {
	f := newFake(t)
	port, other := freePort(t), freePort(t)
	f.Lead("127.0.0.1:" + port)
	shared := &claims{}
	waiting := open(t, f, inputMetadata(f, other), func(o *eventgrid.Options) { o.Claims = shared })
	working := open(t, f, inputMetadata(f, port), func(o *eventgrid.Options) { o.Claims = shared })
	f.Refuse("management", "PUT", eventgridtest.Refusal{Status: 403,
		Body: `{"error":{"code":"AuthorizationFailed","message":"The client does not have authorization."}}`})
	if err := working.Input.Start(t.Context(), bindingstest.NewSink()); !fault.Is(err, fault.Denied) {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- waiting.Input.Start(t.Context(), bindingstest.NewSink()) }()
	eventually(t, func() bool { return len(requested(f, "management", "GET")) > 6 })
	if err := working.Input.Start(t.Context(), bindingstest.NewSink()); err != nil { // this node still has the claim
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if puts := requested(f, "management", "PUT"); len(puts) != 2 {
		t.Errorf("requested %v", puts)
	}
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	late := time.After(testutil.Patience)
	for !ok() {
		select {
		case <-late:
			t.Fatal("it did not come about")
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func TestStart_KeepsOtherPropertiesOfSubscription(t *testing.T) {
	f := newFake(t)
	port := freePort(t)
	f.Lead("127.0.0.1:" + port)
	f.SetSubscription(topicScope, "ordersgrid", map[string]any{
		"provisioningState": "Succeeded", "eventDeliverySchema": "EventGridSchema", "labels": []any{"a"},
		"laterProperty": map[string]any{"x": 1.0},
		"filter":        map[string]any{"subjectBeginsWith": "/eu"},
		"retryPolicy":   map[string]any{"maxDeliveryAttempts": 5.0},
		"destination": map[string]any{"endpointType": "WebHook",
			"properties": map[string]any{"endpointUrl": "https://old.example/api/events", "maxEventsPerBatch": 10.0}},
	})
	b := open(t, f, inputMetadata(f, port))
	if err := b.Input.Start(t.Context(), bindingstest.NewSink()); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"provisioningState": "Succeeded", "eventDeliverySchema": "CloudEventSchemaV1_0", "labels": []any{"a"},
		"laterProperty": map[string]any{"x": 1.0},
		"filter":        map[string]any{"subjectBeginsWith": "/eu"},
		"retryPolicy":   map[string]any{"maxDeliveryAttempts": 5.0},
		"destination": map[string]any{"endpointType": "WebHook",
			"properties": map[string]any{"endpointUrl": f.Ingress + "/api/events", "maxEventsPerBatch": 10.0,
				"azureActiveDirectoryTenantId": f.Tenant, "azureActiveDirectoryApplicationIdOrUri": f.Client}},
	}
	if diff := cmp.Diff(want, f.Subscription(topicScope, "ordersgrid")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestStart_LeavesSubscriptionWithSecretAttribute(t *testing.T) {
	f := newFake(t)
	f.SetSubscription(topicScope, "ordersgrid", map[string]any{
		"provisioningState": "Succeeded", "eventDeliverySchema": "CloudEventSchemaV1_0",
		"destination": map[string]any{"endpointType": "WebHook",
			"properties": map[string]any{"endpointUrl": "https://old.example/api/events",
				"deliveryAttributeMappings": []any{map[string]any{"name": "x-key", "type": "Static",
					"properties": map[string]any{"value": nil, "isSecret": true}}}}},
	})
	err := open(t, f, inputMetadata(f, freePort(t))).Input.Start(t.Context(), bindingstest.NewSink())
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "secret delivery attribute") ||
		len(requested(f, "management", "PUT")) != 0 {
		t.Errorf("%v", err)
	}
}

func TestStart_ComparesSecretInEndpoint(t *testing.T) {
	f := newFake(t)
	port := freePort(t)
	f.Lead("127.0.0.1:" + port)
	for i, secret := range []string{"one", "one", "two"} {
		b := open(t, f, with(inputMetadata(f, port), "subscriberEndpoint", f.Ingress+"/api/events?code="+secret,
			"deliveryAuth", "none"))
		if err := b.Input.Start(t.Context(), bindingstest.NewSink()); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want, got := []int{1, 1, 2}[i], len(requested(f, "management", "PUT")); got != want {
			t.Errorf("start %d: %d PUTs so far, want %d", i+1, got, want)
		}
	}
}

func TestStart_RefusalHasHintAndStopsListener(t *testing.T) {
	for _, row := range []struct {
		refusal    eventgridtest.Refusal
		code       fault.Code
		want, hint string
	}{
		{eventgridtest.Refusal{Status: 403,
			Body: `{"error":{"code":"AuthorizationFailed","message":"The client has no authorization."}}`},
			fault.Denied, "AuthorizationFailed The client has no authorization.", "EventGrid EventSubscription " +
				"Contributor"},
		{eventgridtest.Refusal{Status: 404,
			Body: `{"error":{"code":"ResourceNotFound","message":"topics/orders was not found."}}`}, fault.NotFound,
			"topics/orders was not found", "check scope"},
		{eventgridtest.Refusal{Status: 409,
			Body: `{"error":{"code":"MissingSubscriptionRegistration","message":"not registered"}}`}, fault.Invalid,
			"not registered", "register the resource provider"},
		{eventgridtest.Refusal{Status: 400,
			Body: `{"error":{"code":"InvalidRequest","message":"bad 8Q~theClientSecret"}}`}, fault.Invalid, "bad ***",
			""},
	} {
		f := newFake(t)
		port := freePort(t)
		f.Lead("127.0.0.1:" + port)
		f.Refuse("management", "PUT", row.refusal)
		b := open(t, f, inputMetadata(f, port))
		err := b.Input.Start(t.Context(), bindingstest.NewSink())
		if !fault.Is(err, row.code) || !strings.Contains(fault.Text(err), row.want) ||
			!strings.Contains(fault.HintOf(err), row.hint) {
			t.Errorf("%d: %v", row.refusal.Status, err)
		}
		if strings.Contains(err.Error(), f.Secret) {
			t.Errorf("the secret is shown: %v", err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Errorf("the listener is left behind: %v", err)
			continue
		}
		_ = l.Close()
		if err := b.Input.Start(t.Context(), bindingstest.NewSink()); err != nil {
			t.Errorf("the second start: %v", err)
		}
	}
}

func TestStart_NamesUnreachableEndpoint(t *testing.T) {
	f := newFake(t)
	f.Lead() // no listeners
	err := open(t, f, inputMetadata(f, freePort(t))).Input.Start(t.Context(), bindingstest.NewSink())
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "handshake failed") ||
		!strings.Contains(fault.HintOf(err), f.Ingress+"/api/events") {
		t.Errorf("%v", err)
	}
}

func TestStart_Errors(t *testing.T) {
	f := newFake(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	err = open(t, f, inputMetadata(f, port)).Input.Start(t.Context(), bindingstest.NewSink())
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "cannot listen on 127.0.0.1:"+port) ||
		len(f.Requests("")) != 0 {
		t.Errorf("a port that is taken: %v, %v", err, f.Requests(""))
	}
	err = open(t, f, with(inputMetadata(f, freePort(t)), "clientSecret", "wrong")).Input.Start(t.Context(),
		bindingstest.NewSink())
	if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "AADSTS7000215") {
		t.Errorf("a wrong secret: %v", err)
	}
	err = open(t, f, inputMetadata(f, freePort(t)), func(o *eventgrid.Options) {
		o.Claims = &claims{fail: fault.New(fault.Unavailable, "test", "no quorum")}
	}).Input.Start(t.Context(), bindingstest.NewSink())
	if !fault.Is(err, fault.Unavailable) || len(requested(f, "management", "PUT")) != 0 {
		t.Errorf("without a claim: %v", err)
	}
	f.HideKeys(true)
	err = open(t, f, inputMetadata(f, freePort(t))).Input.Start(t.Context(), bindingstest.NewSink())
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "keys") {
		t.Errorf("without keys: %v", err)
	}
}

func TestClose_CancelsStart(t *testing.T) {
	f := newFake(t)
	f.Refuse("management", "GET", eventgridtest.Refusal{}) // no answer
	b := open(t, f, inputMetadata(f, freePort(t)))
	done := make(chan error, 1)
	go func() { done <- b.Input.Start(context.Background(), bindingstest.NewSink()) }()
	eventually(t, func() bool { return len(f.Requests("management")) == 1 })
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the start succeeded")
	}
}
