package raftfsm_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
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

// acknowledge sets a key and acknowledges a delivery in one transaction.
func acknowledge(ctx context.Context, h *raftfsm.Host, b *topics.Broker, group, token, request string,
	ops []state.Operation) error {
	e, err := b.StageAck(ctx, pubsub.AckRequest{Token: token, Group: group})
	if err != nil {
		return err
	}
	_, err = h.Store("", "statestore").Transact(ctx, state.TransactRequest{Operations: ops, RequestID: request,
		Effects: []state.Effect{e}})
	return err
}

func storedText(t *testing.T, h *raftfsm.Host, key string) string {
	t.Helper()
	item, err := h.Store("", "statestore").Get(within(t, time.Minute), state.GetRequest{Key: key,
		ReadOptions: state.ReadOptions{Consistency: state.Strong}})
	must(t, err)
	return string(item.Value)
}

// A message that a transaction has acknowledged is not delivered again, whatever its receiver answers afterwards. The
// token works only once.
func TestAcknowledge_InTransaction(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	h := c.running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{Concurrency: 1, Backoff: time.Millisecond})
	ctx := within(t, time.Minute)
	for name, settle := range map[string]func(pubsub.Subscription, *pubsub.Delivery) error{
		"acknowledged": func(s pubsub.Subscription, d *pubsub.Delivery) error {
			return s.Settle(ctx, d, pubsub.Acknowledged)
		},
		"failed":   func(s pubsub.Subscription, d *pubsub.Delivery) error { return s.Settle(ctx, d, pubsub.Failed) },
		"released": func(s pubsub.Subscription, d *pubsub.Delivery) error { return s.Settle(ctx, d, pubsub.Released) },
		"dead letter": func(s pubsub.Subscription, d *pubsub.Delivery) error {
			return s.DeadLetter(ctx, d, "dead-"+d.Topic)
		},
		"gone": func(s pubsub.Subscription, _ *pubsub.Delivery) error { s.Close(); return nil },
	} {
		s := joinGroup(t, b, name, "app")
		send(t, b, name, pubsub.Message{ID: "1"}, pubsub.Message{ID: "2"})
		d := nextOf(t, s)
		must(t, acknowledge(ctx, h, b, "app", d.Token, "", setOne("app||"+name, "1", "")))
		if err := acknowledge(ctx, h, b, "app", d.Token, "", setOne("app||"+name, "2", "")); !fault.Is(err,
			fault.DeliverySettled) {
			t.Errorf("%s: the second transaction: %v", name, err)
		}
		must(t, settle(s, &d))
		if name == "gone" {
			s = joinGroup(t, b, name, "app")
		}
		if d := nextOf(t, s); d.ID != "2" || d.Attempt != 1 {
			t.Errorf("%s: then came attempt %d of %s", name, d.Attempt, d.ID)
		} else {
			must(t, s.Settle(ctx, &d, pubsub.Acknowledged))
		}
		if err := acknowledge(ctx, h, b, "app", d.Token, "", setOne("app||"+name, "3", "")); !fault.Is(err,
			fault.DeliverySettled) {
			t.Errorf("%s: the third transaction: %v", name, err)
		}
		if got := storedText(t, h, "app||"+name); got != "1" {
			t.Errorf("%s: the value is %s", name, got)
		}
		eventually(t, func() error {
			n, err := b.Lag(ctx, name, "app")
			if err == nil && n != 0 {
				err = fmt.Errorf("%s: %d messages are not settled", name, n)
			}
			return err
		})
	}
	s := joinGroup(t, b, "dead-dead letter", "look")
	send(t, b, "dead-dead letter", pubsub.Message{ID: "end"})
	if d := nextOf(t, s); d.ID != "end" {
		t.Errorf("message %s was acknowledged and is a dead letter", d.ID)
	}
}

// A transaction acknowledges two messages, and one of them has failed in the meantime. So the transaction is refused.
// The application then answers both deliveries with a success, as the documentation describes. These answers settle
// neither message, because no effect was stored.
func TestAcknowledge_RefusedTransactionSettlesNoOtherMessage(t *testing.T) {
	t.Parallel()
	h := startCluster(t, 1, nil).running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{Backoff: time.Millisecond})
	ctx := within(t, time.Minute)
	s := joinGroup(t, b, "orders", "app")
	send(t, b, "orders", pubsub.Message{ID: "1"}, pubsub.Message{ID: "2"})
	first, second := nextOf(t, s), nextOf(t, s)
	if first.ID != "1" {
		first, second = second, first
	}
	must(t, s.Settle(ctx, &first, pubsub.Failed))
	again := nextOf(t, s)
	var effects []state.Effect
	for _, token := range []string{first.Token, second.Token} {
		e, err := b.StageAck(ctx, pubsub.AckRequest{Token: token, Group: "app"})
		must(t, err)
		effects = append(effects, e)
	}
	_, err := h.Store("", "statestore").Transact(ctx, state.TransactRequest{Effects: effects,
		Operations: setOne("app||both", "1", "")})
	if !fault.Is(err, fault.DeliverySettled) {
		t.Fatalf("the transaction ends with %v", err)
	}
	must(t, s.Settle(ctx, &again, pubsub.Acknowledged))
	must(t, s.Settle(ctx, &second, pubsub.Acknowledged))
	if d := nextOf(t, s); d.ID != "2" {
		t.Errorf("message %s comes again, want 2", d.ID)
	}
}

// A transaction with a token of another group, or of a settled delivery, is refused, and nothing is written.
func TestAcknowledge_RefusedTokens(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	h := c.running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{Backoff: time.Millisecond})
	ctx := within(t, time.Minute)
	s := joinGroup(t, b, "orders", "app")
	joinGroup(t, b, "other", "other")
	send(t, b, "orders", pubsub.Message{ID: "1"})
	first := nextOf(t, s)
	must(t, s.Settle(ctx, &first, pubsub.Failed))
	d := nextOf(t, s)
	raw, err := base64.RawURLEncoding.DecodeString(d.Token)
	must(t, err)
	_, width := binary.Uvarint(raw[2:]) // size of the offset, which follows the version and the Raft group
	changed := func(i int) string {
		other := append([]byte(nil), raw...)
		other[(i+len(other))%len(other)] ^= 1
		return base64.RawURLEncoding.EncodeToString(other)
	}
	for name, one := range map[string]struct {
		token, group string
		want         fault.Code
	}{
		"earlier attempt":  {first.Token, "app", fault.DeliverySettled},
		"another group":    {d.Token, "other", fault.DeliverySettled},
		"forged proof":     {changed(-1), "app", fault.DeliverySettled},
		"forged attempt":   {changed(2 + width), "app", fault.DeliverySettled},
		"unknown version":  {changed(0), "app", fault.Invalid},
		"unknown group":    {changed(1), "app", fault.DeliverySettled},
		"shortened":        {d.Token[:len(d.Token)-4], "app", fault.Invalid},
		"empty":            {"", "app", fault.Invalid},
		"no base64":        {"#", "app", fault.Invalid},
		"more than enough": {string(make([]byte, 5000)), "app", fault.Invalid},
	} {
		err := acknowledge(ctx, h, b, one.group, one.token, "", setOne("app||a", name, ""))
		if !fault.Is(err, one.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e, err := b.StageAck(ctx, pubsub.AckRequest{Token: d.Token, Group: "app",
		Allowed: func(topic string) bool { return topic != "orders" }})
	if e != nil || !fault.Is(err, fault.DeliverySettled) {
		t.Errorf("a topic to which the application may not subscribe: %v", err)
	}
	if err := acknowledge(ctx, h, b, "app", d.Token, "", setOne("app||a", "no", "1234")); !fault.Is(err,
		fault.Conflict) {
		t.Errorf("a wrong ETag: %v", err)
	}
	if got := storedText(t, h, "app||a"); got != "" {
		t.Errorf("the transaction %q was applied", got)
	}
	must(t, acknowledge(ctx, h, b, "app", d.Token, "r", setOne("app||a", "yes", "")))
	must(t, acknowledge(ctx, h, b, "app", d.Token, "r", setOne("app||a", "yes", ""))) // the stored answer
}

// A transaction on state of another Raft group is refused.
func TestAcknowledge_OtherRaftGroup(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(o *raftfsm.Options) { o.Partitions = 2 })
	h := c.running()[0]
	b := topicBroker(t, h, "pubsub", topics.BrokerOptions{})
	ctx := within(t, time.Minute)
	s := joinGroup(t, b, "orders", "app")
	send(t, b, "orders", pubsub.Message{ID: "1"}, pubsub.Message{ID: "2"})
	done := 0
	for i := range 8 {
		var token string
		if done < 2 {
			d := nextOf(t, s)
			token = d.Token
		}
		for n := i; done < 2; n++ {
			err := acknowledge(ctx, h, b, "app", token, "", setOne(fmt.Sprint("app", n, "||a"), "1", ""))
			if err == nil {
				done++
				break
			}
			if !fault.Is(err, fault.Invalid) || n > i+50 {
				t.Fatal(err)
			}
		}
	}
}

// Members of a group count how often they have handled each message, in transactions that acknowledge it, while the
// leader changes, members leave, and some report a failure after the transaction. Each message was handled once.
func TestAcknowledge_ExactlyOnceThroughChangesOfLeader(t *testing.T) {
	t.Parallel()
	const messages = 120
	c := startCluster(t, 3, nil)
	side, _ := c.sidecar("side")
	ctx := within(t, 2*time.Minute)
	hosts := append(c.running(), side)
	var nodes []*topics.Broker
	for _, h := range hosts {
		nodes = append(nodes, topicBroker(t, h, "pubsub", topics.BrokerOptions{Backoff: 5 * time.Millisecond}))
	}
	done, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	handled := map[string]bool{}
	handle := func(at, turn int, d *pubsub.Delivery) {
		key := "app||" + d.ID
		item, err := hosts[at].Store("", "statestore").Get(ctx, state.GetRequest{Key: key,
			ReadOptions: state.ReadOptions{Consistency: state.Strong}})
		if err != nil {
			t.Error(err)
			return
		}
		n, _ := strconv.Atoi(string(item.Value))
		err = acknowledge(ctx, hosts[(at+turn)%len(hosts)], nodes[(at+turn)%len(hosts)], "app", d.Token, "",
			setOne(key, fmt.Sprint(n+1), item.ETag))
		switch {
		case err == nil:
			mu.Lock()
			handled[d.ID] = true
			mu.Unlock()
		case fault.Is(err, fault.DeliverySettled), fault.Is(err, fault.Conflict), fault.Is(err, fault.Indeterminate):
		default:
			t.Errorf("message %s: %v", d.ID, err)
		}
	}
	var receiving sync.WaitGroup
	for at := range hosts {
		receiving.Go(func() {
			s := joinGroup(t, nodes[at], "orders", "app")
			for turn := 0; ; turn++ {
				list, err := s.Receive(done, 3)
				if err != nil {
					return
				}
				for i := range list {
					if (turn+i)%3 != 0 {
						handle(at, turn, &list[i])
					}
					_ = s.Settle(ctx, &list[i], pubsub.Failed)
				}
				if turn%7 == 6 {
					s.Close()
					s = joinGroup(t, nodes[at], "orders", "app")
				}
			}
		})
	}
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := range messages {
			send(t, nodes[i%len(nodes)], "orders", pubsub.Message{ID: fmt.Sprint(i), Key: fmt.Sprint(i % 7)})
		}
	})
	for round := range 4 {
		c.changeLeader(ctx, round%2 == 1)
		<-time.After(100 * time.Millisecond)
	}
	publishing.Wait()
	eventually(t, func() error { return unsettled(hosts[0], 0) })
	stop()
	receiving.Wait()
	for i := range messages {
		if got := storedText(t, hosts[0], fmt.Sprint("app||", i)); got != "1" {
			t.Errorf("message %d was handled %q times; a transaction has succeeded: %v", i, got, handled[fmt.Sprint(i)])
		}
	}
	sameState(t, c.running()...)
}
