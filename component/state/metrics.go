package state

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// operation is a value of the label operation.
type operation uint8

const (
	opGet operation = iota
	opSet
	opDelete
	opBulkGet
	opTransact
	opList
	operations
)

func (o operation) String() string {
	return [operations]string{"get", "set", "delete", "bulk_get", "transact", "list"}[o]
}

// outcome is a value of the metric label "outcome". It is not_found for a read of a missing key, and ok for any other
// call that succeeded. For a failed call, it is the code of the error.
type outcome uint8

const (
	outcomeOK outcome = iota
	outcomeNotFound
	outcomeConflict
	outcomeLockLost
	outcomeDeliverySettled
	outcomeActorMoved
	outcomeInvalid
	outcomeTooLarge
	outcomeDenied
	outcomeNotLeader
	outcomeUnavailable
	outcomeReadOnly
	outcomeFormatBlocked
	outcomeOverloaded
	outcomeIndeterminate
	outcomeTimeout
	outcomeUnimplemented
	outcomeCorrupt
	outcomeInternal
	outcomes
)

func (o outcome) String() string {
	return [outcomes]string{
		"ok", "not_found", "conflict", "lock_lost", "delivery_settled", "actor_moved", "invalid", "too_large", "denied",
		"not_leader", "unavailable", "read_only", "format_blocked", "overloaded", "indeterminate", "timeout",
		"unimplemented", "corrupt", "internal",
	}[o]
}

func outcomeOf(err error) outcome {
	if err == nil {
		return outcomeOK
	}
	switch fault.CodeOf(err) {
	case fault.NotFound:
		return outcomeNotFound
	case fault.Conflict:
		return outcomeConflict
	case fault.LockLost:
		return outcomeLockLost
	case fault.DeliverySettled:
		return outcomeDeliverySettled
	case fault.ActorMoved:
		return outcomeActorMoved
	case fault.Invalid:
		return outcomeInvalid
	case fault.TooLarge:
		return outcomeTooLarge
	case fault.Denied:
		return outcomeDenied
	case fault.NotLeader:
		return outcomeNotLeader
	case fault.Unavailable:
		return outcomeUnavailable
	case fault.ReadOnly:
		return outcomeReadOnly
	case fault.FormatBlocked:
		return outcomeFormatBlocked
	case fault.Overloaded:
		return outcomeOverloaded
	case fault.Indeterminate:
		return outcomeIndeterminate
	case fault.Timeout:
		return outcomeTimeout
	case fault.Unimplemented:
		return outcomeUnimplemented
	case fault.Corrupt:
		return outcomeCorrupt
	default:
		return outcomeInternal
	}
}

// Metrics are the metrics of all state stores of a process. They are safe for concurrent use.
type Metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	inFlight  *prometheus.GaugeVec
	conflicts *prometheus.CounterVec
	read      *prometheus.CounterVec
	written   *prometheus.CounterVec
	up        *prometheus.GaugeVec

	mu       sync.Mutex
	monitors map[string]int // number of monitors by store; two while a reload replaces the store
}

// monitored adds the given change, 1 or -1, to the number of open monitors of a store. When the number becomes 0, it
// removes the time series quorate_state_store_up of the store.
func (m *Metrics) monitored(store string, change int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.monitors == nil {
		m.monitors = map[string]int{}
	}
	if m.monitors[store] += change; m.monitors[store] == 0 {
		delete(m.monitors, store)
		m.up.DeleteLabelValues(store)
	}
}

// NewMetrics registers the metrics with reg. It returns fault.Internal if they are already registered there.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		requests: counter("quorate_state_requests_total", "Finished calls of a state store.",
			"store", "operation", "outcome", "consistency"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quorate_state_request_duration_seconds", Help: "Time a call of a state store took.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5,
				10},
		}, []string{"store", "operation"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "quorate_state_requests_in_flight", Help: "Calls of a state store that have not finished.",
		}, []string{"store", "operation"}),
		conflicts: counter("quorate_state_etag_conflicts_total",
			"Calls refused because an ETag or create-only condition did not hold.", "store", "operation"),
		read: counter("quorate_state_read_bytes_total", "Bytes of values that a state store returned.", "store"),
		written: counter("quorate_state_written_bytes_total",
			"Bytes of values in writes that a state store accepted.", "store"),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_state_store_up",
			Help: "1 if the server of an outside state store answers, 0 otherwise."}, []string{"store"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.conflicts, m.read, m.written,
		m.up} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "state.NewMetrics", Msg: "registering metrics", Err: err}
	}
	return m, nil
}

// meter contains the metrics of one store. It keeps the Prometheus time series, because looking them up by their labels
// takes longer than reading a cached value.
type meter struct {
	metrics  *Metrics
	store    string
	fallback Consistency // level of a call with DefaultConsistency; Eventual or Strong
	read     prometheus.Counter
	written  prometheus.Counter
	ops      [operations]opMeter
}

type opMeter struct {
	duration  prometheus.Observer
	inFlight  prometheus.Gauge
	conflicts prometheus.Counter
	// requests has counters that are created at first use. Most combinations never occur, and each of them would be a
	// time series of zeros.
	requests [outcomes][2]atomic.Pointer[prometheus.Counter]
}

func (m *Metrics) meter(store string, fallback Consistency, offered [operations]bool) *meter {
	out := &meter{
		metrics: m, store: store, fallback: Settings{DefaultConsistency: fallback}.Consistency(DefaultConsistency),
		read: m.read.WithLabelValues(store), written: m.written.WithLabelValues(store),
	}
	for op := range operations {
		if !offered[op] {
			continue
		}
		o := &out.ops[op]
		o.duration = m.duration.WithLabelValues(store, op.String())
		o.inFlight = m.inFlight.WithLabelValues(store, op.String())
		o.conflicts = m.conflicts.WithLabelValues(store, op.String())
		out.requests(op, outcomeOK, Eventual)
		out.requests(op, outcomeOK, Strong)
	}
	return out
}

func (m *meter) requests(op operation, result outcome, level Consistency) prometheus.Counter {
	index := 0
	if level == Strong {
		index = 1
	}
	slot := &m.ops[op].requests[result][index]
	if c := slot.Load(); c != nil {
		return *c
	}
	c := m.metrics.requests.WithLabelValues(m.store, op.String(), result.String(), level.String())
	slot.Store(&c)
	return c
}

func (m *meter) begin(op operation) time.Time {
	m.ops[op].inFlight.Inc()
	return time.Now()
}

func (m *meter) end(op operation, start time.Time, asked Consistency, result outcome) {
	o := &m.ops[op]
	o.duration.Observe(time.Since(start).Seconds())
	o.inFlight.Dec()
	if asked != Strong && asked != Eventual {
		asked = m.fallback
	}
	m.requests(op, result, asked).Inc()
	if result == outcomeConflict {
		o.conflicts.Inc()
	}
}
