// Package eventgridtest is a fake of Azure Event Grid for tests. It serves the identity, management and topic APIs over
// TLS on loopback, as Microsoft's reference describes them. It records every request to these APIs, and it can deliver
// events.
//
// The fake has only the part of Event Grid that the binding uses. Only tests and test programs import it. The package
// owns the two HTTP servers of a fake and their goroutines. Close stops them.
package eventgridtest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/logadapt"
)

// Config configures a fake: its tenant, its application and its keys. New replaces empty strings with the values of
// Default, and a nil Key with a new key.
type Config struct {
	Tenant, Client, Secret, AccessKey string
	Key                               *rsa.PrivateKey // signs tokens
	Polls                             int             // number of polls before an operation ends
}

// Default returns a Config with fixed values for the tenant id, the application id, the client secret and the access
// key of the topic.
func Default() Config {
	return Config{
		Tenant: "11111111-2222-3333-4444-555555555555", Client: "66666666-7777-8888-9999-000000000000",
		Secret: "8Q~theClientSecret", AccessKey: "dGhlLXRvcGljcy1hY2Nlc3Mta2V5",
	}
}

// Request is a recorded request.
type Request struct {
	Part   string `json:"part"` // identity, management or topic
	Method string `json:"method"`
	URI    string `json:"uri"` // path and query
	Header http.Header
	Body   string `json:"body"`
}

// Fake is a fake of Azure Event Grid. It is safe for concurrent use.
type Fake struct {
	Config
	URL     string // URL of the identity and management APIs
	Topic   string // URL to which events are published
	Ingress string // the public address of the nodes, without a path

	service, ingress *httptest.Server
	client           *http.Client

	mu            sync.Mutex // guards the fields below
	requests      []Request
	subscriptions map[string]map[string]any // requested properties by path
	operations    map[string]*operation
	nodes         []string // host:port of listeners behind the ingress
	turn          int
	refusals      map[string][]Refusal
	hidden        bool // the signing keys are withheld
}

// Refusal is an answer that replaces the usual answer. With Status 0, the request gets no answer.
type Refusal struct {
	Status     int
	Body       string
	RetryAfter string
}

// New starts the fake.
func New(c Config) (*Fake, error) {
	d := Default()
	for _, field := range []struct{ at, or *string }{{&c.Tenant, &d.Tenant}, {&c.Client, &d.Client},
		{&c.Secret, &d.Secret}, {&c.AccessKey, &d.AccessKey}} {
		if *field.at == "" {
			*field.at = *field.or
		}
	}
	if c.Key == nil {
		var err error
		if c.Key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			return nil, err
		}
	}
	f := &Fake{Config: c, subscriptions: map[string]map[string]any{}, operations: map[string]*operation{},
		refusals: map[string][]Refusal{}}
	f.service = serve(f.routes())
	f.ingress = serve(&httputil.ReverseProxy{Rewrite: f.lead, Transport: &http.Transport{DisableKeepAlives: true},
		ErrorLog: logadapt.Standard(slog.New(slog.DiscardHandler))})
	f.client = &http.Client{Transport: f.Transport(), Timeout: 30 * time.Second}
	f.URL, f.Topic, f.Ingress = f.service.URL, f.service.URL+"/topic/api/events", f.ingress.URL
	return f, nil
}

// serve starts a server that does not log broken connections, which tests cause often.
func serve(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = logadapt.Standard(slog.New(slog.DiscardHandler))
	s.StartTLS()
	return s
}

// Close stops the servers of the fake.
func (f *Fake) Close() {
	f.client.CloseIdleConnections()
	f.ingress.Close()
	f.service.Close()
}

// Transport returns a transport that trusts the certificate of the service.
func (f *Fake) Transport() *http.Transport {
	t, ok := f.service.Client().Transport.(*http.Transport)
	if !ok {
		return &http.Transport{}
	}
	return t.Clone()
}

// Authority returns the certificate to trust, in PEM form.
func (f *Fake) Authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.service.Certificate().Raw})
}

// Lead sets the addresses (host:port) of the listeners that receive the requests to f.Ingress. The fake forwards each
// request to the next listener in turn.
func (f *Fake) Lead(nodes ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes = nodes
}

func (f *Fake) lead(r *httputil.ProxyRequest) {
	f.mu.Lock()
	host := "127.0.0.1:0" // no listener
	if len(f.nodes) > 0 {
		host = f.nodes[f.turn%len(f.nodes)]
		f.turn++
	}
	f.mu.Unlock()
	r.SetURL(&url.URL{Scheme: "http", Host: host})
}

// Requests returns the recorded requests to the given part of the service, in order. If part is "", it returns the
// requests to all parts.
func (f *Fake) Requests(part string) []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.requests), func(r Request) bool { return part != "" && r.Part != part })
}

// Refuse makes the fake answer the next requests with the given refusals, one for each request. It affects requests
// with the given method to one part of the service: identity, management or topic.
func (f *Fake) Refuse(part, method string, with ...Refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusals[part+method] = append(f.refusals[part+method], with...)
}

// HideKeys sets whether the identity service withholds its signing keys.
func (f *Fake) HideKeys(hidden bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hidden = hidden
}

// SetSubscription adds an event subscription, as if another client had created it.
func (f *Fake) SetSubscription(scope, name string, properties map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscriptions[strings.ToLower(scope+suffix+name)] = properties
}

// Subscription returns the requested properties of a subscription, or nil if there is no such subscription.
func (f *Fake) Subscription(scope, name string) map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.subscriptions[strings.ToLower(scope+suffix+name)])
}

// routes returns the handlers of the service.
func (f *Fake) routes() http.Handler {
	m := http.NewServeMux()
	m.Handle("GET /"+f.Tenant+"/v2.0/.well-known/openid-configuration", f.record("identity", f.configuration))
	m.Handle("GET /"+f.Tenant+"/discovery/v2.0/keys", f.record("identity", f.keySet))
	m.Handle("POST /"+f.Tenant+"/oauth2/v2.0/token", f.record("identity", f.token))
	m.Handle("/subscriptions/", f.record("management", f.manage))
	m.Handle("POST /topic/api/events", f.record("topic", f.publish))
	m.HandleFunc("/control/", f.control)
	return m
}

// record records the request, and answers with a Refusal if one is set.
func (f *Fake) record(part string, next func(w http.ResponseWriter, r *http.Request, body []byte)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		f.mu.Lock()
		f.requests = append(f.requests, Request{Part: part, Method: r.Method, URI: r.URL.RequestURI(),
			Header: r.Header.Clone(), Body: string(body)})
		var refusal *Refusal
		if waiting := f.refusals[part+r.Method]; len(waiting) > 0 {
			refusal, f.refusals[part+r.Method] = &waiting[0], waiting[1:]
		}
		f.mu.Unlock()
		if refusal == nil {
			next(w, r, body)
			return
		}
		if refusal.RetryAfter != "" {
			w.Header().Set("Retry-After", refusal.RetryAfter)
		}
		if refusal.Status == 0 { // no answer
			<-r.Context().Done()
			panic(http.ErrAbortHandler) // a return would be a 200
		}
		write(w, refusal.Status, json.RawMessage(refusal.Body))
	})
}

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	if raw, ok := body.(json.RawMessage); ok {
		_, _ = w.Write(raw)
		return
	}
	_ = json.NewEncoder(w).Encode(body)
}

// fail answers in the form of all failures of the service.
func fail(w http.ResponseWriter, status int, code, message string) {
	write(w, status, map[string]any{"error": map[string]any{"code": code, "message": message}})
}

// publish handles requests to the topic. It accepts a request if the access key is right, and if the events have the
// CloudEvents schema or the Event Grid schema.
func (f *Fake) publish(w http.ResponseWriter, r *http.Request, body []byte) {
	switch {
	case r.Header.Get("Aeg-Sas-Key") != f.AccessKey:
		fail(w, http.StatusUnauthorized, "Unauthorized", "The request authorization key is not authorized for TOPIC.")
	case checkPublished(r.Header.Get("Content-Type"), body) != nil:
		fail(w, http.StatusBadRequest, "BadRequest",
			"This resource is configured to receive event in 'CloudEventV10' schema.")
	default:
		w.WriteHeader(http.StatusOK)
	}
}

// checkPublished returns an error if published events lack a required field. With the media type application/json, the
// events must have the Event Grid schema. With any other media type, they must be CloudEvents.
func checkPublished(media string, body []byte) error {
	var all []map[string]any
	required := []string{"specversion", "id", "source", "type"}
	batch := strings.HasPrefix(media, "application/cloudevents-batch+json")
	if media == "application/json" {
		required = []string{"id", "subject", "eventType", "eventTime"}
		batch = strings.HasPrefix(string(body), "[")
	}
	if batch {
		if err := json.Unmarshal(body, &all); err != nil {
			return err
		}
	} else {
		var one map[string]any
		if err := json.Unmarshal(body, &one); err != nil {
			return err
		}
		all = []map[string]any{one}
	}
	for _, e := range all {
		for _, name := range required {
			if s, ok := e[name].(string); !ok || s == "" {
				return errors.New("there is no " + name)
			}
		}
	}
	return nil
}

// handshake performs the validation handshake with an endpoint, as Event Grid does before it delivers events.
func (f *Fake) handshake(endpoint string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodOptions, endpoint, nil)
	if err != nil {
		return err
	}
	r.Header.Set("WebHook-Request-Origin", "eventgrid.azure.net")
	r.Header.Set("WebHook-Request-Callback", f.URL+"/validation/callback")
	r.Header.Set("WebHook-Request-Rate", "120")
	response, err := f.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	allowed := response.Header.Get("WebHook-Allowed-Origin")
	if response.StatusCode != http.StatusOK || allowed != "eventgrid.azure.net" && allowed != "*" {
		return errors.New(response.Status)
	}
	return nil
}
