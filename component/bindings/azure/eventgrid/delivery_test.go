package eventgrid_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid/eventgridtest"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestInput_Conformance(t *testing.T) {
	bindingstest.RunInput(t, bindingstest.Input{Redelivers: true,
		Open: func(t *testing.T) (bindings.Binding, func(*testing.T) bool) {
			f := newFake(t)
			port := freePort(t)
			f.Lead("127.0.0.1:" + port)
			return open(t, f, inputMetadata(f, port)), func(t *testing.T) bool {
				o, err := f.Deliver(t.Context(), f.Ingress+"/api/events", rawEvents("1"), 1, 0)
				if err != nil {
					t.Fatal(err)
				}
				return o.Handled
			}
		}})
}

func data(s *bindingstest.Sink) []string {
	var out []string
	for _, e := range s.Events() {
		out = append(out, string(e.Data))
	}
	return out
}

func TestDelivery_KeepsOrderAndBytes(t *testing.T) {
	r := receive(t)
	for _, ids := range [][]string{{"1"}, {"2", "3", "4"}, {"5"}} {
		o, err := r.fake.Deliver(t.Context(), r.endpoint, rawEvents(ids...), 1, 0)
		if err != nil || !o.Handled {
			t.Fatal(o, err)
		}
	}
	got := data(r.sink)
	for i, id := range []string{"1", "2", "3", "4", "5"} {
		if i >= len(got) || got[i] != event(id) {
			t.Fatalf("got %q", got)
		}
	}
}

func TestDelivery_BinaryEventBecomesDocument(t *testing.T) {
	for _, row := range []struct{ media, body, want string }{
		{"application/json", `{"n": 1}`,
			`"datacontenttype":"application/json","id":"7","source":"/shop ü","specversion":"1.0",` +
				`"subject":"50%","type":"t"}`},
		{"text/plain", "hello", `"data_base64":"aGVsbG8=","datacontenttype":"text/plain","id":"7",` +
			`"source":"/shop ü","specversion":"1.0","subject":"50%","type":"t"}`},
	} {
		r := receive(t)
		a := r.attempt(t, row.media, row.body, func(d *eventgridtest.Delivery) {
			for name, value := range map[string]string{"Ce-Id": "7", "Ce-Source": "/shop%20%C3%BC",
				"Ce-Specversion": "1.0", "Ce-Type": "t", "Ce-Subject": "50%25"} {
				d.Header.Set(name, value)
			}
		})
		got := strings.Join(data(r.sink), "")
		if a.Status != http.StatusOK || !strings.HasSuffix(got, row.want) {
			t.Errorf("%d %s: %s", a.Status, a.Body, got)
		}
		if row.media == "application/json" && !strings.HasPrefix(got, `{"data":{"n": 1},`) {
			t.Errorf("the data are %s", got)
		}
	}
}

func TestDelivery_IsRetriedAfterFailure(t *testing.T) {
	r := receive(t)
	r.sink.Fail(fault.New(fault.Internal, "test", "secret reasons"))
	outcome := make(chan eventgridtest.Outcome, 1)
	go func() {
		o, err := r.fake.Deliver(context.WithoutCancel(t.Context()), r.endpoint, rawEvents("1", "2"), 1000,
			2*time.Millisecond)
		if err != nil {
			t.Error(err)
		}
		outcome <- o
	}()
	a := r.attempt(t, eventgridtest.MediaEvent, event("0"))
	if a.Status != http.StatusInternalServerError || strings.Contains(a.Body, "secret") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	r.sink.Fail(nil)
	o := <-outcome
	if got := data(r.sink); !o.Handled || len(got) != 2 || got[1] != event("2") {
		t.Errorf("%+v %v", o, got)
	}
}

func TestDelivery_BatchSucceedsOnlyAsAWhole(t *testing.T) {
	r := receive(t)
	sink := &picky{Sink: bindingstest.NewSink(), refuse: `"id":"2"`}
	f, port := r.fake, freePort(t)
	f.Lead("127.0.0.1:" + port)
	b := open(t, f, inputMetadata(f, port))
	if err := b.Input.Start(t.Context(), sink); err != nil {
		t.Fatal(err)
	}
	a := r.attempt(t, eventgridtest.MediaBatch, "["+event("1")+","+event("2")+","+event("3")+"]")
	if a.Status != http.StatusInternalServerError || len(sink.Events()) != 1 {
		t.Errorf("%d, %v", a.Status, sink.Events())
	}
}

// picky is a sink that fails for events that contain the text refuse.
type picky struct {
	*bindingstest.Sink
	refuse string
}

func (p *picky) Deliver(ctx context.Context, e bindings.Event) ([]byte, error) {
	if strings.Contains(string(e.Data), p.refuse) {
		return nil, fault.New(fault.Internal, "test", "no")
	}
	return p.Sink.Deliver(ctx, e)
}

func TestDelivery_Statuses(t *testing.T) {
	r := receive(t)
	for _, row := range []struct {
		what, media, body string
		change            func(*eventgridtest.Delivery)
		want              int
	}{
		{"an event", eventgridtest.MediaEvent, event("1"), nil, 200},
		{"an event as plain JSON", "application/json", event("1"), nil, 200},
		{"a batch as plain JSON", "application/json", "[" + event("1") + "]", nil, 200},
		{"an empty batch", eventgridtest.MediaBatch, "[]", nil, 200},
		{"no JSON", eventgridtest.MediaEvent, "{", nil, 400},
		{"an event without an id", eventgridtest.MediaEvent, `{"specversion":"1.0","source":"s","type":"t"}`, nil, 400},
		{"an event of another version", eventgridtest.MediaEvent, strings.Replace(event("1"), "1.0", "0.3", 1), nil,
			400},
		{"the schema of old", "application/json", `[{"id":"1","eventType":"t","data":{}}]`, nil, 400},
		{"another media type", "text/plain", event("1"), nil, 400},
		{"a malformed media type", "/;", event("1"), nil, 400},
		{"a body without bounds", eventgridtest.MediaEvent, strings.Repeat(" ", 3<<20), nil, 413},
		{"no token", eventgridtest.MediaEvent, event("1"), func(d *eventgridtest.Delivery) { d.Token = "" }, 401},
		{"another path", eventgridtest.MediaEvent, event("1"), func(d *eventgridtest.Delivery) { d.Endpoint += "/x" },
			404},
		{"another method", "", "", func(d *eventgridtest.Delivery) { d.Method = http.MethodGet }, 405},
		{"a deletion", "", "", func(d *eventgridtest.Delivery) { d.Method = http.MethodDelete }, 405},
	} {
		var changes []func(*eventgridtest.Delivery)
		if row.change != nil {
			changes = append(changes, row.change)
		}
		a := r.attempt(t, row.media, row.body, changes...)
		if a.Status != row.want {
			t.Errorf("%s: %d %s, want %d", row.what, a.Status, a.Body, row.want)
		}
		if row.want == 405 && a.Header.Get("Allow") != "POST, OPTIONS" {
			t.Errorf("%s: Allow is %q", row.what, a.Header.Get("Allow"))
		}
	}
	r.sink.Pause(true)
	if a := r.attempt(t, eventgridtest.MediaEvent, event("1")); a.Status != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("while the application takes no events: %d %v", a.Status, a.Header)
	}
	if n := len(r.sink.Events()); n != 3 {
		t.Errorf("%d events reached the application", n)
	}
}

func TestHandshake_WithoutApplication(t *testing.T) {
	r := receive(t)
	r.sink.Pause(true)
	bare := func(d *eventgridtest.Delivery) { d.Token = "" }
	a := r.attempt(t, "", "", bare, func(d *eventgridtest.Delivery) {
		d.Method = http.MethodOptions
		d.Header.Set("WebHook-Request-Origin", "eventgrid.azure.net")
		d.Header.Set("WebHook-Request-Callback", r.fake.URL+"/callback")
		d.Header.Set("WebHook-Request-Rate", "120")
	})
	if a.Status != http.StatusOK || a.Body != "" || a.Header.Get("WebHook-Allowed-Origin") != "eventgrid.azure.net" ||
		a.Header.Get("WebHook-Allowed-Rate") != "*" || a.Header.Get("Allow") != "POST, OPTIONS" {
		t.Errorf("%+v", a)
	}
	older := func(d *eventgridtest.Delivery) { d.Header.Set("Aeg-Event-Type", "SubscriptionValidation") }
	a = r.attempt(t, "application/json", `[{"id":"1","topic":"/t","subject":"",
		"eventType":"Microsoft.EventGrid.SubscriptionValidationEvent",
		"eventTime":"2026-01-25T22:12:19Z","dataVersion":"1",
		"data":{"validationCode":"512d38b6-c7b8-40c8-89fe-f46f9e9622b6","validationUrl":"https://x.example"}}]`,
		bare, older)
	if a.Status != http.StatusOK || a.Body != `{"validationResponse":"512d38b6-c7b8-40c8-89fe-f46f9e9622b6"}` ||
		a.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%+v", a)
	}
	if a = r.attempt(t, "application/json", `[{"eventType":"Other","data":{"validationCode":"1"}}]`, bare,
		older); a.Status != http.StatusBadRequest {
		t.Errorf("%+v", a)
	}
}

func TestDelivery_RefusesInvalidTokens(t *testing.T) {
	r := receive(t)
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	f := r.fake
	now := time.Now()
	for _, row := range []struct {
		what   string
		change func(jwt.MapClaims)
		key    *rsa.PrivateKey
		id     string
		good   bool
	}{
		{what: "as the tenant gives it", good: true},
		{what: "expired within the skew", change: func(c jwt.MapClaims) { c["exp"] = now.Add(-4 * time.Minute).Unix() },
			good: true},
		{what: "expired", change: func(c jwt.MapClaims) { c["exp"] = now.Add(-6 * time.Minute).Unix() }},
		{what: "without an end", change: func(c jwt.MapClaims) { delete(c, "exp") }},
		{what: "not valid yet", change: func(c jwt.MapClaims) { c["nbf"] = now.Add(6 * time.Minute).Unix() }},
		{what: "of the first version",
			change: func(c jwt.MapClaims) { c["iss"] = "https://sts.windows.net/" + f.Tenant + "/" }, good: true},
		{what: "of another tenant", change: func(c jwt.MapClaims) {
			c["iss"] =
				"https://sts.windows.net/99999999-2222-3333-4444-555555555555/"
		}},
		{what: "for another application", change: func(c jwt.MapClaims) { c["aud"] = "api://other" }},
		{what: "for the endpoint, by the tenant", change: func(c jwt.MapClaims) { c["aud"] = r.endpoint }},
		{what: "for the endpoint, by Event Grid", change: func(c jwt.MapClaims) {
			c["aud"], c["iss"] = r.endpoint,
				"https://eventgrid.azure.net"
		}, good: true},
		{what: "for the application, by Event Grid",
			change: func(c jwt.MapClaims) { c["iss"] = "https://eventgrid.azure.net" }, good: true},
		{what: "signed by a stranger", key: stranger},
		{what: "signed with an unknown key", key: stranger, id: "key-2"},
	} {
		c := f.Claims()
		if row.change != nil {
			row.change(c)
		}
		key, id := row.key, row.id
		if key == nil {
			key = f.Key
		}
		if id == "" {
			id = eventgridtest.KeyID
		}
		token, err := f.Sign(c, key, id)
		if err != nil {
			t.Fatal(err)
		}
		want := http.StatusUnauthorized
		if row.good {
			want = http.StatusOK
		}
		a := r.attempt(t, eventgridtest.MediaEvent, event("1"), func(d *eventgridtest.Delivery) { d.Token = token })
		if a.Status != want || !row.good && a.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("a token %s: %d %s", row.what, a.Status, a.Body)
		}
	}
	hmac := jwt.NewWithClaims(jwt.SigningMethodHS256, f.Claims())
	hmac.Header["kid"] = eventgridtest.KeyID
	forged, err := hmac.SignedString(f.Key.Public().(*rsa.PublicKey).N.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, f.Claims()).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	for what, token := range map[string]string{"signed with the public key": forged, "unsigned": unsigned,
		"that is none": "a.b.c", "of another scheme": "Basic x"} {
		if a := r.attempt(t, eventgridtest.MediaEvent, event("1"),
			func(d *eventgridtest.Delivery) { d.Token = token }); a.Status != http.StatusUnauthorized {
			t.Errorf("a token %s: %d", what, a.Status)
		}
	}
	before := len(f.Requests("identity"))
	for range 20 {
		r.attempt(t, eventgridtest.MediaEvent, event("1"),
			func(d *eventgridtest.Delivery) { d.Token, _ = f.Sign(f.Claims(), stranger, "key-3") })
	}
	if after := len(f.Requests("identity")); after > before+2 {
		t.Errorf("unknown keys made %d requests to the identity service", after-before)
	}
}

func TestDelivery_SecretOfEndpointWithoutTokens(t *testing.T) {
	f := newFake(t)
	port := freePort(t)
	f.Lead("127.0.0.1:" + port)
	m := with(inputMetadata(f, port), "deliveryAuth", "none", "subscriberEndpoint", f.Ingress+"/hooks/grid?code=s3cret")
	r := &receiver{fake: f, binding: open(t, f, m), sink: bindingstest.NewSink(), endpoint: m["subscriberEndpoint"]}
	if err := r.binding.Input.Start(t.Context(), r.sink); err != nil {
		t.Fatal(err)
	}
	for endpoint, want := range map[string]int{r.endpoint: 200, r.endpoint + "&x=1": 200, f.Ingress +
		"/hooks/grid": 401, f.Ingress + "/hooks/grid?code=s3cre": 401, f.Ingress + "/api/events?code=s3cret": 404} {
		a := r.attempt(t, eventgridtest.MediaEvent, event("1"),
			func(d *eventgridtest.Delivery) { d.Token, d.Endpoint = "", endpoint })
		if a.Status != want {
			t.Errorf("%s: %d, want %d", endpoint, a.Status, want)
		}
	}
	properties := f.Subscription(topicScope,
		"ordersgrid")["destination"].(map[string]any)["properties"].(map[string]any)
	if len(properties) != 1 || properties["endpointUrl"] != r.endpoint {
		t.Errorf("the destination is %v", properties)
	}
}

// A client that opens connections without requests must neither use up the files of the process nor keep the service
// out.
func TestInput_LimitsConnections(t *testing.T) {
	f, port, log := newFake(t), freePort(t), &testutil.Output{}
	f.Lead("127.0.0.1:" + port)
	m := inputMetadata(f, port)
	r := &receiver{fake: f, sink: bindingstest.NewSink(), endpoint: m["subscriberEndpoint"],
		binding: open(t, f, m, func(o *eventgrid.Options) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })}
	if err := r.binding.Input.Start(t.Context(), r.sink); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range eventgrid.MaxConnections + 1 {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
	}
	if _, err := conns[0].Read(make([]byte, 1)); err == nil {
		t.Error("the oldest connection sent something")
	}
	testutil.Eventually(t, func() error { // without the limit, the connection is closed later and nothing is logged
		if !strings.Contains(log.String(), "too many connections") {
			return errors.New("the log does not report the limit")
		}
		return nil
	})
	if a := r.attempt(t, eventgridtest.MediaEvent, event("1")); a.Status != http.StatusOK {
		t.Errorf("a delivery was answered with %d", a.Status)
	}
}

// Clients that send a validation without its end do not keep the service out, because nothing authenticates them.
func TestConnections_UnfinishedValidationsMakeRoom(t *testing.T) {
	f := newFake(t)
	port := freePort(t)
	f.Lead("127.0.0.1:" + port)
	m := inputMetadata(f, port)
	r := &receiver{fake: f, sink: bindingstest.NewSink(), endpoint: m["subscriberEndpoint"], binding: open(t, f, m)}
	if err := r.binding.Input.Start(t.Context(), r.sink); err != nil {
		t.Fatal(err)
	}
	const head = "POST /api/events HTTP/1.1\r\nHost: x\r\nAeg-Event-Type: SubscriptionValidation\r\n" +
		"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"
	const reading = "HTTP/1.1 100 Continue\r\n\r\n" // the server sends it when the handler reads the body
	for range eventgrid.MaxConnections {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, head); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(reading))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != reading {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if a := r.attempt(t, eventgridtest.MediaEvent, event("1")); a.Status != http.StatusOK {
		t.Errorf("a delivery was answered with %d", a.Status)
	}
}

// stuck is a sink that blocks each delivery until the delivery is canceled.
type stuck struct {
	entered chan struct{}
	once    sync.Once
}

func (s *stuck) Ready() bool { return true }

func (s *stuck) Deliver(ctx context.Context, _ bindings.Event) ([]byte, error) {
	s.once.Do(func() { close(s.entered) })
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestClose_CancelsDelivery(t *testing.T) {
	f := newFake(t)
	port := freePort(t)
	f.Lead("127.0.0.1:" + port)
	b := open(t, f, inputMetadata(f, port))
	sink := &stuck{entered: make(chan struct{})}
	if err := b.Input.Start(t.Context(), sink); err != nil {
		t.Fatal(err)
	}
	done := make(chan eventgridtest.Outcome, 1)
	go func() {
		o, _ := f.Deliver(context.WithoutCancel(t.Context()), f.Ingress+"/api/events", rawEvents("1"), 1, 0)
		done <- o
	}()
	<-sink.entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}
	if o := <-done; o.Handled {
		t.Error("the source got a success")
	}
}
