package pubsub

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// Metrics are the metrics of all brokers of a process. They are safe for concurrent use.
//
// The number of time series is bounded, because all labels have few values: component names, outcomes and fault codes.
// Topics are not labels, because applications may use any number of topics.
type Metrics struct {
	published  *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	deliveries *prometheus.CounterVec
}

// NewMetrics creates the metrics and registers them with reg. It returns fault.Internal if they are already registered.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_pubsub_published_messages_total",
			Help: "Messages that applications published. The outcome is ok or an error code.",
		}, []string{"pubsub", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "quorate_pubsub_publish_duration_seconds",
			Help:    "Time a broker took to publish the messages of one request.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"pubsub"}),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_pubsub_deliveries_total",
			Help: "Deliveries of messages that ended, by what became of them.",
		}, []string{"pubsub", "outcome"}),
	}
	if err := errors.Join(reg.Register(m.published), reg.Register(m.duration), reg.Register(m.deliveries)); err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "pubsub.NewMetrics", Msg: "registering metrics", Err: err}
	}
	return m, nil
}

// Instrument makes the broker of i record metrics. The value of the label pubsub is i.Name.
func (m *Metrics) Instrument(i *Instance) {
	i.Broker = &counted{Broker: i.Broker, metrics: m, name: i.Name}
}

type counted struct {
	Broker
	metrics *Metrics
	name    string
}

// Publish implements Broker.
func (c *counted) Publish(ctx context.Context, r PublishRequest) ([]Failure, error) {
	start := time.Now()
	failures, err := c.Broker.Publish(ctx, r)
	c.metrics.duration.WithLabelValues(c.name).Observe(time.Since(start).Seconds())
	if err != nil {
		c.metrics.published.WithLabelValues(c.name, string(fault.CodeOf(err))).Add(float64(len(r.Messages)))
		return failures, err
	}
	for _, f := range failures {
		c.metrics.published.WithLabelValues(c.name, string(fault.CodeOf(f.Err))).Inc()
	}
	if done := len(r.Messages) - len(failures); done > 0 {
		c.metrics.published.WithLabelValues(c.name, "ok").Add(float64(done))
	}
	return failures, nil
}

// Staged records the result of a transaction that publishes the given number of messages to b. If err is not nil, the
// messages are counted under the code of err. Staged does nothing if b does not record metrics.
func Staged(b Broker, messages int, err error) {
	c, ok := b.(*counted)
	if !ok {
		return
	}
	outcome := "ok"
	if err != nil {
		outcome = string(fault.CodeOf(err))
	}
	c.metrics.published.WithLabelValues(c.name, outcome).Add(float64(messages))
}

// Subscribe implements Broker.
func (c *counted) Subscribe(ctx context.Context, r SubscribeRequest) (Subscription, error) {
	s, err := c.Broker.Subscribe(ctx, r)
	if err != nil {
		return nil, err
	}
	return &countedSubscription{Subscription: s, metrics: c.metrics, name: c.name}, nil
}

type countedSubscription struct {
	Subscription
	metrics *Metrics
	name    string
}

// Settle implements Subscription.
func (s *countedSubscription) Settle(ctx context.Context, d *Delivery, o Outcome) error {
	err := s.Subscription.Settle(ctx, d, o)
	s.done(err, o.String())
	return err
}

// DeadLetter implements Subscription.
func (s *countedSubscription) DeadLetter(ctx context.Context, d *Delivery, topic string) error {
	err := s.Subscription.DeadLetter(ctx, d, topic)
	s.done(err, "dead_lettered")
	return err
}

// Drop acknowledges a delivery that no handler accepts. In the metrics, the delivery counts as dropped instead of
// acknowledged.
func Drop(ctx context.Context, s Subscription, d *Delivery) error {
	c, ok := s.(*countedSubscription)
	if !ok {
		return s.Settle(ctx, d, Acknowledged)
	}
	err := c.Subscription.Settle(ctx, d, Acknowledged)
	c.done(err, "dropped")
	return err
}

func (s *countedSubscription) done(err error, outcome string) {
	if err == nil {
		s.metrics.deliveries.WithLabelValues(s.name, outcome).Inc()
	}
}
