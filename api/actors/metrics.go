package actors

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// Metrics are the metrics of the actors of a node. They have no series until an application hosts actors or an actor is
// called. The values of the label "type" are the actor types that applications of this node host.
type Metrics struct {
	requests      *prometheus.CounterVec   // by outcome
	turns         *prometheus.CounterVec   // by type, kind and outcome
	duration      *prometheus.HistogramVec // by type and kind
	active        *prometheus.GaugeVec     // by type
	waiting       *prometheus.GaugeVec     // by type
	activations   *prometheus.CounterVec   // by type and outcome
	deactivations *prometheus.CounterVec   // by type and reason
	drains        *prometheus.CounterVec   // by outcome
	refused       *prometheus.CounterVec   // by type
	renewals      *prometheus.CounterVec   // by app and outcome
	sessions      *prometheus.CounterVec   // by app and change
}

// NewMetrics creates and registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		requests: counter("quorate_actor_requests_total", "Calls of actors from this node, and reminders that it "+
			"delivered as leader, by what the node of the actor answered.", "outcome"),
		turns: counter("quorate_actor_turns_total", "Calls, reminders and timers that actors of this node have "+
			"handled or refused.", "type", "kind", "outcome"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "quorate_actor_turn_duration_seconds",
			Help:    "Time from the arrival at the node of the actor to the answer, including the wait for the turn.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}},
			[]string{"type", "kind"}),
		active:      gauge("quorate_actors", "Active actors that this node owns.", "type"),
		waiting:     gauge("quorate_actor_turns_waiting", "Calls that wait for their turn at an actor.", "type"),
		activations: counter("quorate_actor_activations_total", "Activations at this node.", "type", "outcome"),
		deactivations: counter("quorate_actor_deactivations_total", "Activations that this node gave up or lost.",
			"type", "reason"),
		drains: counter("quorate_actor_drains_total", "Hosts of this node that gave all their actors up.", "outcome"),
		refused: counter("quorate_actor_writes_refused_total", "Writes of actor state that were refused, because the "+
			"actor had another owner.", "type"),
		renewals: counter("quorate_actor_session_renewals_total", "Renewals of the sessions of hosts.", "app",
			"outcome"),
		sessions: counter("quorate_actor_sessions_total", "Sessions of hosts that have begun or ended.", "app",
			"change"),
	}
	reg.MustRegister(m.requests, m.turns, m.duration, m.active, m.waiting, m.activations, m.deactivations, m.drains,
		m.refused, m.renewals, m.sessions)
	return m
}

// Values of the label reason of deactivations.
const (
	reasonIdle    = "idle"
	reasonDrained = "drained" // the host stops
	reasonHanded  = "handed_over"
	reasonSpread  = "rebalanced"
	reasonSession = "session_ended"
	reasonRefused = "write_refused"
)

// Values of the label change of sessions.
const (
	sessionBegun = "begun"
	sessionLost  = "lost"
	sessionLeft  = "left"
)

const outcomeOK = "ok"

func outcomeOf(err error) string {
	if err == nil {
		return outcomeOK
	}
	return string(fault.CodeOf(err))
}

// requested counts a call of an actor, or a tick of a reminder, that this node has sent.
func (m *Metrics) requested(a *Answer, err error) { m.requests.WithLabelValues(answered(a, err)).Inc() }

// turned counts a turn and records its duration since begun, the time at which the call arrived. It ignores a call that
// continues at another node.
func (m *Metrics) turned(c *Call, begun time.Time, a *Answer, err error) {
	if fault.Is(err, fault.ActorMoved) {
		return
	}
	kind := kindOf(c)
	m.turns.WithLabelValues(c.Actor.Type, kind, answered(a, err)).Inc()
	m.duration.WithLabelValues(c.Actor.Type, kind).Observe(time.Since(begun).Seconds())
}

func kindOf(c *Call) string {
	switch c.Callback {
	case CallbackReminder:
		return "reminder"
	case CallbackTimer:
		return "timer"
	}
	return "method"
}

// answered returns the outcome of a call: what the application answered, or why it did not.
func answered(a *Answer, err error) string {
	switch {
	case fault.Is(err, fault.NotFound):
		return ReasonNoHost
	case err != nil:
		return outcomeOf(err)
	case a.Status == http.StatusNotFound:
		return "not_found"
	case a.Status < 200 || a.Status > 299:
		return "failed"
	}
	return outcomeOK
}
