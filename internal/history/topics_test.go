package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTopics_FindPlantedFaults(t *testing.T) {
	mutants(t, []string{"a lost publish", "a publish applied twice", "half a publish", "a refused publish applied",
		"a bulk out of order", "a publish before an acknowledged one", "a delivery before the previous is settled",
		"a delivery that was not published", "a lost dead letter", "a dead letter twice",
		"an acknowledged dead letter", "a dead letter that was not rejected", "two transactions with one message",
		"a message that is never delivered", "a dead letter that was not published"}, playTopics)
}

// topicBroker is a topic with one subscriber, and the topic of its dead letters.
type topicBroker struct {
	rnd   *rand.Rand
	fault string
	h     *Topics
	now   time.Duration
	log   []Message
	dead  []string
	open  map[string][]string // ids of open messages by key, in the order of the log
}

func (b *topicBroker) strikes(fault string) bool { return b.fault == fault && b.rnd.IntN(4) == 0 }

func (b *topicBroker) tick() time.Duration { b.now++; return b.now }

func (b *topicBroker) store(messages []Message) {
	if b.strikes("half a publish") {
		messages = messages[:len(messages)-1]
	}
	if len(messages) > 1 && b.strikes("a bulk out of order") {
		messages = slices.Clone(messages)
		slices.Reverse(messages)
	}
	if n := len(b.log); n > 0 && b.strikes("a publish before an acknowledged one") {
		b.log = slices.Insert(b.log, 0, messages...)
	} else {
		b.log = append(b.log, messages...)
	}
	for _, m := range messages {
		if !b.strikes("a message that is never delivered") {
			b.open[m.Key] = append(b.open[m.Key], m.ID)
		}
	}
}

// deliver delivers the oldest open message of a key.
func (b *topicBroker) deliver(key string) {
	open := b.open[key]
	if len(open) == 0 {
		return
	}
	at := 0
	if len(open) > 1 && b.strikes("a delivery before the previous is settled") {
		at = 1
	}
	d := &Delivery{ID: open[at], Topic: "t", Begin: b.tick(), Reply: Reply(b.rnd.IntN(3))}
	if b.strikes("a delivery that was not published") {
		d.ID += "x"
	}
	d.Settled = d.Reply == Accepted && b.rnd.IntN(2) == 0
	d.End = b.tick()
	b.h.AddDelivery(d)
	if d.Settled && b.strikes("two transactions with one message") {
		b.h.AddDelivery(d)
	}
	if d.Settled && b.strikes("an acknowledged dead letter") ||
		d.Reply == Again && b.strikes("a dead letter that was not rejected") {
		b.dead = append(b.dead, d.ID)
	}
	if d.Reply == Again || !d.Settled && b.rnd.IntN(8) == 0 { // the reply is lost
		return
	}
	if d.Reply == Rejected && !b.strikes("a lost dead letter") {
		b.dead = append(b.dead, d.ID)
		if b.strikes("a dead letter twice") {
			b.dead = append(b.dead, d.ID)
		}
		b.h.AddDelivery(&Delivery{ID: d.ID, Topic: "dead", Begin: b.tick(), End: b.tick()})
	}
	b.open[key] = slices.Delete(open, at, at+1)
}

func playTopics(_ *testing.T, seed uint64, fault string) error {
	rnd := rand.New(rand.NewPCG(seed, 5))
	b := &topicBroker{rnd: rnd, fault: fault, open: map[string][]string{},
		h: NewTopics(Subscription{Topic: "t", Dead: "dead"}, Subscription{Topic: "dead"})}
	keys := []string{"k0", "k1"}
	for i := range 60 {
		p := &Publish{Name: fmt.Sprintf("p%03d", i), Topic: "t", Begin: b.tick(), Result: Written}
		for j := range 1 + rnd.IntN(3) {
			p.Messages = append(p.Messages, Message{fmt.Sprintf("%s-%d", p.Name, j), keys[rnd.IntN(2)]})
		}
		switch rnd.IntN(10) {
		case 0:
			p.Result = Refused
			if b.strikes("a refused publish applied") {
				b.store(p.Messages)
			}
		case 1:
			p.Result = Unknown
			if rnd.IntN(2) == 0 {
				b.store(p.Messages)
			}
		default:
			if !b.strikes("a lost publish") {
				b.store(p.Messages)
			}
			if b.strikes("a publish applied twice") {
				b.store(p.Messages)
			}
		}
		p.End = b.tick()
		b.h.AddPublish(p)
		for range rnd.IntN(4) {
			b.deliver(keys[rnd.IntN(2)])
		}
	}
	for range 2000 {
		b.deliver(keys[rnd.IntN(2)])
	}
	var ids []string
	for _, m := range b.log {
		ids = append(ids, m.ID)
	}
	b.h.Holds("t", ids)
	if b.strikes("a dead letter that was not published") {
		b.dead = append(b.dead, "x")
	}
	b.h.Holds("dead", b.dead)
	bad := b.h.Check()
	for _, id := range b.h.Missing() {
		bad = append(bad, id+" is not delivered")
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "\n"))
	}
	return nil
}

// TestTopics_ResolvesTransactions checks that events of a transaction are in the topic exactly if its values are
// stored.
func TestTopics_ResolvesTransactions(t *testing.T) {
	h := NewTopics(Subscription{Topic: "events"})
	for _, name := range []string{"stored", "not stored"} {
		h.AddPublish(&Publish{Name: name, Topic: "events", Messages: []Message{{ID: name}}, Result: Unknown})
	}
	h.Holds("events", []string{"not stored"})
	if bad := h.Check(); len(bad) > 0 {
		t.Fatalf("a violation is found while the outcome is unknown: %v", bad)
	}
	if got := h.Undecided(); len(got) != 2 {
		t.Errorf("undecided: %v", got)
	}
	h.Resolve("stored", Written)
	h.Resolve("not stored", Refused)
	if bad := h.Check(); len(bad) != 2 || !strings.Contains(bad[0], "that was refused") ||
		!strings.Contains(bad[1], "an acknowledged publish is lost") {
		t.Errorf("found: %q", bad)
	}
}

// TestTopics_ResolvedTransactionMayBeCommittedLate checks that a transaction may be committed after a later publish if
// its client has not waited for the end of the transaction.
func TestTopics_ResolvedTransactionMayBeCommittedLate(t *testing.T) {
	for _, c := range []struct {
		result Result // of the transaction that is committed late
		bad    int
	}{{Unknown, 0}, {Written, 1}} {
		h := NewTopics(Subscription{Topic: "events"})
		h.begun = h.begun.Add(-time.Hour) // before all times below
		h.AddPublish(&Publish{Name: "late", Topic: "events", Messages: []Message{{"late", "k"}},
			Begin: 1 * time.Second, End: 2 * time.Second, Result: c.result})
		h.AddPublish(&Publish{Name: "next", Topic: "events", Messages: []Message{{"next", "k"}},
			Begin: 3 * time.Second, End: 4 * time.Second, Result: Written})
		h.Holds("events", []string{"next", "late"})
		if c.result == Unknown {
			h.Resolve("late", Written)
		}
		if bad := h.Check(); len(bad) != c.bad {
			t.Errorf("result %v: found %q", c.result, bad)
		}
	}
}
