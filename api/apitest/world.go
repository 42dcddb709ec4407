// Package apitest provides World, a fake node for tests of the HTTP and gRPC servers. The tests of both servers use the
// same data. The package owns the fake stores, secrets and bindings of a World.
//
// A World has several stores, secret stores and bindings, each for one behaviour under test. The package is independent
// of HTTP and gRPC, and has no goroutines.
package apitest

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/workflow/workflowtest"
	"github.com/quorate/quorate/internal/fault"
)

// World is the fake node of one test. It has these state stores:
//
//	orders   in memory, supports everything; holds the actor state
//	shared   in memory, keyPrefix none
//	small    in memory, values of at most 16 bytes
//	plain    in memory, without transactions, bulk reads or listing
//	faulty   fails with the code in the key; see the type faulty
//
// A test must change the World before it starts a server. Only Health may change later.
type World struct {
	Stores         *Stores
	Secrets        *Secrets
	Locks          *LockCatalogue
	Configurations *ConfigurationCatalogue
	PubSubs        *PubSubCatalogue
	Workflows      *workflowtest.Memory
	Health         *Health
	Metrics        *prometheus.Registry
	Log            *Log
	Stopped        chan bool // receives the argument of each Shutdown

	App            api.App
	Tokens         *api.Tokens
	MaxBodySize    int64
	RequestTimeout time.Duration
}

// New creates a World. When the test ends, its stores are closed.
func New(t testing.TB) *World {
	t.Helper()
	newStore := func() *inmemory.Store {
		store := inmemory.Open(inmemory.Options{})
		t.Cleanup(func() { _ = store.Close() })
		return store
	}
	orders := Instance("orders", newStore())
	orders.ActorStore = true
	shared := Instance("shared", newStore())
	shared.KeyPrefix, _ = state.ParseKeyPrefix("none")
	small := Instance("small", state.WithSettings(newStore(), state.Settings{MaxValueSize: 16}))
	engine := workflowtest.NewMemory()
	t.Cleanup(engine.Close)
	return &World{
		Stores: &Stores{Ready: true, List: []*state.Instance{
			Instance("faulty", faulty{newStore()}), orders, Instance("plain", plainStore{newStore()}), shared, small,
		}},
		Secrets: newSecrets(), Locks: newLocks(),
		Configurations: newConfigurations(t), PubSubs: newPubSubs(t), Workflows: engine,
		Health: &Health{}, Metrics: prometheus.NewRegistry(), Log: &Log{},
		Stopped: make(chan bool, 1),
		App:     api.App{ID: "shop"}, RequestTimeout: time.Minute,
	}
}

// Services are the services of the application of a World.
type Services struct {
	State          *api.State
	Actors         *actors.Service
	Secrets        *api.Secrets
	Bindings       *api.Bindings
	Locks          *api.Locks
	Jobs           *api.Jobs
	Configurations *configurations.Service
	Topics         *pubsub.Service
	Workflows      *workflows.Service
	Health         *api.Health
	Metadata       *api.Metadata
	Shutdown       func(force bool)
	Logger         *slog.Logger
}

// Services returns services with the current settings of the World.
func (w *World) Services() Services {
	return Services{
		State: api.NewState(w.App, w.Stores, api.Limits{}).Fence(w.Locks),
		Actors: actors.NewService(w.App, actors.NewRuntime(actors.Options{
			HostWait: time.Millisecond, Directories: noActors{}, Reminders: noActors{}, Plan: noPlan,
			Metrics: actors.NewMetrics(prometheus.NewRegistry())})),
		Secrets:  api.NewSecrets(w.App, w.Secrets),
		Bindings: api.NewBindings(w.App, outside{}, nil),
		Locks:    api.NewLocks(w.App, w.Locks),
		Jobs:     api.NewJobs(w.App, &JobStore{}),
		Configurations: configurations.New(configurations.Options{App: w.App, Stores: w.Configurations,
			Policies: NoPolicies{}, Metrics: configurations.NewMetrics(), Logger: slog.New(slog.DiscardHandler)}),
		Topics:    pubsub.New(pubsub.Options{App: w.App, Source: w.PubSubs}),
		Workflows: workflows.New(workflows.Options{App: w.App, Engine: w.Workflows}),
		Health:    api.NewHealth(w.App, w.Health),
		Metadata:  api.NewMetadata(w.App, nodeInfo{}, api.Limits{}),
		Shutdown:  func(force bool) { w.Stopped <- force },
		Logger:    slog.New(slog.NewTextHandler(w.Log, nil)),
	}
}

// Adapt changes the World to the state that it had when the given transcript was recorded. For example, for "no-stores"
// it removes all state stores. For an unknown name, it changes nothing.
func (w *World) Adapt(transcript string) {
	switch transcript {
	case "token":
		w.Tokens = Tokens("old token", "new token")
	case "body-size":
		w.MaxBodySize = 64
	case "no-stores":
		w.Stores.List = nil
	case "starting":
		w.Stores.List, w.Stores.Ready = nil, false
	case "secrets-none":
		w.Secrets.List = w.Secrets.List[len(w.Secrets.List)-1:]
	case "configuration-none":
		w.Configurations.List = w.Configurations.List[len(w.Configurations.List)-1:]
	case "locks-none":
		w.Locks.List = nil
	case "secrets-starting":
		w.Secrets.List, w.Secrets.Ready = nil, false
	case "timeouts", "secrets-timeouts":
		w.RequestTimeout = 50 * time.Millisecond
	case "no-actor-store":
		for _, inst := range w.Stores.List {
			inst.ActorStore = false
		}
	case "not-ready":
		starting := []api.Reason{{Name: "component orders", Text: "connection refused"},
			{Name: "application", Text: "port 8080 is not open"}}
		w.Health.Start(starting, starting[:1])
		w.Health.Check(api.Check{Kind: "store", Name: "orders", Reason: "not open"})
	case "degraded":
		w.Health.Check(api.Check{Kind: "store", Name: "orders", Reads: true, Writes: true},
			api.Check{Kind: "group", Name: "0", Reads: true, Reason: "1 of 3 voters answer"})
	case "unplaced":
		w.Health.Unplace(api.Reason{Name: "vote in group 0", Text: "n3 does not vote yet: 2 of 3 votes are given"})
	}
}

// Health is an api.NodeHealth whose results a test chooses. The zero value reports that the start of the node is
// complete. A Health is safe for concurrent use.
type Health struct {
	mu                 sync.Mutex
	starting, outbound []api.Reason
	checks             []api.Check
	unplaced           []api.Reason
}

// Start sets the results of Starting and OutboundStarting.
func (h *Health) Start(starting, outbound []api.Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starting, h.outbound = starting, outbound
}

// Check sets the result of Readiness.
func (h *Health) Check(checks ...api.Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = checks
}

// Unplace sets the result of Unplaced.
func (h *Health) Unplace(reasons ...api.Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unplaced = reasons
}

// Starting implements api.NodeHealth.
func (h *Health) Starting() []api.Reason {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.starting
}

// OutboundStarting implements api.NodeHealth.
func (h *Health) OutboundStarting() []api.Reason {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.outbound
}

// Readiness implements api.NodeHealth.
func (h *Health) Readiness(context.Context) []api.Check {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.checks
}

// Unplaced implements api.NodeHealth.
func (h *Health) Unplaced() []api.Reason {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unplaced
}

type nodeInfo struct{}

func (nodeInfo) Describe() api.Description {
	return api.Description{
		RuntimeVersion: "1.2.3",
		Features:       []string{"Listing"},
		Components: []api.ComponentInfo{
			{Name: "orders", Type: "state.in-memory", Version: "v1",
				Capabilities: []string{"ETAG", "TRANSACTIONAL", "TTL"}},
			{Name: "bare", Type: "bindings.cron", Version: "v1"},
		},
		HTTPEndpoints: []string{"partner"},
		Subscriptions: []api.SubscriptionInfo{
			{PubSub: "pubsub", Topic: "orders", Metadata: map[string]string{"rawPayload": "true"}, DeadLetter: "failed",
				Rules: []api.SubscriptionRule{{Match: `event.type == "gold"`, Path: "/gold"}, {Path: "/orders"}},
				Kind:  "DECLARATIVE"},
			{PubSub: "pubsub", Topic: "bare", Kind: "STREAMING"},
		},
		Channel: api.AppChannel{Port: 8080, Protocol: "http", Address: "127.0.0.1", MaxConcurrency: 5,
			Health: &api.AppHealth{Path: "/healthz", Interval: 5 * time.Second, Timeout: 500 * time.Millisecond,
				Threshold: 3}},
		Actors: api.ActorRuntime{Status: "DISABLED"},
	}
}

// Log collects log output. It is safe for concurrent use. The zero value is empty.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write adds to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns everything that was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Tokens returns API tokens. It panics if an element of list is empty.
func Tokens(list ...string) *api.Tokens {
	t, err := api.NewTokens(list)
	if err != nil {
		panic(err)
	}
	return t
}

// noActors is a cluster in which no node hosts actors and no reminders exist.
type noActors struct{}

// Claim implements actors.Directories.
func (noActors) Claim(context.Context, string, string) (actors.Directory, error) {
	return nil, fault.New(fault.Unavailable, "apitest", "there is no directory of actors")
}

// Find implements actors.Directories.
func (noActors) Find(context.Context, string, string) (api.App, actors.Directory, error) {
	return api.App{}, nil, fault.New(fault.NotFound, "apitest", "no application hosts actors")
}

// Put implements actors.Reminders.
func (noActors) Put(context.Context, string, *actors.Reminder, bool) error {
	return fault.New(fault.NotFound, "apitest", "no application hosts actors")
}

// Get implements actors.Reminders.
func (noActors) Get(context.Context, string, api.Actor, string) (actors.Reminder, bool, error) {
	return actors.Reminder{}, false, nil
}

// List implements actors.Reminders.
func (noActors) List(context.Context, string, api.Actor, string) ([]actors.Reminder, string, error) {
	return nil, "", nil
}

// RemoveAll implements actors.Reminders.
func (noActors) RemoveAll(context.Context, string, api.Actor) error { return nil }

// Remove implements actors.Reminders.
func (noActors) Remove(context.Context, string, api.Actor, string) error { return nil }

// noPlan is the plan of a timer that never ticks.
func noPlan(*actors.Reminder) (actors.Plan, error) { return nil, nil }
