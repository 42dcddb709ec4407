package raftfsm_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/topics"
)

// event returns the effect that publishes one message with a transaction.
func event(t *testing.T, b *topics.Broker, topic, id, data string) state.Effect {
	t.Helper()
	e, err := b.StagePublish(t.Context(), pubsub.PublishRequest{Topic: topic,
		Messages: []pubsub.Message{{ID: id, Data: []byte(data)}}})
	must(t, err)
	return e
}

func setOne(key, value, etag string) []state.Operation {
	return []state.Operation{{Write: state.Write{Key: key, Value: []byte(value), ETag: etag}}}
}

// Clients of several nodes count up their keys in transactions with an event each, some with wrong ETags, while the
// leader changes. Afterwards the topic has exactly one event for each value that a key had, in their order.
func TestOutbox_EventsEqualTransactions(t *testing.T) {
	t.Parallel()
	const keys, each = 4, 30
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	side, _ := c.sidecar("side")
	ctx := within(t, 2*time.Minute)
	hosts := append(c.running(), side)
	var nodes []*topics.Broker
	for _, h := range hosts {
		nodes = append(nodes, topicBroker(t, h, "pubsub", topics.BrokerOptions{Window: time.Minute, Concurrency: 1}))
	}
	s := joinGroup(t, nodes[3], "changes", "look")
	var writing sync.WaitGroup
	for k := range keys {
		writing.Go(func() {
			key, unknown := fmt.Sprint("app", k, "||n"), 0
			for n := 1; n <= each; {
				at := (k + n + unknown) % len(hosts)
				store := hosts[at].Store("", "statestore")
				item, err := store.Get(ctx, state.GetRequest{Key: key,
					ReadOptions: state.ReadOptions{Consistency: state.Strong}})
				if err != nil {
					t.Error(err)
					return
				}
				have, _ := strconv.Atoi(string(item.Value))
				if have >= n { // an attempt whose outcome was not known
					n = have + 1
					continue
				}
				write := func(etag, data string) error {
					_, err := store.Transact(ctx, state.TransactRequest{Operations: setOne(key, fmt.Sprint(n), etag),
						Effects: []state.Effect{event(t, nodes[at], "changes", fmt.Sprint(k, "-", n), data)}})
					return err
				}
				if n%5 == 0 {
					if err := write("123456789", "no"); !fault.Is(err, fault.Conflict) {
						t.Errorf("a transaction with a wrong ETag: %v", err)
					}
				}
				switch err := write(item.ETag, fmt.Sprint(k, " ", n)); {
				case err == nil:
					n++
				case fault.Is(err, fault.Indeterminate):
					unknown++
				default:
					t.Errorf("key %d, value %d: %v", k, n, err)
					return
				}
			}
		})
	}
	for round := range 4 {
		c.changeLeader(ctx, round%2 == 1)
		<-time.After(100 * time.Millisecond)
	}
	writing.Wait()
	last := [keys]int{}
	for total := 0; total < keys*each && !t.Failed(); total++ {
		d := nextOf(t, s)
		var k, n int
		if _, err := fmt.Sscanf(string(d.Data), "%d %d", &k, &n); err != nil || last[k]+1 != n {
			t.Errorf("event %q follows value %d of key %d", d.Data, last[k], k)
		}
		last[k] = n
		must(t, s.Settle(ctx, &d, pubsub.Acknowledged))
	}
	send(t, nodes[0], "changes", pubsub.Message{ID: "end"})
	if d := nextOf(t, s); d.ID != "end" {
		t.Errorf("%q was published once more", d.Data)
	}
	sameState(t, c.running()...)
}

// A transaction that is repeated with its request id publishes once, although the event of each attempt has another
// id.
func TestOutbox_RepeatedRequest(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	h := c.running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{Concurrency: 1})
	s := joinGroup(t, b, "changes", "look")
	for i := range 3 {
		_, err := h.Store("", "statestore").Transact(t.Context(), state.TransactRequest{RequestID: "r",
			Operations: setOne("app||a", "1", ""),
			Effects:    []state.Effect{event(t, b, "changes", fmt.Sprint("attempt", i), "x")}})
		must(t, err)
	}
	_, err := h.Store("", "statestore").Transact(t.Context(), state.TransactRequest{RequestID: "r",
		Operations: setOne("app||a", "2", ""), Effects: []state.Effect{event(t, b, "changes", "other", "x")}})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("another transaction with the same request id: %v", err)
	}
	send(t, b, "changes", pubsub.Message{ID: "end"})
	for _, want := range []string{"attempt0", "end"} {
		d := nextOf(t, s)
		if d.ID != want {
			t.Errorf("%s came instead of %s", d.ID, want)
		}
		must(t, s.Settle(t.Context(), &d, pubsub.Acknowledged))
	}
}

// The attempts of a request can publish different numbers of events. All return the ETag that the first one wrote.
func TestOutbox_RepeatedRequestWithOtherEvents(t *testing.T) {
	t.Parallel()
	h := open(t, options(t, t.TempDir()))
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{})
	s := h.Store("", "statestore")
	for first := range 3 {
		key := fmt.Sprint("app||", first)
		for attempt, events := range []int{first, 0, 1, 2} {
			var effects []state.Effect
			for i := range events {
				effects = append(effects, event(t, b, "changes", fmt.Sprint(first, attempt, i), "x"))
			}
			w, err := s.Transact(t.Context(), state.TransactRequest{RequestID: "r" + key,
				Operations: setOne(key, "1", ""), Effects: effects})
			must(t, err)
			if tag := get(t, s, key, state.Strong).ETag; len(w.ETags) != 1 || w.ETags[0] != tag {
				t.Errorf("%d events in the first attempt, %d in attempt %d: ETags %q, want %q", first, events, attempt,
					w.ETags, tag)
			}
		}
	}
}

// A transaction whose topic is full is refused as a whole.
func TestOutbox_FullTopic(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	h := c.running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{Policy: topics.Policy{MaxBytes: 20_000}})
	joinGroup(t, b, "changes", "look")
	store, n := h.Store("", "statestore"), 0
	eventually(t, func() error {
		n++
		effects := []state.Effect{event(t, b, "changes", fmt.Sprint(n), string(make([]byte, 4000)))}
		_, err := store.Transact(t.Context(), state.TransactRequest{Operations: setOne("app||n", fmt.Sprint(n), ""),
			Effects: effects})
		if err == nil {
			return fmt.Errorf("transaction %d was accepted", n)
		}
		if !fault.Is(err, fault.Overloaded) {
			t.Errorf("a transaction whose topic is full: %v", err)
		}
		return nil
	})
	item, err := store.Get(t.Context(), state.GetRequest{Key: "app||n"})
	must(t, err)
	if string(item.Value) != fmt.Sprint(n-1) {
		t.Errorf("after the refused transaction %d the value is %s", n, item.Value)
	}
}

// An effect of another store or broker is refused, and nothing is written.
func TestOutbox_UnknownEffect(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	store := c.running()[0].Store("", "statestore")
	_, err := store.Transact(context.Background(), state.TransactRequest{Operations: setOne("app||a", "1", ""),
		Effects: []state.Effect{foreignEffect{}}})
	if item, _ := store.Get(t.Context(), state.GetRequest{Key: "app||a"}); !fault.Is(err, fault.Unimplemented) ||
		item.Found() {
		t.Errorf("%v; written: %v", err, item.Found())
	}
}

type foreignEffect struct{}

func (foreignEffect) Effect() string { return "something foreign" }
