package history

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Message is one message of a publish. Its id is unique in a history.
type Message struct{ ID, Key string }

// Publish is one request that publishes messages to a topic: a single message, a bulk, or a state transaction with
// events. All times are since the start of the history.
type Publish struct {
	Name       string // unique
	Topic      string
	Messages   []Message // in the order in which they were published
	Begin, End time.Duration
	Result     Result // Written, Refused or Unknown
}

// Reply is how a subscriber has answered a delivery.
type Reply uint8

// The replies.
const (
	Accepted Reply = iota
	Again          // the message must come again
	Rejected       // the message becomes a dead letter, if the subscription has a topic for them
)

// String returns the reply in words.
func (r Reply) String() string { return []string{"accepted", "to come again", "rejected"}[r] }

// Delivery is one delivery of a message to a subscriber.
type Delivery struct {
	ID, Node string
	Topic    string // topic of the subscription, also if the message is a dead letter of another topic
	Begin    time.Duration
	End      time.Duration // when the subscriber has replied, or sent a transaction with the token
	Reply    Reply
	Settled  bool // a state transaction with the token of the delivery was acknowledged
}

// Subscription is the consumer group of a topic. Dead is the topic for its dead letters, or "" if there is none.
type Subscription struct{ Topic, Dead string }

// Topics records what is published to topics and delivered from them. Each topic has one consumer group. A Topics is
// safe for concurrent use.
type Topics struct {
	begun         time.Time
	subscriptions []Subscription

	mu         sync.Mutex
	publishes  map[string]*Publish // by name; guarded by mu, as are the fields below
	deliveries map[string][]*Delivery
	logs       map[string][]string // ids of the messages that a topic has in the end, by topic
}

// NewTopics starts a history of topics with these subscriptions.
func NewTopics(subscriptions ...Subscription) *Topics {
	return &Topics{begun: time.Now(), subscriptions: subscriptions, publishes: map[string]*Publish{},
		deliveries: map[string][]*Delivery{}, logs: map[string][]string{}}
}

// Now returns the time since the start of the history.
func (h *Topics) Now() time.Duration { return time.Since(h.begun) }

// AddPublish records a publish that has ended.
func (h *Topics) AddPublish(p *Publish) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publishes[p.Name] = p
}

// AddDelivery records a delivery that has ended.
func (h *Topics) AddDelivery(d *Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := d.Topic + "||" + d.ID
	h.deliveries[at] = append(h.deliveries[at], d)
}

// Resolve sets the result of a publish whose outcome was unknown at first. For example, the values of a state
// transaction may be read later, and show whether the transaction was committed. If r is Written, the end of the
// publish is the time of this call. The reason is that the publish may have been committed at any time before, even
// after the client stopped waiting.
func (h *Topics) Resolve(name string, r Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.publishes[name]
	if p.Result = r; r == Written {
		p.End = h.Now()
	}
}

// Undecided returns copies of the publishes whose outcome is unknown.
func (h *Topics) Undecided() (unknown []Publish) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.publishes {
		if p.Result == Unknown {
			unknown = append(unknown, *p)
		}
	}
	return unknown
}

// Holds records the ids of all messages that a topic has at the end, in the order of the topic. The caller must make
// sure that no message was ever removed from the topic.
func (h *Topics) Holds(topic string, ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logs[topic] = ids
}

// Missing returns the messages of acknowledged publishes that must still be delivered. Each element of the result is a
// topic, a space and the id of a message. There are two kinds:
//
//   - messages that the subscriber of their topic has neither accepted nor rejected
//   - messages that the subscriber has rejected and never accepted, and that the subscriber of the dead-letter topic
//     has not accepted; the element then names the dead-letter topic
func (h *Topics) Missing() (ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.subscriptions {
		for _, p := range h.publishes {
			if p.Topic != s.Topic || p.Result != Written {
				continue
			}
			for _, m := range p.Messages {
				switch f := h.fateLocked(s.Topic, m.ID); {
				case f.first == nil || f.accepted+f.rejected == 0:
					ids = append(ids, s.Topic+" "+m.ID)
				case s.Dead != "" && f.accepted == 0 && h.fateLocked(s.Dead, m.ID).accepted == 0:
					ids = append(ids, s.Dead+" "+m.ID)
				}
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// fate summarizes the deliveries of one message of a topic.
type fate struct {
	first              *Delivery     // the delivery that began first; nil = none
	done               time.Duration // when a subscriber first accepted or rejected the message; never = not yet
	accepted, rejected int
	settled            int
}

func (h *Topics) fateLocked(topic, id string) fate {
	f := fate{done: time.Duration(never)}
	for _, d := range h.deliveries[topic+"||"+id] {
		if f.first == nil || d.Begin < f.first.Begin {
			f.first = d
		}
		switch d.Reply {
		case Accepted:
			f.accepted++
		case Rejected:
			f.rejected++
		case Again:
		}
		if d.Settled {
			f.settled++
		}
		if d.Reply != Again || d.Settled {
			f.done = min(f.done, d.End)
		}
	}
	return f
}

// published is a message with its publish.
type published struct {
	Message
	publish *Publish
	index   int // position of the message in the publish
}

// Check returns the violations of these guarantees:
//
//  1. A topic has each message of an acknowledged publish once, and no message of a refused publish.
//  2. If the outcome of a publish is unknown, the topic has either all of its messages or none.
//  3. The messages of one publish are in their order.
//  4. Two messages with the same key are in the order of their publishes, if the first publish was acknowledged before
//     the second began.
//  5. A message is delivered only after the subscriber has accepted or rejected all earlier messages with the same key.
//  6. A topic of dead letters has every message of an acknowledged publish that the subscriber has rejected and never
//     accepted.
//  7. A topic of dead letters has only messages that the subscriber has rejected, and no message twice.
//  8. At most one state transaction that acknowledges a given message succeeds. The message is then no dead letter.
//  9. Only published messages are delivered.
//
// Some checks need all messages of a topic, and are omitted if Holds was not called for the topic. The cost of Check is
// linear in the number of messages and deliveries.
func (h *Topics) Check() (bad []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]published{} // messages by id
	for _, p := range h.publishes {
		for i, m := range p.Messages {
			all[m.ID] = published{m, p, i}
		}
	}
	sources := map[string]string{} // topics of dead letters, and the topic that each comes from
	for _, s := range h.subscriptions {
		if s.Dead != "" {
			sources[s.Dead] = s.Topic
		}
	}
	for _, at := range slices.Sorted(maps.Keys(h.deliveries)) {
		d := h.deliveries[at][0]
		m, known := all[d.ID]
		from := d.Topic
		if source, dead := sources[d.Topic]; dead {
			from = source
		}
		if !known || m.publish.Result == Refused || m.publish.Topic != from {
			bad = append(bad, fmt.Sprintf("message %s of topic %s is delivered and was not published there\n%s", d.ID,
				d.Topic, h.listLocked(m.publish, d.Topic, d.ID)))
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(h.logs)) {
		if _, dead := sources[topic]; !dead {
			bad = append(bad, h.checkLogLocked(topic, all)...)
		}
	}
	for _, s := range h.subscriptions {
		if _, known := h.logs[s.Topic]; known {
			bad = append(bad, h.checkOrderLocked(s.Topic, all)...)
		}
		bad = append(bad, h.checkDeadLocked(s, all)...)
	}
	return bad
}

// checkLogLocked compares a topic with what was published to it.
func (h *Topics) checkLogLocked(topic string, all map[string]published) (bad []string) {
	count := map[string]int{}
	newest := map[string]published{} // by publish: the last message in the log so far
	log := h.logs[topic]
	for _, id := range log {
		m, known := all[id]
		switch count[id]++; {
		case !known || m.publish.Topic != topic:
			bad = append(bad, fmt.Sprintf("topic %s has message %s, which was not published there", topic, id))
			continue
		case m.publish.Result == Refused:
			bad = append(bad, fmt.Sprintf("topic %s has message %s of a publish that was refused\n%s", topic, id,
				h.listLocked(m.publish, topic, id)))
		case count[id] == 2:
			bad = append(bad, fmt.Sprintf("topic %s has message %s twice\n%s", topic, id,
				h.listLocked(m.publish, topic, id)))
		}
		if before, ok := newest[m.publish.Name]; ok && before.index > m.index {
			bad = append(bad, fmt.Sprintf("topic %s has message %s after %s of the same publish\n%s", topic, id,
				before.ID, h.listLocked(m.publish, topic, id)))
		}
		newest[m.publish.Name] = m
	}
	for _, name := range slices.Sorted(maps.Keys(h.publishes)) {
		p := h.publishes[name]
		if p.Topic != topic {
			continue
		}
		have := 0
		for _, m := range p.Messages {
			have += min(1, count[m.ID])
		}
		switch {
		case p.Result == Written && have < len(p.Messages):
			bad = append(bad, fmt.Sprintf("an acknowledged publish is lost: topic %s has %d of its %d messages\n%s",
				topic, have, len(p.Messages), p))
		case p.Result == Unknown && have > 0 && have < len(p.Messages):
			bad = append(bad, fmt.Sprintf("half a publish: topic %s has %d of its %d messages\n%s", topic, have,
				len(p.Messages), p))
		}
	}
	earliest := map[string]*Publish{} // by key: of the messages that follow in the log, the publish that ended first
	for _, id := range slices.Backward(log) {
		m, known := all[id]
		if !known || m.Key == "" {
			continue
		}
		later := earliest[m.Key]
		if later != nil && later.End < m.publish.Begin {
			bad = append(bad, fmt.Sprintf("topic %s has message %s with key %s before messages that were acknowledged "+
				"before it was published\n%s\n%s", topic, id, m.Key, later, m.publish))
		}
		if m.publish.Result == Written && (later == nil || m.publish.End < later.End) {
			earliest[m.Key] = m.publish
		}
	}
	return bad
}

// checkOrderLocked checks the order of the deliveries of a topic, by key.
func (h *Topics) checkOrderLocked(topic string, all map[string]published) (bad []string) {
	type latest struct {
		id   string
		done time.Duration
	}
	before := map[string]latest{} // by key: of the earlier messages, the one that was accepted or rejected last
	for _, id := range h.logs[topic] {
		m := all[id]
		if m.Key == "" {
			continue
		}
		f := h.fateLocked(topic, id)
		open, known := before[m.Key]
		if f.first != nil && known && f.first.Begin < open.done {
			bad = append(bad, fmt.Sprintf("message %s of topic %s is delivered before %s with the same key %s is "+
				"accepted or rejected\n%s\n%s", id, topic, open.id, m.Key,
				h.listLocked(all[open.id].publish, topic, open.id), h.listLocked(m.publish, topic, id)))
		}
		if !known || f.done > open.done {
			before[m.Key] = latest{id, f.done}
		}
	}
	return bad
}

// checkDeadLocked compares dead letters with the deliveries of their source.
func (h *Topics) checkDeadLocked(s Subscription, all map[string]published) (bad []string) {
	_, source := h.logs[s.Topic]
	letters, known := h.logs[s.Dead]
	dead := map[string]int{}
	for _, id := range letters {
		dead[id]++
	}
	for _, id := range slices.Sorted(maps.Keys(dead)) {
		if m, published := all[id]; !published || m.publish.Topic != s.Topic {
			bad = append(bad, fmt.Sprintf("the topic %s of dead letters has message %s, which was not published to %s",
				s.Dead, id, s.Topic))
		}
	}
	known = known && source && s.Dead != ""
	for _, id := range slices.Sorted(maps.Keys(all)) {
		p := all[id].publish
		if p.Topic != s.Topic {
			continue
		}
		text := ""
		switch f := h.fateLocked(s.Topic, id); {
		case f.settled > 1:
			text = fmt.Sprintf("%d transactions have acknowledged message %s of topic %s", f.settled, id, s.Topic)
		case f.settled > 0 && dead[id] > 0:
			text = fmt.Sprintf("message %s of topic %s is acknowledged by a transaction, and is a dead letter", id,
				s.Topic)
		case dead[id] > 1:
			text = fmt.Sprintf("message %s of topic %s is %d times a dead letter", id, s.Topic, dead[id])
		case dead[id] > 0 && f.rejected == 0:
			text = fmt.Sprintf("message %s of topic %s is a dead letter, and the subscriber has not rejected it", id,
				s.Topic)
		case known && dead[id] == 0 && f.rejected > 0 && f.accepted == 0 && f.settled == 0 && p.Result == Written:
			text = fmt.Sprintf("message %s of topic %s was rejected, and is no dead letter", id, s.Topic)
		}
		if text != "" {
			bad = append(bad, text+"\n"+h.listLocked(p, s.Topic, id))
		}
	}
	return bad
}

// listLocked describes a message: its publish, which may be nil, and its deliveries.
func (h *Topics) listLocked(p *Publish, topic, id string) string {
	lines := []string{"no publish"}
	if p != nil {
		lines[0] = p.String()
	}
	for _, d := range h.deliveries[topic+"||"+id] {
		lines = append(lines, d.String())
	}
	return strings.Join(lines, "\n")
}

// String describes the publish.
func (p *Publish) String() string {
	return fmt.Sprintf("%s to %s, publish %s of %s to %s: %s", micro(p.Begin), micro(p.End), p.Name,
		brief(fmt.Sprint(p.Messages)), p.Topic, p.Result)
}

// String describes the delivery.
func (d *Delivery) String() string {
	settled := ""
	if d.Settled {
		settled = ", acknowledged by a transaction"
	}
	return fmt.Sprintf("%s to %s, delivery of %s from %s at %s: %s%s", micro(d.Begin), micro(d.End), d.ID, d.Topic,
		d.Node, d.Reply, settled)
}

// Size returns the number of publishes and deliveries.
func (h *Topics) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.publishes)
	for _, all := range h.deliveries {
		n += len(all)
	}
	return n
}

// WriteTo writes all publishes, deliveries and topics as text, one on each line.
func (h *Topics) WriteTo(w io.Writer) (n int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(h.publishes)) {
		lines = append(lines, h.publishes[name].String())
	}
	for _, at := range slices.Sorted(maps.Keys(h.deliveries)) {
		for _, d := range h.deliveries[at] {
			lines = append(lines, d.String())
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(h.logs)) {
		lines = append(lines, fmt.Sprintf("in the end topic %s has %v", topic, h.logs[topic]))
	}
	return writeLines(w, lines)
}

// String returns a summary.
func (h *Topics) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	acknowledged, unsure, messages := 0, 0, 0
	for _, p := range h.publishes {
		switch p.Result {
		case Written:
			acknowledged++
			messages += len(p.Messages)
		case Unknown:
			unsure++
		case Refused, NoWrite:
		}
	}
	deliveries, again, settled := 0, 0, 0
	for _, all := range h.deliveries {
		deliveries += len(all)
		again += len(all) - 1
		for _, d := range all {
			if d.Settled {
				settled++
			}
		}
	}
	return fmt.Sprintf("%d publishes, %d acknowledged with %d messages, %d of unknown outcome; %d deliveries, %d of "+
		"them again, %d acknowledged by a transaction", len(h.publishes), acknowledged, messages, unsure, deliveries,
		again, settled)
}
