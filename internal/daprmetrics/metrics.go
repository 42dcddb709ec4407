package daprmetrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/pathpattern"
)

// Options configure the metrics.
type Options struct {
	App          string    // id of the first application of the node
	Namespace    string    // namespace of the node; empty = none, and the label is empty
	Buckets      []float64 // upper bounds of latencies in milliseconds; nil = Dapr's
	Paths        bool      // label HTTP requests with their paths
	ExcludeVerbs bool      // leave the label method of HTTP requests empty
	ErrorCodes   bool      // count the errors of the API by their code

	Patterns pathpattern.Set // a request whose path fits a pattern has this pattern as its label, even without Paths
}

// DefaultBuckets returns the upper bounds of Dapr's latency histograms, in milliseconds.
func DefaultBuckets() []float64 {
	return []float64{1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200, 250, 300, 400,
		500, 650, 800, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000}
}

// sizeBuckets returns the upper bounds of Dapr's size histograms, in bytes.
func sizeBuckets() []float64 {
	return []float64{1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20,
		256 << 20, 1 << 30, 4 << 30}
}

// Metrics are the metrics of a node. They are safe for concurrent use.
type Metrics struct {
	registry prometheus.Registerer
	paths    *bounded
	methods  *bounded

	activities *bounded
	topics     *bounded
	codes      *bounded // error codes; a proxied application may choose any code
	now        atomic.Pointer[series]
}

// series are the time series with one set of options. The fields do not change.
type series struct {
	options  Options
	counters map[string]*prometheus.CounterVec // empty if nothing is exported; the other fields are then empty too
	spreads  map[string]*prometheus.HistogramVec
	circuits *prometheus.GaugeVec
	all      []prometheus.Collector
}

// New creates the metrics and registers them. If o is nil, no metrics are exported until Change sets options. New
// returns fault.Internal if the metrics are already registered.
func New(o *Options, reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{registry: reg, paths: newBounded(), methods: newBounded(), codes: newBounded(),
		activities: newBounded(), topics: newBounded()}
	m.now.Store(&series{})
	return m, m.Change(o)
}

// Change replaces the options. If o is nil, nothing is exported. All metrics start at zero again. Change returns
// fault.Internal if the metrics cannot be registered. Calls must not be concurrent.
func (m *Metrics) Change(o *Options) error {
	next := &series{}
	if o != nil {
		next = newSeries(*o)
	}
	for _, c := range m.now.Swap(next).all {
		m.registry.Unregister(c)
	}
	for _, c := range next.all {
		if err := m.registry.Register(c); err != nil {
			return fault.Wrap(err, "daprmetrics.Change", "registering metrics")
		}
	}
	return nil
}

func newSeries(o Options) *series {
	if o.Buckets == nil {
		o.Buckets = DefaultBuckets()
	}
	m := &series{options: o, counters: map[string]*prometheus.CounterVec{},
		spreads: map[string]*prometheus.HistogramVec{},
		circuits: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: circuitState,
			Help: "1 for the state that a circuit breaker is in, 0 for the others."}, resiliencyLabels()),
	}
	m.all = []prometheus.Collector{m.circuits}
	for _, s := range specs() {
		if s.kind == count {
			m.counters[s.name] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: s.name, Help: s.help}, s.labels)
			m.all = append(m.all, m.counters[s.name])
			continue
		}
		buckets := o.Buckets
		if s.kind == size {
			buckets = sizeBuckets()
		}
		m.spreads[s.name] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: s.name, Help: s.help,
			Buckets: buckets}, s.labels)
		m.all = append(m.all, m.spreads[s.name])
	}
	return m
}

// options returns the current options.
func (m *Metrics) options() *Options { return &m.now.Load().options }

// inc counts one event. labels are in the order of the labels of the metric's spec.
func (m *Metrics) inc(name string, labels ...string) {
	if c := m.now.Load().counters[name]; c != nil {
		c.WithLabelValues(labels...).Inc()
	}
}

// latency records a duration in whole milliseconds, as Dapr does.
func (m *Metrics) latency(name string, took time.Duration, labels ...string) {
	m.observe(name, float64(took.Milliseconds()), labels)
}

func (m *Metrics) size(name string, bytes int64, labels ...string) {
	m.observe(name, float64(max(bytes, 0)), labels)
}

func (m *Metrics) observe(name string, value float64, labels []string) {
	if h := m.now.Load().spreads[name]; h != nil {
		h.WithLabelValues(labels...).Observe(value)
	}
}

// App returns the metrics of one application. It returns nil if m is nil.
func (m *Metrics) App(id string) *App {
	if m == nil {
		return nil
	}
	return &App{metrics: m, id: id}
}
