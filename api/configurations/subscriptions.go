package configurations

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lifecycle"
)

// MaxSubscriptions is the maximum number of configuration subscriptions of one application at one node.
const MaxSubscriptions = 128

// Options are the dependencies of a Service. All fields are required, except Callee, Sessions and Receiver. Without a
// Receiver, SubscribeCallback returns an error.
type Options struct {
	App      api.App
	Callee   api.App // the application whose sessions the requests use
	Stores   Stores
	Policies Policies
	Sessions *api.Sessions // nil = none
	Receiver Receiver
	Metrics  *Metrics
	Logger   *slog.Logger
}

// Receiver is an application that the node notifies of configuration changes. Implementations are safe for
// concurrent use.
type Receiver interface {
	// Healthy reports whether the application accepts calls, and otherwise why not.
	Healthy() (bool, string)
	// Notify sends a change of a key. A nil error means that the application has handled it.
	Notify(ctx context.Context, store, key string, body []byte) error
}

// Metrics are the metrics of configuration subscriptions at this node. They have no series until the first
// subscription.
type Metrics struct {
	open   *prometheus.GaugeVec
	events *prometheus.CounterVec
}

// NewMetrics returns the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_configuration_subscriptions",
			Help: "Subscriptions to configuration items that are open."}, []string{"store", "protocol"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_configuration_events_total",
			Help: "Changes of configuration items sent to applications. The outcome failed means that the " +
				"application did not take the change, which is then sent again."}, []string{"store", "outcome"}),
	}
}

// Collectors returns the metrics.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.open, m.events}
}

// Protocols of subscriptions. A client can end a subscription only over the protocol with which it was started.
const (
	subscribedHTTP = "http"
	subscribedGRPC = "grpc"
)

// subscriptions are the subscriptions of one application.
type subscriptions struct {
	stop    context.Context // ends with the service
	end     context.CancelFunc
	running lifecycle.Tracker

	mu   sync.Mutex
	open map[string]*Stream // by id
}

func (s *subscriptions) init() {
	s.stop, s.end = context.WithCancel(context.Background())
	s.open = map[string]*Stream{}
}

// Stream is a subscription. Only one goroutine may use Next.
type Stream struct {
	ID       string // over HTTP, renew changes it and subscriptions.mu guards it
	service  *Service
	store    string
	protocol string
	identity string // subscriptions with the same identity have the same keys and metadata
	request  configuration.SubscribeRequest
	current  configuration.Subscription
	works    bool // the store has subscribed; subscriptions.mu guards it
	ctx      context.Context
	cancel   context.CancelFunc
	once     sync.Once

	// known has the keys whose deletion an HTTP subscription must still report: those that existed at its start or
	// were reported as changed. It is nil for a gRPC subscription.
	known map[string]bool
}

// Subscribe starts a subscription over gRPC. The caller must call Close.
func (c *Service) Subscribe(ctx context.Context, r Request) (*Stream, error) {
	return c.subscribe(ctx, r, subscribedGRPC)
}

func (c *Service) subscribe(ctx context.Context, r Request, protocol string) (*Stream, error) {
	inst, failure := c.store(r.Store)
	if failure != nil {
		return nil, failure
	}
	if failure := checkKeys(r.Keys); failure != nil {
		return nil, failure
	}
	initial := false
	if text := r.Metadata[metadataInitial]; text != "" {
		var err error
		if initial, err = strconv.ParseBool(text); err != nil {
			return nil, api.MalformedRequest("metadata.initial must be true or false")
		}
	}
	s := &Stream{ID: uuid.NewString(), service: c, store: inst.Name, protocol: protocol,
		identity: identityOf(&r),
		request:  configuration.SubscribeRequest{Keys: slices.Clone(r.Keys), Initial: initial, Metadata: r.Metadata}}
	if failure := c.subscriptions.add(s); failure != nil {
		return nil, failure
	}
	c.options.Metrics.open.WithLabelValues(s.store, protocol).Inc()
	var err error
	if s.current, err = inst.Store.Subscribe(ctx, s.request); err != nil {
		s.Close()
		return nil, failed(api.CodeConfigurationSubscribe, "failed to subscribe to", inst.Name, err)
	}
	c.subscriptions.replace(s)
	return s, nil
}

// identityOf returns the identity of a subscription as a string. Two subscriptions have the same identity if they have
// the same store, keys and metadata. The order of the keys does not matter.
func identityOf(r *Request) string {
	keys := slices.Clone(r.Keys)
	slices.Sort(keys)
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q", r.Store, slices.Compact(keys))
	for _, name := range slices.Sorted(maps.Keys(r.Metadata)) {
		fmt.Fprintf(&b, " %q=%q", name, r.Metadata[name])
	}
	return b.String()
}

// add registers a new subscription. It returns an error if the node is stopping, or if the application already has
// MaxSubscriptions and the new subscription will replace none of them.
func (s *subscriptions) add(added *Stream) *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop.Err() != nil {
		return errStopping(added.store)
	}
	if len(s.open) >= MaxSubscriptions && len(s.identicalTo(added)) == 0 {
		return &api.Error{Kind: api.Unavailable, Code: api.CodeConfigurationSubscribe,
			Details: api.Details{Reason: api.ReasonOverloaded},
			Message: "the application has " + strconv.Itoa(len(s.open)) +
				" subscriptions to configuration items, which is the limit (unsubscribe some)"}
	}
	added.ctx, added.cancel = context.WithCancel(s.stop)
	s.open[added.ID] = added
	return nil
}

func errStopping(store string) *api.Error {
	return failed(api.CodeConfigurationSubscribe, "failed to subscribe to", store,
		fault.New(fault.Unavailable, "configurations.Subscribe", "the node stops"))
}

// identicalTo returns the other HTTP subscriptions with the same identity as the given subscription. If the given
// subscription uses gRPC, the result is empty. The caller must hold s.mu.
func (s *subscriptions) identicalTo(one *Stream) (found []*Stream) {
	for _, other := range s.open {
		if other != one && one.protocol == subscribedHTTP && other.protocol == one.protocol &&
			other.identity == one.identity {
			found = append(found, other)
		}
	}
	return found
}

// replace records that the store has accepted a new subscription. It then ends identical subscriptions that the store
// accepted before, so that only one remains.
func (s *subscriptions) replace(added *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	added.works = true
	for _, other := range s.identicalTo(added) {
		if other.works {
			delete(s.open, other.ID)
			other.cancel()
		}
	}
}

// Close ends the subscription. It is idempotent.
func (s *Stream) Close() {
	s.once.Do(func() {
		s.cancel()
		if s.current != nil {
			s.current.Close()
		}
		s.service.options.Metrics.open.WithLabelValues(s.store, s.protocol).Dec()
		all := &s.service.subscriptions
		all.mu.Lock()
		defer all.mu.Unlock()
		delete(all.open, s.ID)
	})
}

// Next waits for changes and returns them. It returns early if ctx, the context of the client's connection, ends.
// After Unsubscribe, it returns no items and no error.
func (s *Stream) Next(ctx context.Context) ([]configuration.Item, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	items, err := s.next(ctx)
	switch {
	case err == nil:
		s.service.options.Metrics.events.WithLabelValues(s.store, "ok").Add(float64(len(items)))
		return items, nil
	case s.service.subscriptions.stop.Err() != nil:
		err = fault.New(fault.Unavailable, "configurations.Subscribe", "the node stops; subscribe at another node")
	case s.ctx.Err() != nil:
		return nil, nil
	}
	if failure, ok := err.(*api.Error); ok { //nolint:errorlint // never wrapped
		return nil, failure
	}
	return nil, failed(api.CodeConfigurationSubscribe, "the subscription ended:", s.store, err)
}

// The pauses between attempts to subscribe again.
const (
	firstResubscribe = 100 * time.Millisecond
	lastResubscribe  = 5 * time.Second
)

// Overflow returns a context that ends when changes are dropped because too many changes wait. The context is valid
// until the next call of Next.
func (s *Stream) Overflow() context.Context { return s.current.Overflow() }

// next waits for changes and returns them. It subscribes to the store again in two cases:
//
//   - The component of the store was replaced.
//   - The subscription uses HTTP, and changes were dropped because too many waited.
//
// After a new subscription, next returns the current items, and deletions for the keys that no longer exist. If changes
// of a gRPC subscription were dropped, next returns fault.Overloaded.
func (s *Stream) next(ctx context.Context) ([]configuration.Item, error) {
	for {
		items, err := s.current.Next(ctx)
		overflowed := fault.Is(err, fault.Overloaded)
		if err == nil {
			s.note(items)
			return items, nil
		}
		if ctx.Err() != nil || (overflowed && s.protocol == subscribedGRPC) {
			return items, err
		}
		if overflowed {
			s.service.options.Logger.Warn("changes of configuration items were dropped, and the current items are "+
				"sent again", "app_id", s.service.options.App.ID, "store", s.store, "error", fault.Text(err))
		}
		before := s.expected()
		s.current.Close()
		for pause := firstResubscribe; ; pause = min(2*pause, lastResubscribe) {
			inst, failure := s.service.store(s.store)
			if failure != nil {
				return nil, failure
			}
			request := s.request
			request.Initial = true
			again, err := inst.Store.Subscribe(ctx, request)
			if err == nil {
				if items, err = firstOf(ctx, inst.Store, again, before); err == nil {
					s.current = again
					if s.note(items); len(items) > 0 {
						return items, nil
					}
					break
				}
				again.Close()
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(pause):
			}
		}
	}
}

// expect records the keys that exist at the start of an HTTP subscription. If changes are dropped later, the
// subscription can still report which of these keys were deleted.
func (s *Stream) expect() {
	s.known = map[string]bool{}
	for _, key := range s.current.Present() {
		s.known[key] = true
	}
}

// note updates the known keys of an HTTP subscription. It adds the keys of changed items, and removes the keys of
// deleted items.
func (s *Stream) note(items []configuration.Item) {
	if s.known == nil {
		return
	}
	for i := range items {
		if items[i].Deleted() {
			delete(s.known, items[i].Key)
		} else {
			s.known[items[i].Key] = true
		}
	}
}

// expected returns the keys of which the subscriber must assume that they exist. If one of these keys is no longer in
// the store, the subscription must report its deletion.
func (s *Stream) expected() []string {
	keys := slices.AppendSeq(s.current.Present(), maps.Keys(s.known))
	slices.Sort(keys)
	return slices.Compact(keys)
}

// firstOf returns the first changes after a resubscription: the current items, and a deletion for each expected key
// that is no longer in the store. If an item is deleted while firstOf runs, the new subscription reports the deletion
// later.
func firstOf(ctx context.Context, store configuration.Store, again configuration.Subscription,
	expected []string) ([]configuration.Item, error) {
	waiting, cancel := context.WithCancel(ctx)
	cancel() // Next returns what waits, and does not wait for more
	items, err := again.Next(waiting)
	if err != nil && !fault.Is(err, fault.Timeout) {
		return nil, err
	}
	current := make(map[string]bool, len(items))
	for i := range items {
		current[items[i].Key] = true
	}
	missing := slices.DeleteFunc(slices.Clone(expected), func(key string) bool { return current[key] })
	gone, err := deletedOf(ctx, store, missing)
	return append(gone, items...), err
}

// deletedOf looks up the given keys in the store. For each key that does not exist, it returns an item that reports the
// deletion of the key.
func deletedOf(ctx context.Context, store configuration.Store, keys []string) ([]configuration.Item, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	found, err := store.Get(ctx, configuration.GetRequest{Keys: keys, Strong: true})
	if err != nil {
		return nil, err
	}
	exists := make(map[string]bool, len(found.Items))
	for i := range found.Items {
		exists[found.Items[i].Key] = true
	}
	var out []configuration.Item
	for _, k := range keys {
		if !exists[k] {
			out = append(out, configuration.Item{Key: k})
		}
	}
	return out, nil
}

// Unsubscribe ends a subscription over gRPC. It returns false if the store has no subscription over gRPC with that id.
func (c *Service) Unsubscribe(store, id string) (bool, error) {
	return c.unsubscribe(store, id, subscribedGRPC)
}

func (c *Service) unsubscribe(store, id, protocol string) (bool, error) {
	if _, failure := c.store(store); failure != nil {
		return false, failure
	}
	all := &c.subscriptions
	all.mu.Lock()
	defer all.mu.Unlock()
	one := all.open[id]
	if one == nil || one.store != store || one.protocol != protocol {
		return false, nil
	}
	delete(all.open, id)
	one.cancel()
	return true, nil
}

// Close ends all subscriptions, and waits for those that call the application.
func (c *Service) Close() {
	c.subscriptions.mu.Lock()
	c.subscriptions.end()
	c.subscriptions.mu.Unlock()
	c.subscriptions.running.Close()
}
