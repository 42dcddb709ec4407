package raftfsm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/topics"
)

// described returns the only part of a topic that has messages, or its first part.
func described(t *testing.T, a *topics.Admin, topic string) topics.Description {
	t.Helper()
	list, err := a.Describe(within(t, time.Minute), topic)
	must(t, err)
	list = slices.DeleteFunc(list, func(d topics.Description) bool { return d.Messages == 0 && len(list) > 1 })
	if len(list) != 1 {
		t.Fatalf("topic %s has the parts %+v", topic, list)
	}
	return list[0]
}

// lagIs waits until a group has a lag.
func lagIs(t *testing.T, a *topics.Admin, topic, group string, want uint64) topics.GroupDescription {
	t.Helper()
	var g topics.GroupDescription
	testutil.Eventually(t, func() error {
		d := described(t, a, topic)
		n := slices.IndexFunc(d.Groups, func(g topics.GroupDescription) bool { return g.Name == group })
		if n < 0 || d.Groups[n].Lag != want {
			return fault.New(fault.Internal, "test", fmt.Sprintf("%+v", d.Groups))
		}
		g = d.Groups[n]
		return nil
	})
	return g
}

// Every node describes topics with what their groups have not settled: messages that are open, that have failed, that
// are delayed, and that the leader has not read yet.
func TestAdmin_DescribesTopicsFromEveryNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	side, _ := c.sidecar("side")
	b := topicBroker(t, side, "pubsub", topics.BrokerOptions{Concurrency: 1, Backoff: time.Minute})
	for _, topic := range []string{"a", "orders", "orders/eu", "z"} {
		send(t, b, topic, pubsub.Message{Data: []byte("1")})
	}
	s := joinGroup(t, b, "orders", "app")
	for i := range 4 {
		send(t, b, "orders", pubsub.Message{Data: fmt.Append(nil, i)})
	}
	first := nextOf(t, s)
	must(t, s.Settle(t.Context(), &first, pubsub.Acknowledged))
	second := nextOf(t, s)
	must(t, s.DeadLetter(within(t, time.Minute), &second, "dead"))
	third := nextOf(t, s)
	must(t, s.Settle(t.Context(), &third, pubsub.Failed))
	late := joinGroup(t, b, "orders", "late")
	held := nextOf(t, late)
	send(t, b, "orders", pubsub.Message{Data: []byte("later"), DeliverAt: time.Now().Add(time.Hour)})
	for _, h := range append(c.running(), side) {
		a := h.Topics("", "pubsub")
		lagIs(t, a, "orders", "late", 6)
		testutil.Eventually(t, func() error {
			if g := lagIs(t, a, "orders", "app", 4); g.Retried != 1 || g.Subscribers != 1 || g.OldestAt == 0 {
				return fault.New(fault.Internal, "test", fmt.Sprintf("%+v", g))
			}
			return nil
		})
		d := described(t, a, "dead")
		if d.Messages != 1 || !slices.Equal(d.Sources, []string{"orders"}) || d.Full || d.Newest == 0 {
			t.Errorf("%+v", d)
		}
		d = described(t, a, "orders")
		if d.Messages != 6 || d.Bytes == 0 || d.Policy.MaxBytes != topics.DefaultMaxBytes {
			t.Errorf("%+v", d)
		}
		all, err := a.Describe(within(t, time.Minute), "")
		must(t, err)
		var names []string
		for i := range all {
			names = append(names, all[i].Name)
		}
		names = slices.Compact(names)
		if want := []string{"a", "dead", "orders", "orders/eu", "z"}; !slices.Equal(names, want) {
			t.Errorf("the topics are %v, not %v", names, want)
		}
		for _, none := range []string{"order", "nothing"} {
			if list, err := a.Describe(within(t, time.Minute), none); err != nil || len(list) != 0 {
				t.Errorf("%s: %+v, %v", none, list, err)
			}
		}
		if list, err := h.Topics("", "pubsu").Describe(within(t, time.Minute), ""); err != nil || len(list) != 0 {
			t.Errorf("another component: %+v, %v", list, err)
		}
		_, err = a.Describe(within(t, time.Minute), "a\x00b")
		if !fault.Is(err, fault.Invalid) {
			t.Error(err)
		}
	}
	must(t, late.Settle(t.Context(), &held, pubsub.Acknowledged))
	lagIs(t, side.Topics("", "pubsub"), "orders", "late", 5)
}

// A delayed message is part of the lag. But it does not count for OldestAt, the time of the oldest waiting message.
func TestAdmin_DelayedMessagesDoNotWait(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	b := topicBroker(t, c.running()[0], "pubsub", topics.BrokerOptions{})
	s := joinGroup(t, b, "t", "g")
	send(t, b, "t", pubsub.Message{Data: []byte("later"), DeliverAt: time.Now().Add(time.Hour)})
	a := c.running()[0].Topics("", "pubsub")
	testutil.Eventually(t, func() error {
		if g := lagIs(t, a, "t", "g", 1); g.Delayed != 1 || g.OldestAt != 0 {
			return fault.New(fault.Internal, "test", fmt.Sprintf("%+v", g))
		}
		return nil
	})
	send(t, b, "t", pubsub.Message{Data: []byte("now")})
	d := nextOf(t, s)
	if g := lagIs(t, a, "t", "g", 2); g.Delayed != 1 || g.OldestAt == 0 {
		t.Errorf("%+v", g)
	}
	must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	lagIs(t, a, "t", "g", 1)
}

// A description of many topics comes in several answers.
func TestAdmin_DescribesManyTopics(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	b := topicBroker(t, c.running()[0], "pubsub", topics.BrokerOptions{})
	const count = 450
	for i := range count {
		send(t, b, fmt.Sprintf("t%03d", i), pubsub.Message{Data: []byte("1")})
	}
	all, err := c.running()[0].Topics("", "pubsub").Describe(within(t, time.Minute), "")
	must(t, err)
	for i := range all {
		if all[i].Name != fmt.Sprintf("t%03d", i) || all[i].Messages != 1 {
			t.Fatalf("%d: %+v", i, all[i])
		}
	}
	if len(all) != count {
		t.Errorf("%d topics", len(all))
	}
}

// entriesOf returns the messages of a topic, beginning at from.
func entriesOf(t *testing.T, a *topics.Admin, topic string, from topics.Start) (list []topics.Entry) {
	t.Helper()
	behind := true
	must(t, a.Read(within(t, time.Minute), topic, from, false, func(e *topics.Entry) error {
		list = append(list, *e)
		return nil
	}, func() error { behind = false; return nil }))
	if behind {
		t.Error("reading has ended before the newest message")
	}
	return list
}

func texts(list []topics.Entry) (out []string) {
	for i := range list {
		out = append(out, string(list[i].Data))
	}
	return out
}

func TestAdmin_ReadsFromOffsetsAndTimes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	side, _ := c.sidecar("side")
	b := topicBroker(t, side, "pubsub", topics.BrokerOptions{})
	for i := range 600 {
		send(t, b, "t", pubsub.Message{ID: fmt.Sprint(i), Key: "k", Data: fmt.Append(nil, i),
			Metadata: map[string]string{"a": "b"}})
	}
	a := side.Topics("", "pubsub")
	all := entriesOf(t, a, "t", topics.Start{})
	if len(all) != 600 || all[7].Key != "k" || all[7].ID != "7" || all[7].Metadata["a"] != "b" || all[7].At.IsZero() {
		t.Fatalf("%d messages", len(all))
	}
	got := texts(entriesOf(t, a, "t", topics.Start{After: all[596].Offset}))
	if !slices.Equal(got, []string{"597", "598", "599"}) {
		t.Errorf("after an offset: %v", got)
	}
	first := slices.IndexFunc(all, func(e topics.Entry) bool { return !e.At.Before(all[300].At) })
	if got := entriesOf(t, a, "t", topics.Start{Since: all[300].At}); len(got) != 600-first {
		t.Errorf("since the time of message %d: %d messages", first, len(got))
	}
	if got := entriesOf(t, a, "t", topics.Start{After: topics.Newest}); len(got) != 0 {
		t.Errorf("after the newest: %v", texts(got))
	}
	if got := entriesOf(t, a, "nothing", topics.Start{}); len(got) != 0 {
		t.Errorf("a topic that does not exist: %v", texts(got))
	}
	// Read returns messages as soon as they are published, also after a change of the leader.
	came, caught := make(chan string, 10), make(chan bool, 1)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	go func() {
		ended <- a.Read(ctx, "t", topics.Start{After: topics.Newest}, true, func(e *topics.Entry) error {
			came <- string(e.Data)
			return nil
		}, func() error { caught <- true; return nil })
	}()
	<-caught
	send(t, b, "t", pubsub.Message{Data: []byte("one")})
	if text := <-came; text != "one" {
		t.Error(text)
	}
	c.changeLeader(ctx, false)
	send(t, b, "t", pubsub.Message{Data: []byte("two")})
	if text := <-came; text != "two" {
		t.Error(text)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// step adds up what the steps of an operation have done.
func step(sum *topics.Progress) func(topics.Progress) error {
	sum.To = map[string]uint64{}
	return func(p topics.Progress) error {
		sum.Done += p.Done
		sum.Skipped += p.Skipped
		for name, n := range p.To {
			sum.To[name] += n
		}
		return nil
	}
}

// Dead letters go back to the topics that they come from, each once, and keep their order, key and metadata. Those of
// a topic that is not known stay.
func TestAdmin_RedriveMovesDeadLettersBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	side, _ := c.sidecar("side")
	b := topicBroker(t, side, "pubsub", topics.BrokerOptions{Window: time.Hour, Concurrency: 1})
	a := side.Topics("", "pubsub")
	const count = 300
	var sum topics.Progress
	die := func(topic, to string, data func(i int) []byte) {
		s := joinGroup(t, b, topic, "app")
		for i := range count {
			send(t, b, topic, pubsub.Message{ID: fmt.Sprint(topic, sum.Done, i), Key: "k", Data: data(i),
				ContentType: "application/cloudevents+json"})
			d := nextOf(t, s)
			must(t, s.DeadLetter(within(t, time.Minute), &d, to))
		}
		s.Close()
	}
	die("orders", "dead", func(i int) []byte { return fmt.Append(nil, i) })
	must(t, a.Redrive(within(t, time.Minute), "dead", "", step(&sum)))
	if sum.Done != count || sum.Skipped != 0 || sum.To["orders"] != count {
		t.Errorf("%+v", sum)
	}
	if left := entriesOf(t, a, "dead", topics.Start{}); len(left) != 0 {
		t.Errorf("%d dead letters are left", len(left))
	}
	must(t, a.Redrive(within(t, time.Minute), "dead", "", step(&sum)))
	if sum.Done != count {
		t.Errorf("a second redrive has moved %d messages again", sum.Done-count)
	}
	lagIs(t, a, "orders", "app", count)
	s := joinGroup(t, b, "orders", "app")
	for i := range count {
		d := nextOf(t, s)
		if string(d.Data) != fmt.Sprint(i) || d.Key != "k" || d.Attempt != 1 {
			t.Fatalf("message %d is %+v", i, d)
		}
		must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	}
	s.Close()

	// With several sources, the CloudEvent names the source of its message.
	die("orders", "dead", func(int) []byte { return []byte(`{"topic":"orders"}`) })
	die("bills", "dead", func(i int) []byte {
		return []byte([]string{`{"topic":"bills"}`, `{"topic":"secret"}`, `no JSON`}[i%3])
	})
	must(t, a.Redrive(within(t, time.Minute), "dead", "", step(&sum)))
	if sum.To["orders"] < count || sum.To["bills"] == 0 || sum.To["secret"] != 0 ||
		uint64(len(entriesOf(t, a, "dead", topics.Start{}))) != sum.Skipped {
		t.Errorf("%+v", sum)
	}
	must(t, a.Redrive(within(t, time.Minute), "dead", "other", step(&sum)))
	if left := entriesOf(t, a, "dead", topics.Start{}); len(left) != 0 || sum.To["other"] == 0 && sum.Skipped > 0 {
		t.Errorf("%d dead letters are left: %+v", len(left), sum)
	}
	if err := a.Redrive(within(t, time.Minute), "dead", "dead", step(&sum)); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

// A full topic gets no dead letters back, and they stay.
func TestAdmin_RedriveToFullTopicLosesNothing(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	h := c.running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{Policy: topics.Policy{MaxBytes: 10_000}, Concurrency: 1})
	a := h.Topics("", "pubsub")
	s := joinGroup(t, b, "orders", "app")
	send(t, b, "orders", pubsub.Message{Data: []byte("bad")})
	d := nextOf(t, s)
	must(t, s.DeadLetter(within(t, time.Minute), &d, "dead"))
	testutil.Eventually(t, func() error {
		_, err := b.Publish(within(t, time.Minute), pubsub.PublishRequest{Topic: "orders",
			Messages: []pubsub.Message{{Data: make([]byte, 6000)}}})
		if fault.Is(err, fault.Overloaded) {
			return nil
		}
		return fault.New(fault.Internal, "test", fmt.Sprint("the topic is not full: ", err))
	})
	var sum topics.Progress
	err := a.Redrive(within(t, time.Minute), "dead", "", step(&sum))
	if !fault.Is(err, fault.Overloaded) || sum.Done != 0 {
		t.Errorf("%+v, %v", sum, err)
	}
	if got := texts(entriesOf(t, a, "dead", topics.Start{})); !slices.Equal(got, []string{"bad"}) {
		t.Errorf("%v", got)
	}
}

func TestAdmin_RemovesTopicsAndGroups(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	side, _ := c.sidecar("side")
	b := topicBroker(t, side, "pubsub", topics.BrokerOptions{Window: time.Hour, Concurrency: 1, Backoff: time.Minute})
	a := side.Topics("", "pubsub")
	var many []pubsub.Message
	for i := range 6000 {
		many = append(many, pubsub.Message{ID: fmt.Sprint(i), Data: fmt.Append(nil, i)})
	}
	send(t, b, "t", many...)
	send(t, b, "tt", many[:1]...)
	s, other := joinGroup(t, b, "t", "g"), joinGroup(t, b, "t", "gg")
	d := nextOf(t, s)
	must(t, s.Settle(t.Context(), &d, pubsub.Failed))
	var sum topics.Progress
	for _, group := range []string{"", "g"} {
		err := a.Remove(within(t, time.Minute), "t", group, false, step(&sum))
		if !fault.Is(err, fault.Conflict) || sum.Done != 0 ||
			!strings.Contains(err.Error(), "group g has subscribers (1)") {
			t.Errorf("%+v, %v", sum, err)
		}
	}
	s.Close()
	testutil.Eventually(t, func() error { return a.Remove(within(t, time.Minute), "t", "g", false, step(&sum)) })
	if sum.Done != 2 { // the group and the parked message
		t.Errorf("%+v", sum)
	}
	if groups := described(t, a, "t").Groups; len(groups) != 1 || groups[0].Name != "gg" || groups[0].Lag != 6000 {
		t.Errorf("%+v", groups)
	}
	d = nextOf(t, other)
	must(t, a.Remove(within(t, time.Minute), "t", "", true, step(&sum)))
	must(t, other.Settle(t.Context(), &d, pubsub.Acknowledged))
	if got := entriesOf(t, a, "t", topics.Start{}); len(got) != 0 {
		t.Errorf("%d messages are left", len(got))
	}
	if got := entriesOf(t, a, "tt", topics.Start{}); len(got) != 1 {
		t.Errorf("another topic has %d messages", len(got))
	}
	// The subscriber goes on with the new topic, also with ids that the old one had.
	send(t, b, "t", pubsub.Message{ID: "1", Data: []byte("new")})
	for d = nextOf(t, other); string(d.Data) != "new"; d = nextOf(t, other) {
		must(t, other.Settle(t.Context(), &d, pubsub.Acknowledged)) // the window had some messages
	}
	must(t, other.Settle(t.Context(), &d, pubsub.Acknowledged))
	other.Close()
	testutil.Eventually(t, func() error { return a.Remove(within(t, time.Minute), "t", "", false, step(&sum)) })
	testutil.Eventually(t, func() error {
		if list, err := a.Describe(within(t, time.Minute), "t"); err != nil || len(list) > 0 {
			return fault.New(fault.Internal, "test", fmt.Sprintf("%+v, %v", list, err))
		}
		return nil
	})
}

func TestAdmin_ReplayFromOffset(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	side, _ := c.sidecar("side")
	b := topicBroker(t, side, "pubsub", topics.BrokerOptions{Concurrency: 1})
	a := side.Topics("", "pubsub")
	s := joinGroup(t, b, "t", "g")
	for i := range 5 {
		send(t, b, "t", pubsub.Message{Data: fmt.Append(nil, i)})
		d := nextOf(t, s)
		must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	}
	lagIs(t, a, "t", "g", 0)
	all := entriesOf(t, a, "t", topics.Start{})
	must(t, a.Replay(within(t, time.Minute), "t", "g", all[3].Offset, time.Time{}))
	for i := 3; i < 5; i++ {
		d := nextOf(t, s)
		if string(d.Data) != fmt.Sprint(i) {
			t.Errorf("%s instead of %d", d.Data, i)
		}
		must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	}
	lagIs(t, a, "t", "g", 0)
	if err := a.Replay(within(t, time.Minute), "t", "x", 1, time.Time{}); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// gaugeOf returns the value of a metric of a consumer group. The second result is false if the group has no such
// metric.
func gaugeOf(t *testing.T, reg *prometheus.Registry, name, topic, group string) (float64, bool) {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == name && labels["topic"] == topic && labels["consumer_group"] == group {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
			}
		}
	}
	return 0, false
}

// The lag and the age come from the records: for groups without subscribers, after acknowledgements in transactions,
// and after messages were removed.
func TestTopicMetrics_LagAndAge(t *testing.T) {
	t.Parallel()
	var reg *prometheus.Registry
	c := startCluster(t, 1, func(o *raftfsm.Options) { reg = o.Registerer.(*prometheus.Registry) })
	h := c.running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{Concurrency: 1, Backoff: time.Millisecond})
	is := func(name, topic, group string, check func(float64) bool) {
		t.Helper()
		testutil.Eventually(t, func() error {
			if v, ok := gaugeOf(t, reg, name, topic, group); !ok || !check(v) {
				return fault.New(fault.Internal, "test", fmt.Sprint(name, " of ", topic, " is ", v, ok))
			}
			return nil
		})
	}
	equals := func(want float64) func(float64) bool { return func(v float64) bool { return v == want } }
	const lag, age = "quorate_topics_lag", "quorate_topics_oldest_unacknowledged_seconds"
	s := joinGroup(t, b, "t", "g")
	is(lag, "t", "g", equals(0))
	for i := range 5 {
		send(t, b, "t", pubsub.Message{ID: fmt.Sprint(i), Data: fmt.Append(nil, i)})
	}
	is("quorate_topics_published_total", "t", "", equals(5))
	is(lag, "t", "g", equals(5))
	is(age, "t", "g", func(v float64) bool { return v > 0 })
	d := nextOf(t, s)
	must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	is(lag, "t", "g", equals(4))
	d = nextOf(t, s)
	must(t, s.DeadLetter(within(t, time.Minute), &d, "dead"))
	is(lag, "t", "g", equals(3))
	d = nextOf(t, s) // a transaction acknowledges it, and the leader does not learn of that
	must(t, acknowledge(within(t, time.Minute), h, b, "g", d.Token, "",
		[]state.Operation{{Write: state.Write{Key: "app||stock", Value: []byte("1")}}}))
	is(lag, "t", "g", equals(2))
	must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	s.Close()
	is(lag, "t", "g", equals(2))

	dead := joinGroup(t, b, "dead", "ops")
	dead.Close()
	is(lag, "dead", "ops", equals(1))
	var sum topics.Progress
	must(t, h.Topics("", "pubsub").Redrive(within(t, time.Minute), "dead", "", step(&sum)))
	is(lag, "dead", "ops", equals(0))
	is(age, "dead", "ops", equals(0))
	is(lag, "t", "g", equals(3))
	testutil.Eventually(t, func() error {
		return h.Topics("", "pubsub").Remove(within(t, time.Minute), "t", "g", false, step(&sum))
	})
	testutil.Eventually(t, func() error {
		if v, ok := gaugeOf(t, reg, lag, "t", "g"); ok {
			return fault.New(fault.Internal, "test", fmt.Sprint("the deleted group has a lag of ", v))
		}
		return nil
	})
}
