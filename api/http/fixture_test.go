package http_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

// fixture is a face over stores of which each shows one kind of behaviour:
//
//	orders   in memory, with every ability; carries the actor state
//	shared   in memory, keyPrefix none
//	small    in memory, values of at most 16 bytes
//	plain    in memory, without transactions, bulk reads or listing
//	faulty   fails as the key says; see faulty
type fixture struct {
	stores  *stores
	health  *nodeHealth
	config  apihttp.Config
	metrics *prometheus.Registry
	stopped chan bool
	log     *strings.Builder
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{
		stores:  &stores{loaded: true},
		health:  &nodeHealth{},
		metrics: prometheus.NewRegistry(),
		stopped: make(chan bool, 1),
		log:     &strings.Builder{},
	}
	newStore := func() *inmemory.Store {
		store := inmemory.Open(inmemory.Options{})
		t.Cleanup(func() { _ = store.Close() })
		return store
	}
	orders := instance("orders", newStore())
	orders.ActorStore = true
	shared := instance("shared", newStore())
	shared.KeyPrefix, _ = state.ParseKeyPrefix("none")
	small := instance("small", state.WithSettings(newStore(), state.Settings{MaxValueSize: 16}))
	f.stores.list = []*state.Instance{
		instance("faulty", faulty{newStore()}), orders, instance("plain", plainStore{newStore()}), shared, small,
	}
	app := api.App{ID: "shop"}
	f.config = apihttp.Config{
		App:            app,
		State:          api.NewState(app, f.stores, api.Limits{}),
		Health:         api.NewHealth(app, f.health),
		Metadata:       api.NewMetadata(app, nodeInfo{}, api.Limits{}),
		Shutdown:       func(force bool) { f.stopped <- force },
		RequestTimeout: 2 * time.Second,
		Logger:         slog.New(slog.NewTextHandler(f.log, nil)),
		Registerer:     f.metrics,
	}
	return f
}

// serve opens a listener on loopback and returns its address.
func (f *fixture) serve(t testing.TB) string {
	t.Helper()
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, face)
}

func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	server := apihttp.NewServer(apihttp.ServerConfig{Address: "127.0.0.1:0", Handler: h, Logger: slog.New(slog.DiscardHandler)})
	if err := server.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Errorf("closing the server: %v", err)
		}
	})
	return "http://" + server.Addr().String()
}

func instance(name string, store state.Store) *state.Instance {
	return &state.Instance{
		Name: name, Type: "state.in-memory", Version: "v1", Store: store,
		DefaultConsistency: state.Eventual, Features: state.FeaturesOf(store),
	}
}

// stores is a catalogue.
type stores struct {
	list   []*state.Instance
	loaded bool
}

func (s *stores) StateStore(name string) (*state.Instance, bool) {
	i, ok := slices.BinarySearchFunc(s.list, name, func(inst *state.Instance, name string) int {
		return cmp.Compare(inst.Name, name)
	})
	if !ok {
		return nil, false
	}
	return s.list[i], true
}

func (s *stores) StateStores() []*state.Instance { return s.list }

func (s *stores) ActorStore() (*state.Instance, bool) {
	for _, inst := range s.list {
		if inst.ActorStore {
			return inst, true
		}
	}
	return nil, false
}

func (s *stores) Loaded() bool { return s.loaded }

// plainStore hides the optional abilities of a store.
type plainStore struct{ state.Store }

// faulty fails as the key says and otherwise is the store below it.
type faulty struct{ state.Store }

func (s faulty) failure(ctx context.Context, stored string) error {
	_, key, _ := strings.Cut(stored, state.Separator)
	code := fault.Code(key)
	switch code {
	case fault.Unavailable, fault.Indeterminate, fault.Timeout, fault.Internal, fault.Corrupt,
		fault.TooLarge, fault.Invalid, fault.Denied, fault.Unimplemented, fault.NotLeader:
		return &fault.Error{Code: code, Op: "faulty.Do", Msg: "the store said " + key, Hint: "a hint", Key: stored}
	case "deadline":
		<-ctx.Done()
		return ctx.Err()
	case "plain-error":
		return errors.New("a bare error")
	case "panic":
		panic("secret value")
	case "nil-map":
		var m map[string]int
		//lint:ignore SA5000 the panic of the runtime is what is wanted
		m[key] = 1
	}
	return nil
}

func (s faulty) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	if err := s.failure(ctx, r.Key); err != nil {
		return state.Item{}, err
	}
	return s.Store.Get(ctx, r)
}

func (s faulty) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	for _, item := range r.Items {
		if err := s.failure(ctx, item.Key); err != nil {
			return state.Written{}, err
		}
	}
	return s.Store.Set(ctx, r)
}

func (s faulty) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	if err := s.failure(ctx, r.Key); err != nil {
		return state.Written{}, err
	}
	return s.Store.Delete(ctx, r)
}

func (s faulty) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	for _, operation := range r.Operations {
		if err := s.failure(ctx, operation.Key); err != nil {
			return state.Written{}, err
		}
	}
	return s.Store.(state.Transactor).Transact(ctx, r)
}

func (s faulty) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	if err := s.failure(ctx, r.Prefix); err != nil {
		return state.Page{}, err
	}
	return s.Store.(state.Lister).List(ctx, r)
}

// nodeHealth is a node's state of health as a test sets it.
type nodeHealth struct {
	starting, outbound []api.Reason
	checks             []api.Check
}

func (h *nodeHealth) Starting() []api.Reason                { return h.starting }
func (h *nodeHealth) OutboundStarting() []api.Reason        { return h.outbound }
func (h *nodeHealth) Readiness(context.Context) []api.Check { return h.checks }

type nodeInfo struct{}

func (nodeInfo) Describe() api.Description {
	return api.Description{
		RuntimeVersion: "1.2.3",
		Features:       []string{"Listing"},
		Components: []api.ComponentInfo{
			{Name: "orders", Type: "state.in-memory", Version: "v1", Capabilities: []string{"ETAG", "TRANSACTIONAL", "TTL"}},
			{Name: "bare", Type: "bindings.cron", Version: "v1"},
		},
		HTTPEndpoints: []string{"partner"},
		Channel:       api.AppChannel{Port: 8080, Protocol: "http", Address: "127.0.0.1", MaxConcurrency: 5},
		Actors:        api.ActorRuntime{Status: "DISABLED"},
	}
}

// do carries out one request and returns status, header and body.
func do(t testing.TB, method, url, body string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

// dial opens a raw connection to a base address.
func dial(t testing.TB, base string) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}
