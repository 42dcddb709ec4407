package lock

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// Metrics are the metrics of all lock stores of a process. They are safe for concurrent use.
type Metrics struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
}

// NewMetrics creates the metrics and registers them with reg. It returns fault.Internal if they are already registered.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_lock_operations_total",
			Help: "Finished operations on locks. The outcome is ok, refused or an error code.",
		}, []string{"store", "operation", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "quorate_lock_operation_duration_seconds",
			Help:    "Time an operation on a lock took, including waiting.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"store", "operation"}),
	}
	for _, c := range []prometheus.Collector{m.operations, m.duration} {
		if err := reg.Register(c); err != nil {
			return nil, &fault.Error{Code: fault.Internal, Op: "lock.NewMetrics", Msg: "registering metrics", Err: err}
		}
	}
	return m, nil
}

// Instrument makes the store of i record metrics. The value of the label store is i.Name.
func (m *Metrics) Instrument(i *Instance) {
	c := counted{Store: i.Store, metrics: m, name: i.Name}
	if l, ok := i.Store.(Leaser); ok {
		i.Store = &countedLeaser{counted: c, leaser: l}
		return
	}
	i.Store = &c
}

type counted struct {
	Store
	metrics *Metrics
	name    string
}

func (c *counted) done(operation string, start time.Time, granted bool, err error) {
	outcome := "ok"
	switch {
	case err != nil:
		outcome = string(fault.CodeOf(err))
	case !granted:
		outcome = "refused"
	}
	c.metrics.operations.WithLabelValues(c.name, operation, outcome).Inc()
	c.metrics.duration.WithLabelValues(c.name, operation).Observe(time.Since(start).Seconds())
}

// TryLock implements Store.
func (c *counted) TryLock(ctx context.Context, claim Claim) (Grant, error) {
	start := time.Now()
	g, err := c.Store.TryLock(ctx, claim)
	c.done("try_lock", start, g.Granted, err)
	return g, err
}

// Unlock implements Store.
func (c *counted) Unlock(ctx context.Context, r Release) (Status, error) {
	start := time.Now()
	s, err := c.Store.Unlock(ctx, r)
	c.done("unlock", start, s == Unlocked, err)
	return s, err
}

type countedLeaser struct {
	counted
	leaser Leaser
}

// Renew implements Leaser.
func (c *countedLeaser) Renew(ctx context.Context, claim Claim) (Grant, error) {
	start := time.Now()
	g, err := c.leaser.Renew(ctx, claim)
	c.done("renew", start, g.Granted, err)
	return g, err
}

// Look implements Leaser.
func (c *countedLeaser) Look(ctx context.Context, k Key) (Grant, error) {
	start := time.Now()
	g, err := c.leaser.Look(ctx, k)
	c.done("look", start, true, err)
	return g, err
}
