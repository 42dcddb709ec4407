package invoke

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
)

// Metrics are the metrics of calls to applications. The application labels are ids of known applications. A target
// without instances has the label "unknown".
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	retries  *prometheus.CounterVec
	denied   *prometheus.CounterVec
	circuits *prometheus.CounterVec
	known    func(api.App) bool
	observer Observer // nil = none
}

// NewMetrics creates and registers the metrics. An application has its own time series only if the function known
// returns true for it. All other applications have the label "unknown". If the function is nil, every application has
// its own time series.
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

// Report sets an observer that receives each measured invocation in addition to the metrics. If o is nil, there is no
// observer. Call Report before the first invocation.
func (m *Metrics) Report(o Observer) { m.observer = o }

// label returns the label of an application.
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

// invokeMeter measures one call.
type invokeMeter struct {
	of             *Metrics
	hop            string
	source, target string
	begun          time.Time

	sourceID, targetID string // for the observer
	streaming          bool
}

func (m *Metrics) begin(source, target api.App, h http.Header) invokeMeter {
	return m.start(hopCaller, source, target, h)
}

func (m *Metrics) start(hop string, source, target api.App, h http.Header) invokeMeter {
	i := invokeMeter{of: m, hop: hop, source: m.label(source), target: m.label(target), begun: time.Now()}
	m.inFlight.WithLabelValues(hop, i.target).Inc()
	if hop == hopCaller {
		m.retries.WithLabelValues(i.target) // a rate needs the 0 before the first one
	}
	if m.observer != nil {
		i.sourceID, i.targetID, i.streaming = m.id(source), m.id(target), streaming(h)
		i.observeBegin()
	}
	return i
}

func (i invokeMeter) end(r *http.Response, err error) {
	m := i.of
	m.inFlight.WithLabelValues(i.hop, i.target).Dec()
	m.duration.WithLabelValues(i.hop, i.source, i.target).Observe(time.Since(i.begun).Seconds())
	m.requests.WithLabelValues(i.hop, i.source, i.target, statusClass(r, err)).Inc()
	i.observeEnd(r, err)
}

func (m *Metrics) retried(target api.App) { m.retries.WithLabelValues(m.label(target)).Inc() }

func (m *Metrics) refused(in *Inbound) {
	m.denied.WithLabelValues(m.label(in.Caller.App), m.label(in.Target)).Inc()
}

// CircuitChanged counts a change of a circuit breaker that a Resiliency document declares.
func (m *Metrics) CircuitChanged(document string, target api.App, state string) {
	if m.observer != nil {
		m.observer.PolicyActivated("", document, resiliency.KindBreaker, m.id(target), state)
	}
	m.circuits.WithLabelValues(m.label(target), state).Inc()
}
