package peer

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// otherMethod is the value of the label "method" for unknown methods. When there are 2*maxMethods meters, it is also
// the value for all methods that are not yet measured.
const (
	otherMethod = "other"
	maxMethods  = 64
)

// metrics are the measurements of a port.
type metrics struct {
	open       *prometheus.GaugeVec
	refusals   *prometheus.CounterVec
	dialFailed *prometheus.CounterVec
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	bytes      *prometheus.CounterVec
	inFlight   *prometheus.GaugeVec

	mu     sync.Mutex // guards meters
	meters map[meterKey]*meter
}

// side is a value of the label "side".
type side uint8

const (
	caller side = iota
	calledSide
)

func (s side) String() string { return [2]string{"client", "server"}[s] }

type meterKey struct {
	side   side
	method string
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		open: gauge("quorate_peer_connections", "Open connections between nodes.", "kind", "direction"),
		refusals: counter("quorate_peer_refused_total",
			"Connections refused at their preamble, by this node (inbound) or by another (outbound).", "reason",
			"direction"),
		dialFailed: counter("quorate_peer_dial_failures_total", "Connections to other nodes that could not be made.",
			"kind"),
		requests: counter("quorate_peer_rpc_requests_total", "Finished calls between nodes.", "side", "method",
			"outcome"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quorate_peer_rpc_duration_seconds", Help: "Time a call between nodes took.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 2, 18), // 50 us to 6.5 s
		}, []string{"side", "method"}),
		bytes: counter("quorate_peer_rpc_bytes_total", "Bytes of requests and answers of calls between nodes.",
			"side", "method", "part"),
		inFlight: gauge("quorate_peer_rpc_in_flight", "Calls between nodes that have not finished.", "side"),
		meters:   map[meterKey]*meter{},
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.open, m.refusals, m.dialFailed, m.requests, m.duration, m.bytes,
		m.inFlight} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "peer.New", Msg: "registering metrics", Err: err}
	}
	return m, nil
}

func (d Direction) String() string {
	if d == Outbound {
		return "outbound"
	}
	return "inbound"
}

func (m *metrics) connections(k kind, d Direction) prometheus.Gauge {
	return m.open.WithLabelValues(k.String(), d.String())
}

func (m *metrics) refused(r Reason, d Direction) prometheus.Counter {
	return m.refusals.WithLabelValues(r.String(), d.String())
}

func (m *metrics) dialFailures(k kind) prometheus.Counter {
	return m.dialFailed.WithLabelValues(k.String())
}

// meter measures the calls of one method on one side, caller or callee. It keeps references to the metrics, so that a
// call does not have to look them up.
type meter struct {
	all      *metrics
	key      meterKey
	duration prometheus.Observer
	request  prometheus.Counter
	answer   prometheus.Counter
	inFlight prometheus.Gauge
	ok       prometheus.Counter
	failed   [outcomes]atomic.Pointer[prometheus.Counter] // made at first use
}

// meter returns the meter of a method on one side, caller or callee. When there are 2*maxMethods meters, all further
// methods of a side share one meter. So the number of metric series is limited, whatever method names callers use.
func (m *metrics) meter(s side, name string) *meter {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := meterKey{s, name}
	if out := m.meters[key]; out != nil {
		return out
	}
	if len(m.meters) >= 2*maxMethods {
		key.method = otherMethod
		if out := m.meters[key]; out != nil {
			return out
		}
	}
	side, name := s.String(), key.method
	out := &meter{
		all: m, key: key, duration: m.duration.WithLabelValues(side, name), inFlight: m.inFlight.WithLabelValues(side),
		request: m.bytes.WithLabelValues(side, name, "request"), answer: m.bytes.WithLabelValues(side, name, "answer"),
		ok: m.requests.WithLabelValues(side, name, "ok"),
	}
	m.meters[key] = out
	return out
}

func (m *meter) begin() time.Time {
	m.inFlight.Inc()
	return time.Now()
}

// end records the outcome of a call and the sizes of its request and answer.
func (m *meter) end(begun time.Time, request, answer int, err error) {
	m.inFlight.Dec()
	m.duration.Observe(time.Since(begun).Seconds())
	m.request.Add(float64(request))
	m.answer.Add(float64(answer))
	if err == nil {
		m.ok.Inc()
		return
	}
	m.outcome(err).Inc()
}

// codes returns the error codes that have their own metric series. All other codes are counted as the last code in the
// list.
func codes() [outcomes]fault.Code {
	return [outcomes]fault.Code{
		fault.NotFound, fault.Conflict, fault.Invalid, fault.TooLarge, fault.Denied, fault.NotLeader, fault.Unavailable,
		fault.Indeterminate, fault.Timeout, fault.Unimplemented, fault.Corrupt, fault.Internal,
	}
}

const outcomes = 12

func (m *meter) outcome(err error) prometheus.Counter {
	code, all := fault.CodeOf(err), codes()
	index := outcomes - 1
	for i := range all {
		if all[i] == code {
			index = i
		}
	}
	slot := &m.failed[index]
	if c := slot.Load(); c != nil {
		return *c
	}
	c := m.all.requests.WithLabelValues(m.key.side.String(), m.key.method, string(all[index]))
	slot.Store(&c)
	return c
}
