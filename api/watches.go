package api

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
)

// The limits of watches.
const (
	DefaultListenerWatches = 256
	DefaultNodeWatches     = 4096
)

// Watches counts the watches of a node and ends them when the node stops. Its metrics have no series until the first
// watch. It is safe for concurrent use.
type Watches struct {
	stop context.Context // ends when the node stops
	end  context.CancelFunc

	mu       sync.Mutex
	all      int
	perState map[*State]int
	active   map[*watchEntry]state.Watch
	open     *prometheus.GaugeVec
	events   *prometheus.CounterVec
	ends     *prometheus.CounterVec
}

// NewWatches returns the watches of a node.
func NewWatches() *Watches {
	stop, end := context.WithCancel(context.Background())
	return &Watches{stop: stop, end: end, perState: map[*State]int{}, active: map[*watchEntry]state.Watch{},
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_watches",
			Help: "Watches that are open."}, []string{"store"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_watch_events_total",
			Help: "Changes and items delivered to watchers."}, []string{"store"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_watch_ends_total",
			Help: "Watches that ended or were refused, by reason."}, []string{"store", "reason"}),
	}
}

// Collectors returns the metrics of the watches.
func (w *Watches) Collectors() []prometheus.Collector {
	return []prometheus.Collector{w.open, w.events, w.ends, lag{w}}
}

// lag computes the metric quorate_watch_lag_revisions when the metrics are collected.
type lag struct{ watches *Watches }

func lagDesc() *prometheus.Desc {
	return prometheus.NewDesc("quorate_watch_lag_revisions",
		"Revisions by which the watcher that is furthest behind is behind the newest change on this node.",
		[]string{"store"}, nil)
}

// Describe implements prometheus.Collector.
func (l lag) Describe(to chan<- *prometheus.Desc) { to <- lagDesc() }

// Collect implements prometheus.Collector.
func (l lag) Collect(to chan<- prometheus.Metric) {
	behind := map[string]uint64{}
	l.watches.mu.Lock()
	for e, w := range l.watches.active {
		newest, pos := w.Newest(), e.pos.Load()
		behind[e.store] = max(behind[e.store], max(newest, pos)-pos)
	}
	l.watches.mu.Unlock()
	for store, n := range behind {
		to <- prometheus.MustNewConstMetric(lagDesc(), prometheus.GaugeValue, float64(n), store)
	}
}

// Close ends all watches with state.WatchClosing, and refuses new ones.
func (w *Watches) Close() {
	w.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.active {
		if e.wake != nil {
			e.wake()
		}
	}
}

// Observe makes the service count its watches in w, and returns s. All services of the node share w. Observe must be
// called before the first request.
func (s *State) Observe(w *Watches) *State {
	s.watches = w
	return s
}

// watchEntry is one counted watch.
type watchEntry struct {
	watches *Watches
	state   *State
	store   string
	pos     atomic.Uint64 // revision up to which the watcher has read
	events  prometheus.Counter
	wake    func() // called when the node stops; nil = none; guarded by watches.mu
}

// onClose sets the function that Watches.Close calls.
func (e *watchEntry) onClose(f func()) {
	e.watches.mu.Lock()
	defer e.watches.mu.Unlock()
	e.wake = f
}

// watch records the started watch w, so that the metric of the lag includes it.
func (e *watchEntry) watch(w state.Watch) {
	e.pos.Store(w.Position().Revision)
	e.watches.mu.Lock()
	defer e.watches.mu.Unlock()
	e.watches.active[e] = w
}

func (w *Watches) enter(s *State, store string) (*watchEntry, *Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop.Err() != nil {
		return nil, tooManyWatches(store, "the node stops", ReasonNotReady)
	}
	if w.all >= DefaultNodeWatches || w.perState[s] >= DefaultListenerWatches {
		return nil, tooManyWatches(store, "there are "+strconv.Itoa(w.perState[s])+" watches of this application and "+
			strconv.Itoa(w.all)+" of this node; the limits are "+strconv.Itoa(DefaultListenerWatches)+" and "+
			strconv.Itoa(DefaultNodeWatches), ReasonOverloaded)
	}
	w.all++
	w.perState[s]++
	w.open.WithLabelValues(store).Inc()
	return &watchEntry{watches: w, state: s, store: store, events: w.events.WithLabelValues(store)}, nil
}

func tooManyWatches(store, text, reason string) *Error {
	return &Error{Kind: Unavailable, Code: CodeWatch, Message: "watch of state store " + store + ": " + text,
		Details: Details{Reason: reason, Store: store}}
}

func (e *watchEntry) leave(reason string) {
	w := e.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all--
	delete(w.active, e)
	if w.perState[e.state]--; w.perState[e.state] == 0 {
		delete(w.perState, e.state)
	}
	w.open.WithLabelValues(e.store).Dec()
	w.ends.WithLabelValues(e.store, reason).Inc()
}

func (e *watchEntry) count(events int) {
	if events > 0 {
		e.events.Add(float64(events))
	}
}

// context returns a context that ends with ctx, or when the node stops.
func (e *watchEntry) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.watches.stop, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

func (e *watchEntry) closing() bool { return e.watches.stop.Err() != nil }
