package apitest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/records"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

// ConfigurationCatalogue implements configurations.Stores.
type ConfigurationCatalogue struct {
	List  []*configuration.Instance
	Ready bool
}

// newConfigurations returns these stores:
//
//	items    in memory; the application may write it
//	fixed    in memory; the application may not write it
//	outside  cannot be written
//	faulty   every operation fails
//	foreign  belongs to another application
func newConfigurations(t testing.TB) *ConfigurationCatalogue {
	t.Helper()
	store := func() configuration.Store {
		s := records.New(records.Options{Backing: inmemory.Open(inmemory.Options{}),
			Logger: slog.New(slog.DiscardHandler)})
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	return &ConfigurationCatalogue{Ready: true, List: []*configuration.Instance{
		{Name: "items", Type: "configuration.in-memory", Writers: []string{"shop"}, Store: store()},
		{Name: "fixed", Type: "configuration.in-memory", Store: store()},
		{Name: "outside", Type: "configuration.test", Writers: []string{"shop"}, Store: readOnly{store()}},
		{Name: "faulty", Type: "configuration.test", Store: faultyConfiguration{}},
		{Name: "foreign", Type: "configuration.in-memory", Scopes: []string{"another"}, Store: store()},
	}}
}

// readOnly hides the method Write of a store.
type readOnly struct{ configuration.Store }

type faultyConfiguration struct{}

func (faultyConfiguration) err() error {
	return fault.New(fault.Internal, "test", "the connection was refused")
}

// Get implements configuration.Store.
func (f faultyConfiguration) Get(context.Context, configuration.GetRequest) (configuration.Found, error) {
	return configuration.Found{}, f.err()
}

// Subscribe implements configuration.Store.
func (f faultyConfiguration) Subscribe(context.Context, configuration.SubscribeRequest) (configuration.Subscription,
	error) {
	return nil, f.err()
}

// Close implements configuration.Store.
func (f faultyConfiguration) Close() error { return nil }

// ConfigurationStore implements configurations.Stores.
func (c *ConfigurationCatalogue) ConfigurationStore(name string) (*configuration.Instance, bool) {
	for _, i := range c.List {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// ConfigurationStores implements configurations.Stores.
func (c *ConfigurationCatalogue) ConfigurationStores() []*configuration.Instance { return c.List }

// Loaded implements configurations.Stores.
func (c *ConfigurationCatalogue) Loaded() bool { return c.Ready }

// NoPolicies implements configurations.Policies. No store has a policy.
type NoPolicies struct{}

// Outbound implements configurations.Policies.
func (NoPolicies) Outbound(string) *resiliency.Policy { return nil }

// Inbound implements configurations.Policies.
func (NoPolicies) Inbound(string) *resiliency.Policy { return nil }

// Notice is one notification of an application about a change.
type Notice struct{ Store, Key, Body string }

// Listener is a configurations.Receiver that sends the notifications to Notices. It is safe for concurrent use.
type Listener struct {
	Notices chan Notice

	mu      sync.Mutex
	refuse  int
	offline bool
}

// Refuse makes the next n calls of Notify fail.
func (l *Listener) Refuse(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = n
}

// Offline makes the application unhealthy if offline is true, and healthy otherwise.
func (l *Listener) Offline(offline bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offline = offline
}

// Healthy implements configurations.Receiver.
func (l *Listener) Healthy() (bool, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.offline, "it is offline"
}

// Notify implements configurations.Receiver.
func (l *Listener) Notify(ctx context.Context, store, key string, body []byte) error {
	l.mu.Lock()
	l.refuse--
	refused := l.refuse >= 0
	l.mu.Unlock()
	if refused {
		return fault.New(fault.Internal, "test", "the application answered 500")
	}
	select {
	case l.Notices <- Notice{store, key, strings.Clone(string(body))}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
