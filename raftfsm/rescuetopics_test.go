package raftfsm_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/topics"
)

// rescueOther ends a server other than lead that has the same state, rescues it, and starts it alone. dirs are the
// data directories by node id.
func rescueOther(t *testing.T, c *cluster, lead *raftfsm.Host, dirs map[string]string) *raftfsm.Host {
	t.Helper()
	stay := c.others(lead)[0]
	sameState(t, lead, stay)
	c.mu.Lock()
	c.hosts[stay.Identity().Server] = nil
	c.mu.Unlock()
	closeHost(t, stay)
	dir := dirs[stay.Identity().Node]
	_, err := raftfsm.Rescue(raftfsm.RescueOptions{Dir: dir, Logger: slog.New(slog.DiscardHandler), Agree: yes})
	must(t, err)
	return alone(t, dir)
}

// A rescued server delivers exactly what the groups had not settled, and the messages published afterwards follow.
func TestRescue_KeepsTopics(t *testing.T) {
	t.Parallel()
	dirs := map[string]string{}
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2; dirs[o.NodeID] = o.Dir })
	lead := c.leader()
	b := lead.Broker("", "pubsub", topics.BrokerOptions{Concurrency: 1})
	s, err := b.Subscribe(within(t, time.Minute), pubsub.SubscribeRequest{Topic: "orders", Group: "app"})
	must(t, err)
	send(t, b, "orders", pubsub.Message{ID: "1"}, pubsub.Message{ID: "2"}, pubsub.Message{ID: "3"})
	first := nextOf(t, s)
	must(t, s.Settle(t.Context(), &first, pubsub.Acknowledged))
	eventually(t, func() error { return unsettled(lead, 2) })
	must(t, b.Close())
	h := rescueOther(t, c, lead, dirs)
	b = topicBroker(t, h, "pubsub", topics.BrokerOptions{Concurrency: 1})
	s = joinGroup(t, b, "orders", "app")
	send(t, b, "orders", pubsub.Message{ID: "4"})
	for _, want := range []string{"2", "3", "4"} {
		d := nextOf(t, s)
		if d.ID != want || d.Attempt != 1 {
			t.Errorf("attempt %d of message %s came instead of %s", d.Attempt, d.ID, want)
		}
		must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	}
}
