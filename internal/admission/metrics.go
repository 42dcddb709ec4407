package admission

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	limit, inUse, waiting *prometheus.GaugeVec
	refused, cuts         *prometheus.CounterVec
}

func newMetrics(name string, reg prometheus.Registerer) *metrics {
	gauge := func(metric, help string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metric, Help: help}, []string{"budget", "size"})
		return shared(reg, v).MustCurryWith(prometheus.Labels{"budget": name})
	}
	counter := func(metric, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: metric, Help: help}, []string{"budget", "size"})
		return shared(reg, v).MustCurryWith(prometheus.Labels{"budget": name})
	}
	return &metrics{
		limit: gauge("quorate_request_memory_limit_bytes",
			"Memory that the bodies of API requests in work (budget requests) or answers being sent (budget answers) "+
				"may use together. That of small requests falls while writes take long."),
		inUse: gauge("quorate_request_memory_bytes",
			"Memory reserved for the bodies of API requests in work, or for answers being sent."),
		waiting: gauge("quorate_request_memory_waiting",
			"API requests that wait for memory: before their body is read, or before their answer is sent."),
		refused: counter("quorate_request_memory_refused_total",
			"API requests refused as overloaded because the memory of the budget was in use."),
		cuts: counter("quorate_request_memory_cut_total",
			"Requests and answers that were ended because their client was too slow while others waited for memory."),
	}
}

// shared registers the metric v with reg and returns it. If another budget has already registered this metric, shared
// returns the registered one instead. If reg is nil, shared returns v without registering it.
func shared[V prometheus.Collector](reg prometheus.Registerer, v V) V {
	if reg == nil {
		return v
	}
	err := reg.Register(v)
	if have, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return have.ExistingCollector.(V)
	}
	if err != nil {
		panic(err)
	}
	return v
}
