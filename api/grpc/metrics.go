package grpc

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/quorate/quorate/api"
)

// metrics are the metrics of the gRPC API for one application: its calls and its connections. The label values are
// the names of the served methods and the gRPC codes, so their number is bounded.
type metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	open     prometheus.Gauge
	cut      prometheus.Counter
	inFlight atomic.Int64
	methods  map[string]string // full method -> label
	short    map[string]bool   // full method -> whether it is unary
}

func newMetrics(app api.App, reg prometheus.Registerer) (*metrics, error) {
	own := prometheus.Labels{"app": app.ID}
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_grpc_requests_total", ConstLabels: own,
			Help: "gRPC calls by method and code.",
		}, []string{"method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quorate_grpc_request_duration_seconds", ConstLabels: own,
			Help: "Time from the arrival of a gRPC call's message to the end of its handling.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5,
				10},
		}, []string{"method"}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quorate_grpc_connections", ConstLabels: own,
			Help: "Open connections of the gRPC API.",
		}),
		cut: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quorate_grpc_connections_cut_total", ConstLabels: own,
			Help: "Connections of the gRPC API that were closed because there were too many; those without a call " +
				"go first.",
		}),
		methods: map[string]string{}, short: map[string]bool{},
	}
	inFlight := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quorate_grpc_requests_in_flight", ConstLabels: own,
		Help: "gRPC calls being served.",
	}, func() float64 { return float64(m.inFlight.Load()) })
	for _, c := range []prometheus.Collector{m.calls, m.duration, m.open, m.cut, inFlight} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// know computes the metric labels of all methods of the given services. It must be called before the first call is
// served.
func (m *metrics) know(services map[string]grpc.ServiceInfo) {
	for service, info := range services {
		short := service[strings.LastIndexByte(service, '.')+1:]
		for _, method := range info.Methods {
			full := "/" + service + "/" + method.Name
			m.methods[full] = short + "/" + method.Name
			m.short[full] = !method.IsClientStream && !method.IsServerStream
		}
	}
}

// label returns the metric label of a method. All unknown methods share one label, so that clients cannot create any
// number of labels.
func (m *metrics) label(method string) string {
	if label, ok := m.methods[method]; ok {
		return label
	}
	return "other"
}

// brief reports whether a method is unary. It returns false for a method that the server does not serve.
func (m *metrics) brief(method string) bool { return m.short[method] }

// refuse counts a call that was refused before its handler began.
func (m *metrics) refuse(method string, c codes.Code) {
	m.calls.WithLabelValues(m.label(method), c.String()).Inc()
}

// observe counts a call that has ended.
func (m *metrics) observe(method string, c codes.Code, took time.Duration) {
	m.inFlight.Add(-1)
	label := m.label(method)
	m.calls.WithLabelValues(label, c.String()).Inc()
	m.duration.WithLabelValues(label).Observe(took.Seconds())
}
