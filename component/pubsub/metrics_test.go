package pubsub_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
)

func TestMetrics_CountDroppedMessages(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := pubsub.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	i := &pubsub.Instance{Name: "messages", Broker: inmemory.Open(inmemory.Options{})}
	t.Cleanup(func() { _ = i.Broker.Close() })
	m.Instrument(i)
	if _, err := i.Broker.Publish(t.Context(), pubsub.PublishRequest{Topic: "a",
		Messages: []pubsub.Message{{ID: "1"}, {ID: "2"}}}); err != nil {
		t.Fatal(err)
	}
	s, err := i.Broker.Subscribe(t.Context(), pubsub.SubscribeRequest{Topic: "a", Group: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.Receive(t.Context(), 2)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if err := pubsub.Drop(t.Context(), s, &list[0]); err != nil {
		t.Error(err)
	}
	if err := s.Settle(t.Context(), &list[1], pubsub.Acknowledged); err != nil {
		t.Error(err)
	}
	const want = `
		# HELP quorate_pubsub_deliveries_total Deliveries of messages that ended, by what became of them.
		# TYPE quorate_pubsub_deliveries_total counter
		quorate_pubsub_deliveries_total{outcome="acknowledged",pubsub="messages"} 1
		quorate_pubsub_deliveries_total{outcome="dropped",pubsub="messages"} 1
	`
	err = testutil.GatherAndCompare(registry, strings.NewReader(want), "quorate_pubsub_deliveries_total")
	if err != nil {
		t.Error(err)
	}
}
