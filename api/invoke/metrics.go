package invoke

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
)

// Metrics are the metrics of calls to applications. Known applications appear in the labels with their ids, and all
// other applications as "unknown".
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	retries  *prometheus.CounterVec
	denied   *prometheus.CounterVec
	circuits *prometheus.CounterVec
	known    func(api.App) bool
	observer Observer // nil = none
	kept     sync.Map // *invokeSeries by invokeLabels
}

// NewMetrics creates and registers the metrics. known reports whether an application gets its own time series. All
// other applications share the label "unknown". If known is nil, every application gets its own time series.
func NewMetrics(reg prometheus.Registerer, known func(api.App) bool) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		requests: counter("quorate_invoke_requests_total",
			"Calls of applications, where they begin (hop caller) and where they are served (hop callee), by class "+
				"of the answer's status; error means that none came.", "hop", "source", "target", "status"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "quorate_invoke_duration_seconds",
			Help:    "Time until the headers of the answer came, retries included.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"hop", "source", "target"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_invoke_in_flight",
			Help: "Calls whose answer has not begun."}, []string{"hop", "target"}),
		retries: counter("quorate_invoke_retries_total", "Attempts after the first, by target.", "target"),
		denied: counter("quorate_invoke_denied_total",
			"Calls refused by access control, at the node of the target.", "source", "target"),
		circuits: counter("quorate_invoke_circuit_changes_total",
			"Changes of the circuit breakers of applications, by the new state.", "target", "state"),
		known: known,
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.retries, m.denied, m.circuits} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Report sets the observer of the measured calls. If o is nil, there is no observer. Report must be called before the
// first call.
func (m *Metrics) Report(o Observer) { m.observer = o }

// label returns the label of an application, or "unknown".
func (m *Metrics) label(app api.App) string {
	if m.known == nil || m.known(app) {
		return app.String()
	}
	return "unknown"
}

// The values of the label hop.
const (
	hopCaller = "caller"
	hopCallee = "callee"
)

// invokeLabels are the labels of the calls of one application to another.
type invokeLabels struct{ hop, source, target string }

// invokeSeries are the time series that belong to one combination of hop, caller and target. They are cached, because
// looking up a time series takes longer than counting a call.
type invokeSeries struct {
	inFlight prometheus.Gauge
	duration prometheus.Observer
	byStatus sync.Map // prometheus.Counter by the label status
}

// series returns the time series with the labels l. It creates them at the first call.
func (m *Metrics) series(l invokeLabels) *invokeSeries {
	if s, ok := m.kept.Load(l); ok {
		return s.(*invokeSeries)
	}
	if l.hop == hopCaller {
		m.retries.WithLabelValues(l.target) // the series starts with 0, so that rate() sees the first retry
	}
	s, _ := m.kept.LoadOrStore(l, &invokeSeries{inFlight: m.inFlight.WithLabelValues(l.hop, l.target),
		duration: m.duration.WithLabelValues(l.hop, l.source, l.target)})
	return s.(*invokeSeries)
}

// count counts a call that has ended.
func (m *Metrics) count(l invokeLabels, s *invokeSeries, status string) {
	c, ok := s.byStatus.Load(status)
	if !ok {
		c, _ = s.byStatus.LoadOrStore(status, m.requests.WithLabelValues(l.hop, l.source, l.target, status))
	}
	c.(prometheus.Counter).Inc()
}

// invokeMeter measures one call.
type invokeMeter struct {
	metrics *Metrics
	labels  invokeLabels
	series  *invokeSeries
	begun   time.Time

	sourceID, targetID string // for the observer
	streaming          bool
}

func (m *Metrics) begin(source, target api.App, h http.Header, begun time.Time) invokeMeter {
	return m.start(hopCaller, source, target, h, begun)
}

func (m *Metrics) start(hop string, source, target api.App, h http.Header, begun time.Time) invokeMeter {
	i := invokeMeter{metrics: m, labels: invokeLabels{hop, m.label(source), m.label(target)}, begun: begun}
	i.series = m.series(i.labels)
	i.series.inFlight.Inc()
	if m.observer != nil {
		i.sourceID, i.targetID, i.streaming = m.id(source), m.id(target), streaming(h)
		i.observeBegin()
	}
	return i
}

func (i invokeMeter) end(r *http.Response, err error) {
	i.series.inFlight.Dec()
	i.series.duration.Observe(time.Since(i.begun).Seconds())
	i.metrics.count(i.labels, i.series, statusClass(r, err))
	i.observeEnd(r, err)
}

func (m *Metrics) retried(target api.App) { m.retries.WithLabelValues(m.label(target)).Inc() }

func (m *Metrics) refused(in *Inbound) {
	m.denied.WithLabelValues(m.label(in.Caller.App), m.label(in.Target)).Inc()
}

// CircuitChanged counts a change of a circuit breaker to a new state, and reports it to the observer. document is the
// name of the Resiliency document that declares the circuit breaker.
func (m *Metrics) CircuitChanged(document string, target api.App, state string) {
	if m.observer != nil {
		m.observer.PolicyActivated("", document, resiliency.KindBreaker, m.id(target), state)
	}
	m.circuits.WithLabelValues(m.label(target), state).Inc()
}
