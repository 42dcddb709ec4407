package raftfsm_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/pubsubtest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/topics"
)

// brokers returns a function that opens a broker with a new name, each time on the next of the hosts.
func brokers(hosts ...*raftfsm.Host) func(*testing.T) pubsub.Broker {
	var n atomic.Int64
	return func(t *testing.T) pubsub.Broker {
		t.Helper()
		i := int(n.Add(1))
		b := hosts[i%len(hosts)].Broker("", fmt.Sprint("pubsub", i), topics.BrokerOptions{Window: time.Minute,
			Concurrency: 20, Backoff: 10 * time.Millisecond})
		t.Cleanup(func() { must(t, b.Close()) })
		return b
	}
}

func TestBroker_ConformsOnOneServer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	pubsubtest.Run(t, brokers(c.running()...))
}

func TestBroker_ConformsOnEveryNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	side, _ := c.sidecar("side")
	pubsubtest.Run(t, brokers(append(c.running(), side)...))
}

func topicBroker(t *testing.T, h *raftfsm.Host, name string, o topics.BrokerOptions) *topics.Broker {
	t.Helper()
	b := h.Broker("", name, o)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

func joinGroup(t *testing.T, b pubsub.Broker, topic, group string) pubsub.Subscription {
	t.Helper()
	s, err := b.Subscribe(within(t, time.Minute), pubsub.SubscribeRequest{Topic: topic, Group: group})
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

func send(t *testing.T, b pubsub.Broker, topic string, messages ...pubsub.Message) {
	t.Helper()
	_, err := b.Publish(within(t, time.Minute), pubsub.PublishRequest{Topic: topic, Messages: messages})
	must(t, err)
}

func nextOf(t *testing.T, s pubsub.Subscription) pubsub.Delivery {
	t.Helper()
	list, err := s.Receive(within(t, time.Minute), 1)
	must(t, err)
	return list[0]
}

// changeLeader makes another server lead a group. If hard is true, the leader loses its links for a while.
func (c *cluster) changeLeader(ctx context.Context, hard bool) {
	for _, h := range c.running() {
		if g := h.Groups()[0]; g.Leading() && !hard {
			_ = g.Transfer(ctx, "") // may fail on a busy machine
		} else if g.Leading() {
			id := h.Identity().Server
			c.isolate(id)
			c.leader(id)
			c.heal()
		}
	}
}

// Nodes publish, receive, fail and move messages to another topic while the leader changes. Afterwards every message
// that was published was acknowledged in its topic or is a dead letter, and no dead letter came twice. Messages with
// one key were first received in the order in which they were published.
func TestBroker_SurvivesChangesOfLeader(t *testing.T) {
	t.Parallel()
	const keys, each = 4, 40
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	side, _ := c.sidecar("side")
	ctx := within(t, 2*time.Minute)
	var nodes []*topics.Broker
	for _, h := range append(c.running(), side) {
		nodes = append(nodes, topicBroker(t, h, "pubsub", topics.BrokerOptions{Backoff: 5 * time.Millisecond}))
	}
	var mu sync.Mutex
	first, acked, dead := map[string][]int{}, map[string]bool{}, map[string]bool{}
	var receiving sync.WaitGroup
	done, stop := context.WithCancel(ctx)
	for i, n := range nodes[2:] {
		s := joinGroup(t, n, "orders", "app")
		receiving.Go(func() {
			for turn := i; ; turn++ {
				list, err := s.Receive(done, 3)
				if err != nil {
					return
				}
				for _, d := range list {
					var number int
					_, err := fmt.Sscanf(strings.TrimPrefix(d.ID, d.Key+"-"), "%d", &number)
					mu.Lock()
					if seen := first[d.Key]; err != nil || !slices.Contains(seen, number) {
						first[d.Key] = append(seen, number)
					}
					mu.Unlock()
					switch {
					case turn%11 == 3 && d.Attempt == 1:
						err = s.Settle(ctx, &d, pubsub.Failed)
					case turn%7 == 2:
						if err = s.DeadLetter(ctx, &d, "dead"); err == nil {
							mu.Lock()
							dead[d.ID] = true
							mu.Unlock()
						}
					default:
						if err = s.Settle(ctx, &d, pubsub.Acknowledged); err == nil {
							mu.Lock()
							acked[d.ID] = true
							mu.Unlock()
						}
					}
					if err != nil && !fault.Is(err, fault.NotFound) {
						t.Errorf("settling %s: %v", d.ID, err)
					}
					turn++
				}
			}
		})
	}
	var publishing sync.WaitGroup
	for k := range keys {
		publishing.Go(func() {
			key := fmt.Sprint("k", k)
			for i := range each {
				m := pubsub.Message{ID: fmt.Sprint(key, "-", i), Key: key, Data: []byte("{}")}
				send(t, nodes[(k+i)%len(nodes)], "orders", m)
			}
		})
	}
	for round := range 4 {
		c.changeLeader(ctx, round%2 == 1)
		<-time.After(100 * time.Millisecond)
	}
	publishing.Wait()
	letters := joinGroup(t, nodes[0], "dead", "look")
	found := map[string]int{}
	eventually(t, func() error {
		brief, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		list, _ := letters.Receive(brief, 100)
		for i := range list {
			found[list[i].ID]++
			must(t, letters.Settle(ctx, &list[i], pubsub.Acknowledged))
		}
		mu.Lock()
		defer mu.Unlock()
		for k := range keys {
			for i := range each {
				id := fmt.Sprintf("k%d-%d", k, i)
				if !acked[id] && found[id] == 0 {
					return fmt.Errorf("message %s is neither acknowledged nor a dead letter", id)
				}
			}
		}
		return nil
	})
	stop()
	receiving.Wait()
	for k, seen := range first {
		if !slices.IsSorted(seen) || len(seen) != each {
			t.Errorf("messages with key %s first came in the order %v", k, seen)
		}
	}
	for id, n := range found {
		if n != 1 {
			t.Errorf("the dead letter %s came %d times", id, n)
		}
	}
	for id := range dead {
		// After a change of the leader, two members can have a message. The first outcome counts, so a message that
		// the other member has acknowledged is no dead letter.
		if found[id] == 0 && !acked[id] {
			t.Errorf("the dead letter %s is lost", id)
		}
	}
}

// The number of attempts and the time of the next attempt are in the log, so a new leader knows them.
func TestBroker_AttemptsSurviveChangeOfLeader(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	b := topicBroker(t, c.running()[0], "pubsub", topics.BrokerOptions{Backoff: 500 * time.Millisecond})
	s := joinGroup(t, b, "orders", "app")
	send(t, b, "orders", pubsub.Message{ID: "1"}, pubsub.Message{ID: "late", DeliverAt: time.Now().Add(time.Second)})
	d := nextOf(t, s)
	failed := time.Now()
	must(t, s.Settle(t.Context(), &d, pubsub.Failed))
	eventually(t, func() error { // until the failure is in the log
		if g := lagIs(t, c.running()[0].Topics("", "pubsub"), "orders", "app", 2); g.Retried != 1 {
			return fmt.Errorf("%+v", g)
		}
		return nil
	})
	c.changeLeader(t.Context(), false)
	came := map[string]bool{}
	for range 2 { // in any order, because on a busy machine both may be due when the new leader begins
		d = nextOf(t, s)
		came[d.ID] = true
		if waited := time.Since(failed); d.ID == "1" && (d.Attempt != 2 || waited < 450*time.Millisecond) {
			t.Errorf("attempt %d of %s came after %s", d.Attempt, d.ID, waited)
		}
		if early := time.Until(d.DeliverAt); d.ID == "late" && early > 50*time.Millisecond {
			t.Errorf("%s came %s before its time", d.ID, early)
		}
	}
	if !came["1"] || !came["late"] {
		t.Errorf("the messages %v came", came)
	}
}

// A backup contains topics with their groups. After a restore, a group receives what it had not acknowledged.
func TestBroker_BackupHasTopics(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	h := c.running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{})
	s := joinGroup(t, b, "orders", "app")
	send(t, b, "orders", pubsub.Message{ID: "1"}, pubsub.Message{ID: "2", Key: "k"}, pubsub.Message{ID: "3", Key: "k"})
	for range 2 {
		d := nextOf(t, s)
		switch d.ID {
		case "1":
			must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
		default:
			must(t, s.DeadLetter(within(t, time.Minute), &d, "dead"))
		}
	}
	eventually(t, func() error { return unsettled(h, 1) })
	file := save(t, h)
	d := nextOf(t, s)
	must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	eventually(t, func() error { return unsettled(h, 0) })
	restore(t, h, file)
	if got := nextOf(t, s); got.ID != "3" {
		t.Errorf("after the restore came %s", got.ID)
	}
	if got := nextOf(t, joinGroup(t, b, "dead", "app")); got.ID != "2" {
		t.Errorf("the dead letter after the restore is %s", got.ID)
	}
	send(t, b, "orders", pubsub.Message{ID: "5"})
	if got := nextOf(t, s); got.ID != "5" {
		t.Errorf("after the restore, %s follows", got.ID)
	}
	sameState(t, c.running()...)
}

// unsettled returns an error unless group app of topic orders has n messages that are not settled.
func unsettled(h *raftfsm.Host, n int) error {
	have, err := h.Broker("", "pubsub", topics.BrokerOptions{}).Lag(context.Background(), "orders", "app")
	if err == nil && have != n {
		err = fmt.Errorf("%d messages are not settled", have)
	}
	return err
}

// A topic that is full of messages which a group has not acknowledged refuses further messages. It accepts messages
// again when the group has acknowledged some.
func TestBroker_FullTopic(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	b := topicBroker(t, c.running()[0], "pubsub", topics.BrokerOptions{Policy: topics.Policy{MaxBytes: 20_000}})
	s := joinGroup(t, b, "orders", "app")
	n := 0
	publish := func() error {
		n++
		_, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: "orders", Messages: []pubsub.Message{
			{ID: fmt.Sprint(n), Data: make([]byte, 4000)}}})
		return err
	}
	eventually(t, func() error {
		if err := publish(); !fault.Is(err, fault.Overloaded) || !strings.Contains(err.Error(), "topic_full") {
			return fmt.Errorf("publishing to a full topic: %v", err)
		}
		return nil
	})
	got := 0
	eventually(t, func() error {
		brief, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		list, _ := s.Receive(brief, 10)
		for i := range list {
			got++
			must(t, s.Settle(t.Context(), &list[i], pubsub.Acknowledged))
		}
		return publish()
	})
	if got < 5 {
		t.Errorf("the topic opened after %d messages", got)
	}
}

// Replay brings back what the topic still has, in its order.
func TestBroker_Replay(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	b := topicBroker(t, c.running()[0], "pubsub", topics.BrokerOptions{Concurrency: 1})
	s := joinGroup(t, b, "orders", "app")
	for i := range 3 {
		send(t, b, "orders", pubsub.Message{ID: fmt.Sprint(i)})
	}
	for range 2 {
		for i := range 3 {
			d := nextOf(t, s)
			if d.ID != fmt.Sprint(i) {
				t.Fatalf("message %s came instead of %d", d.ID, i)
			}
			must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
		}
		eventually(t, func() error { return unsettled(c.running()[0], 0) })
		must(t, b.Replay(within(t, time.Minute), "orders", "app", time.UnixMilli(1)))
	}
	if err := b.Replay(within(t, time.Minute), "orders", "other", time.UnixMilli(1)); !fault.Is(err, fault.NotFound) {
		t.Errorf("replay of an unknown group: %v", err)
	}
}

// The bytes of a request include what is stored beside the data.
func TestBroker_BoundsBytesOfRequest(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	b := topicBroker(t, c.running()[0], "pubsub", topics.BrokerOptions{})
	metadata := map[string]string{"a": strings.Repeat("x", 60<<10)}
	messages := make([]pubsub.Message, 1100)
	for i := range messages {
		messages[i] = pubsub.Message{Metadata: metadata}
	}
	_, err := b.Publish(within(t, time.Minute), pubsub.PublishRequest{Topic: "t", Messages: messages})
	if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "the messages have") {
		t.Error(err)
	}
}

// A subscriber has at most 16 MiB of messages that it has not settled, and one more.
func TestBroker_BoundsBytesOfSubscriber(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBytes)
	t.Parallel()
	c := startCluster(t, 1, nil)
	b := topicBroker(t, c.running()[0], "pubsub", topics.BrokerOptions{Concurrency: 100})
	s := joinGroup(t, b, "t", "g")
	const count, size, most = 12, 3 << 20, 6
	data := make([]byte, size)
	for range count {
		send(t, b, "t", pubsub.Message{Data: data})
	}
	var open []pubsub.Delivery
	for range most {
		open = append(open, nextOf(t, s))
	}
	ctx, cancel := context.WithCancel(t.Context())
	more := make(chan error, 1)
	go func() {
		list, err := s.Receive(ctx, 100)
		if err == nil {
			err = fmt.Errorf("%d more messages", len(list))
		}
		more <- err
	}()
	// A second member gets the others, so the leader has looked at all of them.
	second := joinGroup(t, b, "t", "g")
	for range count - most {
		d := nextOf(t, second)
		must(t, second.Settle(t.Context(), &d, pubsub.Acknowledged))
	}
	cancel()
	if err := <-more; !fault.Is(err, fault.Timeout) && ctx.Err() == nil {
		t.Error(err)
	} else if err != nil && strings.Contains(err.Error(), "more messages") {
		t.Error(err)
	}
	for i := range open {
		must(t, s.Settle(t.Context(), &open[i], pubsub.Acknowledged))
	}
	send(t, b, "t", pubsub.Message{Data: data}, pubsub.Message{Data: data})
}
