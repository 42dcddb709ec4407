package http

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
)

// Observer sees every request of a Face. Implementations are safe for concurrent use.
type Observer interface {
	// ServedHTTP is called when a request has ended. status is 0 if the request got no answer. received and sent are
	// the sizes of the bodies in bytes.
	ServedHTTP(verb, path string, status int, received, sent int64, took time.Duration)
	// Failed is called for each error answer, with the error code.
	Failed(code string)
}

// metrics are the metrics of the requests at one application's listener. The label values are bounded: the path
// patterns of the routes, the standard verbs, and the classes of status codes.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	received *prometheus.CounterVec
	sent     *prometheus.CounterVec
	inFlight atomic.Int64
	refused  *routeMetrics // for requests that were refused before an endpoint took them
}

func newMetrics(app api.App, reg prometheus.Registerer) (*metrics, error) {
	own := prometheus.Labels{"app": app.ID}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_http_requests_total", ConstLabels: own,
			Help: "API requests by route, method and class of the status.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quorate_http_request_duration_seconds", ConstLabels: own,
			Help: "Time from the headers of an API request to the end of its handling.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5,
				10},
		}, []string{"route", "method"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_http_request_bytes_total", ConstLabels: own,
			Help: "Bytes of the bodies of API requests that were read.",
		}, []string{"route", "method"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_http_response_bytes_total", ConstLabels: own,
			Help: "Bytes of the bodies of API answers.",
		}, []string{"route", "method"}),
	}
	inFlight := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quorate_http_requests_in_flight", ConstLabels: own,
		Help: "API requests being served.",
	}, func() float64 { return float64(m.inFlight.Load()) })
	m.refused = m.route("refused", "")
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.received, m.sent, inFlight} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// route returns the metrics of a path pattern and verb. If verb is empty, each request is labelled with its own verb.
func (m *metrics) route(pattern, verb string) *routeMetrics {
	return &routeMetrics{all: m, pattern: pattern, verb: verb}
}

// routeMetrics are the metrics of one route. Their series are created at the first request.
type routeMetrics struct {
	all     *metrics
	pattern string
	verb    string // empty = the verb of each request
	live    atomic.Pointer[series]
	byVerb  sync.Map // *series by the verb as a label, if verb is empty
}

type series struct {
	byClass  [6]prometheus.Counter // by the first digit of the status; 0 = no valid status
	duration prometheus.Observer
	received prometheus.Counter
	sent     prometheus.Counter
}

// observe counts a request that has ended.
func (m *routeMetrics) observe(p *reply, verb string) {
	s := m.live.Load()
	if s == nil {
		s = m.series(knownVerb(verb))
	}
	s.byClass[class(p.status)].Inc()
	s.duration.Observe(time.Since(p.start).Seconds())
	if p.received > 0 {
		s.received.Add(float64(p.received))
	}
	if p.sent > 0 {
		s.sent.Add(float64(p.sent))
	}
}

// series returns the time series for a verb. It creates them at the first call.
func (m *routeMetrics) series(verb string) *series {
	if kept, ok := m.byVerb.Load(verb); ok {
		return kept.(*series)
	}
	s := &series{
		duration: m.all.duration.WithLabelValues(m.pattern, verb),
		received: m.all.received.WithLabelValues(m.pattern, verb),
		sent:     m.all.sent.WithLabelValues(m.pattern, verb),
	}
	for i, name := range [...]string{"aborted", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		s.byClass[i] = m.all.requests.WithLabelValues(m.pattern, verb, name)
	}
	if m.verb != "" {
		m.live.Store(s)
	} else {
		m.byVerb.Store(verb, s)
	}
	return s
}

func class(status int) int {
	if status < 100 || status > 599 {
		return 0
	}
	return status / 100
}

// otherVerb is the label of all verbs that knownVerb does not know. It bounds the number of series.
const otherVerb = "other"

// knownVerb returns verb if net/http has a constant for the verb, and otherwise otherVerb.
func knownVerb(verb string) string {
	switch verb {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return verb
	default:
		return otherVerb
	}
}
