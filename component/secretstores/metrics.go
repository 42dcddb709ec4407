package secretstores

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// Metrics are the metrics of all secret stores of a process. They are safe for concurrent use. No label contains the
// name of a secret.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics with reg. It returns fault.Internal if they are already registered there.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_secret_requests_total", Help: "Finished calls of a secret store.",
		}, []string{"store", "operation", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quorate_secret_request_duration_seconds", Help: "Time a call of a secret store took.",
			Buckets: []float64{.0001, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"store", "operation"}),
	}
	if err := errors.Join(reg.Register(m.requests), reg.Register(m.duration)); err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "secretstores.NewMetrics", Msg: "registering metrics",
			Err: err}
	}
	return m, nil
}

// Instrument returns a wrapper of a store that records metrics of its calls. The name is the value of the label
// "store". The wrapper implements the same optional interfaces as the store.
func (m *Metrics) Instrument(store Store, name string) Store {
	i := instrumented{Store: store, metrics: m, name: name}
	featurer, hasFeatures := store.(Featurer)
	folder, folds := store.(Folder)
	switch {
	case hasFeatures && folds:
		return struct {
			instrumented
			Featurer
			Folder
		}{i, featurer, folder}
	case hasFeatures:
		return struct {
			instrumented
			Featurer
		}{i, featurer}
	case folds:
		return struct {
			instrumented
			Folder
		}{i, folder}
	}
	return i
}

type instrumented struct {
	Store
	metrics *Metrics
	name    string
}

// Get implements Store.
func (i instrumented) Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error) {
	start := time.Now()
	secret, err := i.Store.Get(ctx, name, metadata)
	i.count("get", start, err)
	return secret, err
}

// Bulk implements Store.
func (i instrumented) Bulk(ctx context.Context, metadata map[string]string) (map[string]map[string]string, error) {
	start := time.Now()
	secrets, err := i.Store.Bulk(ctx, metadata)
	i.count("bulk", start, err)
	return secrets, err
}

func (i instrumented) count(operation string, start time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = string(fault.CodeOf(err))
	}
	i.metrics.requests.WithLabelValues(i.name, operation, outcome).Inc()
	i.metrics.duration.WithLabelValues(i.name, operation).Observe(time.Since(start).Seconds())
}
