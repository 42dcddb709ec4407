package configuration

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// Metrics are the metrics of all configuration stores of a process. They have no time series until the first
// operation. They are safe for concurrent use.
type Metrics struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
}

// NewMetrics creates the metrics and registers them with reg. It returns fault.Internal if they are already registered.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_configuration_operations_total",
			Help: "Finished operations of configuration stores. The outcome is ok or an error code.",
		}, []string{"store", "operation", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "quorate_configuration_operation_duration_seconds",
			Help:    "Time an operation of a configuration store took.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"store", "operation"}),
	}
	for _, c := range []prometheus.Collector{m.operations, m.duration} {
		if err := reg.Register(c); err != nil {
			return nil, &fault.Error{Code: fault.Internal, Op: "configuration.NewMetrics", Msg: "registering metrics",
				Err: err}
		}
	}
	return m, nil
}

// Instrument makes the store of i record metrics. The value of the label store is i.Name.
func (m *Metrics) Instrument(i *Instance) {
	c := counted{Store: i.Store, metrics: m, name: i.Name}
	if w, ok := i.Store.(Writer); ok {
		i.Store = &countedWriter{c, w}
		return
	}
	i.Store = &c
}

type counted struct {
	Store
	metrics *Metrics
	name    string
}

func (c *counted) done(operation string, start time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = string(fault.CodeOf(err))
	}
	c.metrics.operations.WithLabelValues(c.name, operation, outcome).Inc()
	c.metrics.duration.WithLabelValues(c.name, operation).Observe(time.Since(start).Seconds())
}

// Get implements Store.
func (c *counted) Get(ctx context.Context, r GetRequest) (Found, error) {
	start := time.Now()
	f, err := c.Store.Get(ctx, r)
	c.done("get", start, err)
	return f, err
}

// Subscribe implements Store.
func (c *counted) Subscribe(ctx context.Context, r SubscribeRequest) (Subscription, error) {
	start := time.Now()
	s, err := c.Store.Subscribe(ctx, r)
	c.done("subscribe", start, err)
	return s, err
}

type countedWriter struct {
	counted
	writer Writer
}

// Write implements Writer.
func (c *countedWriter) Write(ctx context.Context, r WriteRequest) (Written, error) {
	start := time.Now()
	w, err := c.writer.Write(ctx, r)
	c.done("write", start, err)
	return w, err
}
