package bindings

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// Metrics are the metrics of all bindings of a process. They are safe for concurrent use. Label values are from
// bounded sets: component names, the operations of their types, and fault codes.
type Metrics struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	events     *prometheus.CounterVec
	delivery   *prometheus.HistogramVec
}

// NewMetrics registers the metrics with reg. It returns fault.Internal if they are already registered there.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	buckets := []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	m := &Metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_binding_operations_total", Help: "Finished operations of an output binding.",
		}, []string{"binding", "operation", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quorate_binding_operation_duration_seconds", Help: "Time an operation of an output binding took.",
			Buckets: buckets,
		}, []string{"binding", "operation"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_binding_events_total",
			Help: "Events of an input binding that were handed to the application, or could not be.",
		}, []string{"binding", "outcome"}),
		delivery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quorate_binding_event_duration_seconds", Help: "Time the application took for an event.",
			Buckets: buckets,
		}, []string{"binding"}),
	}
	if err := errors.Join(reg.Register(m.operations), reg.Register(m.duration), reg.Register(m.events),
		reg.Register(m.delivery)); err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "bindings.NewMetrics", Msg: "registering metrics", Err: err}
	}
	return m, nil
}

// Instrument wraps the input and the output of a binding, so that they record metrics. The label "binding" is i.Name.
func (m *Metrics) Instrument(i *Instance) {
	if i.Output != nil {
		i.Output = &countedOutput{Output: i.Output, metrics: m, name: i.Name}
	}
	if i.Input != nil {
		i.Input = &countedInput{Input: i.Input, metrics: m, name: i.Name}
	}
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return string(fault.CodeOf(err))
}

type countedOutput struct {
	Output
	metrics *Metrics
	name    string
}

// Invoke implements Output.
func (o *countedOutput) Invoke(ctx context.Context, r Request) (*Response, error) {
	start := time.Now()
	response, err := o.Output.Invoke(ctx, r)
	operation := strings.ToLower(r.Operation)
	if !slices.Contains(o.Operations(), operation) {
		operation = "other"
	}
	o.metrics.operations.WithLabelValues(o.name, operation, outcome(err)).Inc()
	o.metrics.duration.WithLabelValues(o.name, operation).Observe(time.Since(start).Seconds())
	return response, err
}

type countedInput struct {
	Input
	metrics *Metrics
	name    string
}

// Start implements Input.
func (i *countedInput) Start(ctx context.Context, sink Sink) error {
	return i.Input.Start(ctx, &countedSink{Sink: sink, metrics: i.metrics, name: i.name})
}

type countedSink struct {
	Sink
	metrics *Metrics
	name    string
}

// Deliver implements Sink.
func (s *countedSink) Deliver(ctx context.Context, e Event) ([]byte, error) {
	start := time.Now()
	answer, err := s.Sink.Deliver(ctx, e)
	s.metrics.events.WithLabelValues(s.name, outcome(err)).Inc()
	s.metrics.delivery.WithLabelValues(s.name).Observe(time.Since(start).Seconds())
	return answer, err
}
