package eventgrid_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid/eventgridtest"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	subscriptionID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
	topicScope     = "/subscriptions/" + subscriptionID +
		"/resourceGroups/shop/providers/Microsoft.EventGrid/topics/orders"
)

// key returns the key that signs the tokens of all tests. They share one key, because making a key is slow.
func key(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	k, err := oneKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var oneKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func newFake(t testing.TB, change ...func(*eventgridtest.Config)) *eventgridtest.Fake {
	t.Helper()
	c := eventgridtest.Config{Key: key(t)}
	for _, f := range change {
		f(&c)
	}
	f, err := eventgridtest.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// claims implements bindings.Claims for the nodes of a cluster, which share it.
type claims struct {
	mu    sync.Mutex
	taken map[string]time.Time
	fail  error
}

func (c *claims) Claim(_ context.Context, key string, life time.Duration) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return false, c.fail
	}
	if c.taken == nil {
		c.taken = map[string]time.Time{}
	}
	if time.Now().Before(c.taken[key]) {
		return false, nil
	}
	c.taken[key] = time.Now().Add(life)
	return true, nil
}

func freePort(t testing.TB) string { t.Helper(); return strconv.Itoa(testutil.SparePort(t)) }

// inputMetadata returns the metadata of a component that is an input.
func inputMetadata(f *eventgridtest.Fake, port string) map[string]string {
	return map[string]string{
		"tenantId": f.Tenant, "subscriptionId": subscriptionID, "clientId": f.Client, "clientSecret": f.Secret,
		"subscriberEndpoint": f.Ingress + "/api/events", "handshakePort": port, "scope": topicScope,
		"listenHost":         "127.0.0.1",
		"azureAuthorityHost": f.URL, "azureResourceManagerEndpoint": f.URL, "pollInterval": "5ms",
	}
}

func outputMetadata(f *eventgridtest.Fake) map[string]string {
	return map[string]string{"accessKey": f.AccessKey, "topicEndpoint": f.Topic}
}

func values(m map[string]string) (component.Values, error) {
	var list component.Metadata
	for name, value := range m {
		list = append(list, component.Property{Name: name, Value: value, Sensitive: name == "clientSecret" ||
			name == "accessKey"})
	}
	v, _, err := list.Check(component.Pos{}, "orders-grid", eventgrid.Fields())
	return v, err
}

func tryOpen(f *eventgridtest.Fake, m map[string]string, change ...func(*eventgrid.Options)) (bindings.Binding, error) {
	v, err := values(m)
	if err != nil {
		return bindings.Binding{}, err
	}
	o := eventgrid.Options{Name: "orders-grid", Namespace: "shop", Metadata: v, Claims: &claims{},
		Logger: slog.New(slog.DiscardHandler)}
	if f != nil {
		o.Transport = f.Transport()
	}
	for _, c := range change {
		c(&o)
	}
	return eventgrid.Open(o)
}

func open(t testing.TB, f *eventgridtest.Fake, m map[string]string,
	change ...func(*eventgrid.Options)) bindings.Binding {
	t.Helper()
	b, err := tryOpen(f, m, change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return b
}

func with(m map[string]string, pairs ...string) map[string]string {
	m = maps.Clone(m)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

// receiver is a started input and its environment.
type receiver struct {
	fake     *eventgridtest.Fake
	binding  bindings.Binding
	sink     *bindingstest.Sink
	endpoint string
}

func receive(t testing.TB, pairs ...string) *receiver {
	t.Helper()
	f := newFake(t)
	port := freePort(t)
	f.Lead("127.0.0.1:" + port)
	m := with(inputMetadata(f, port), pairs...)
	r := &receiver{fake: f, binding: open(t, f, m), sink: bindingstest.NewSink(), endpoint: m["subscriberEndpoint"]}
	if err := r.binding.Input.Start(t.Context(), r.sink); err != nil {
		t.Fatal(err)
	}
	return r
}

// attempt makes one delivery with a valid token, unless the header has one.
func (r *receiver) attempt(t testing.TB, media, body string,
	change ...func(*eventgridtest.Delivery)) eventgridtest.Answer {
	t.Helper()
	token, err := r.fake.Token()
	if err != nil {
		t.Fatal(err)
	}
	d := eventgridtest.Delivery{Endpoint: r.endpoint, Token: token, Header: http.Header{}, Body: []byte(body)}
	if media != "" {
		d.Header.Set("Content-Type", media)
	}
	for _, c := range change {
		c(&d)
	}
	a, err := r.fake.Attempt(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func event(id string) string {
	return `{"specversion":"1.0", "id":"` + id +
		`","source":"/shop","type":"order.placed","data":{"n":1.50,"html":"<&>"}}`
}

func rawEvents(ids ...string) []json.RawMessage {
	var out []json.RawMessage
	for _, id := range ids {
		out = append(out, json.RawMessage(event(id)))
	}
	return out
}
