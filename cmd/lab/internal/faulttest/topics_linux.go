package faulttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/history"
)

// The topics of a TopicLoad. The subscriber of ordersTopic sometimes fails. The subscriber of parcelsTopic rejects
// some messages, and the node then publishes them to deadTopic. Transactions publish to eventsTopic.
const (
	ordersTopic  = "orders"
	parcelsTopic = "parcels"
	deadTopic    = "dead-parcels"
	eventsTopic  = "events"
	// eventsStore is the component whose transactions publish events.
	eventsStore = "eventsstore"
)

// topicPace is how long a client waits after each publish, in addition to Options.Pace of the cluster.
const topicPace = 80 * time.Millisecond

// topicComponents is the content of the component file of a TopicLoad. The retention is so long that the topics keep
// all messages, because the load compares all messages at the end.
const topicComponents = `apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: pubsub}
spec:
  type: pubsub.raft
  version: v1
  metadata:
  - {name: retention, value: 8760h}
---
apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: statestore}
spec:
  type: state.raft
  version: v1
  metadata:
  - {name: actorStateStore, value: "true"}
---
apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: ` + eventsStore + `}
spec:
  type: state.raft
  version: v1
  metadata:
  - {name: outboxPublishPubsub, value: pubsub}
  - {name: outboxPublishTopic, value: ` + eventsTopic + `}
`

// TopicLoad has clients that publish to topics through random nodes. They publish single messages, bulks, and events of
// state transactions. The application of every node subscribes to all topics. It reports a failure for some deliveries,
// and acknowledges others with a state transaction. See history.Topics.Check for the checks.
type TopicLoad struct {
	History *history.Topics

	seed    uint64
	cluster *Cluster
	calm    atomic.Bool // the subscribers accept everything
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// NewTopics returns a load without clients.
func NewTopics(seed uint64) *TopicLoad {
	return &TopicLoad{seed: seed, stop: func() {}, History: history.NewTopics(
		history.Subscription{Topic: ordersTopic}, history.Subscription{Topic: parcelsTopic, Dead: deadTopic},
		history.Subscription{Topic: deadTopic}, history.Subscription{Topic: eventsTopic})}
}

// Flags writes the components that the load needs into a directory below dir. It returns the flags with which a node
// loads these components.
func (l *TopicLoad) Flags(dir string) ([]string, error) {
	folder := filepath.Join(dir, "resources")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	err := os.WriteFile(filepath.Join(folder, "topics.yaml"), []byte(topicComponents), 0o600)
	return []string{"--resources-path", folder}, err
}

// Start starts the given number of clients. The options of the cluster must contain the result of l.Flags, and an
// Application function that returns the result of l.Application.
func (l *TopicLoad) Start(c *Cluster, clients int) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cluster, l.stop = c, cancel
	for id := range clients {
		one := &publisher{load: l, id: id,
			rnd: rand.New(rand.NewPCG(l.seed, uint64(id)+9000))} //nolint:gosec // chance, not a secret
		l.wg.Go(func() {
			for ctx.Err() == nil {
				one.n++
				c.pass(ctx, func() { one.publish(ctx) })
				pause(ctx, topicPace)
			}
		})
	}
}

// publisher publishes one request after the other, each through a random node.
type publisher struct {
	load  *TopicLoad
	id, n int
	rnd   *rand.Rand
}

// key returns a random key. Some keys are used by all publishers.
func (p *publisher) key() string {
	if n := p.rnd.IntN(6); n < 2 {
		return fmt.Sprint("shared-", n)
	}
	return fmt.Sprintf("own-%d-%d", p.id, p.rnd.IntN(3))
}

func (p *publisher) publish(ctx context.Context) {
	nodes := p.load.cluster.Running()
	if len(nodes) == 0 {
		return
	}
	n := nodes[p.rnd.IntN(len(nodes))]
	if !n.active() && p.rnd.IntN(8) > 0 { // a paused node answers no client
		return
	}
	made := &history.Publish{Name: fmt.Sprintf("p%d-%05d", p.id, p.n), Topic: ordersTopic}
	kind, size := p.rnd.IntN(4), 1
	switch kind {
	case 0:
		size = 1 + p.rnd.IntN(5) // a bulk
	case 1:
		made.Topic, size = eventsTopic, 1+p.rnd.IntN(3)
	case 2:
		made.Topic = parcelsTopic
	}
	for i := range size {
		made.Messages = append(made.Messages, history.Message{ID: fmt.Sprintf("%s-%d", made.Name, i), Key: p.key()})
	}
	path, body, kindOf := "", "", "application/json"
	switch kind {
	case 0:
		path, body = "/v1.0/publish/bulk/pubsub/"+made.Topic, bulkOf(made.Messages)
	case 1:
		path, body = "/v1.0/state/"+eventsStore+"/transaction", transactionOf(made.Messages)
	default:
		path = "/v1.0/publish/pubsub/" + made.Topic + "?metadata.partitionKey=" + made.Messages[0].Key
		body, kindOf = made.Messages[0].ID, "text/plain"
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	made.Begin = p.load.History.Now()
	reply, err := n.raw(limit, http.MethodPost, path, body, "Content-Type", kindOf)
	made.End, made.Result = p.load.History.Now(), history.Unknown
	switch {
	case err != nil:
		made.Result = written(lost(Request{}, err).Outcome)
	case reply.status == http.StatusNoContent:
		made.Result = history.Written
	case kind == 1:
		made.Result = written(failure(Request{}, reply.status, reply.body).Outcome)
	case reply.status < http.StatusInternalServerError:
		made.Result = history.Refused
	}
	p.load.History.AddPublish(made)
}

// bulkOf returns the body of a bulk publish.
func bulkOf(messages []history.Message) string {
	var entries []any
	for _, m := range messages {
		entries = append(entries, map[string]any{"entryId": m.ID, "event": m.ID, "contentType": "text/plain",
			"metadata": map[string]string{"partitionKey": m.Key}})
	}
	return text(entries)
}

// transactionOf returns the body of a transaction that publishes messages.
func transactionOf(messages []history.Message) string {
	var operations []any
	for _, m := range messages {
		operations = append(operations, map[string]any{"operation": "upsert", "request": map[string]any{"key": m.ID,
			"value": m.ID, "metadata": map[string]string{"partitionKey": m.Key}}})
	}
	return text(map[string]any{"operations": operations})
}

// Application returns the application at a node, which subscribes to the topics. It passes all other requests to
// fallback.
func (l *TopicLoad) Application(n *Node, fallback http.Handler) http.Handler {
	s := &subscriber{load: l, node: n,
		rnd: rand.New(rand.NewPCG(l.seed, 9500+uint64(n.Addr.As4()[3])))} //nolint:gosec // chance, not a secret
	m := http.NewServeMux()
	m.Handle("/", fallback)
	m.HandleFunc("GET /dapr/subscribe", func(w http.ResponseWriter, _ *http.Request) {
		var list []any
		for _, topic := range []string{ordersTopic, parcelsTopic, deadTopic, eventsTopic} {
			one := map[string]string{"pubsubname": "pubsub", "topic": topic, "route": "/topics/" + topic}
			if topic == parcelsTopic {
				one["deadLetterTopic"] = deadTopic
			}
			list = append(list, one)
		}
		_, _ = io.WriteString(w, text(list))
	})
	m.HandleFunc("POST /topics/{topic}", s.deliver)
	return m
}

// subscriber is the application at one node.
type subscriber struct {
	load *TopicLoad
	node *Node

	mu  sync.Mutex
	rnd *rand.Rand // guarded by mu
}

// chance returns a random number below n.
func (s *subscriber) chance(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

// cloudEvent is the part of a CloudEvent that the load reads.
type cloudEvent struct{ Data string }

// deliver handles the delivery of a message, and chooses its response at random. The body of the response can be
// SUCCESS, RETRY (a failure) or DROP (the message is rejected). The last two are sent with status 200 or 500. For some
// deliveries, deliver calls settle before it responds.
func (s *subscriber) deliver(w http.ResponseWriter, r *http.Request) {
	h := s.load.History
	d := &history.Delivery{Topic: r.PathValue("topic"), Node: s.node.Name, Begin: h.Now()}
	var e cloudEvent
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		if r.Context().Err() != nil { // the node has ended during the request
			return
		}
		e.Data = "unreadable: " + err.Error()
	}
	d.ID = strings.Trim(e.Data, `"`)
	if s.chance(20) == 0 {
		pause(r.Context(), 100*time.Millisecond)
	}
	status, answer := http.StatusOK, `{"status":"SUCCESS"}`
	fails := s.chance(2)
	switch n := s.chance(12); {
	case s.load.calm.Load() || n > 4:
		d.End = h.Now()
	case n > 2 && r.Header.Get("Quorate-Ack") != "":
		// The message may be settled as soon as the transaction is sent.
		if d.End = h.Now(); !s.settle(r, d) {
			break
		}
		if d.Settled && n == 3 { // the answer must not change anything
			status, answer = http.StatusInternalServerError, ""
		}
	case d.Topic == parcelsTopic:
		d.End, d.Reply, answer = h.Now(), history.Rejected, `{"status":"DROP"}`
		status -= fails * (http.StatusOK - http.StatusInternalServerError)
	case n == 0:
		d.End, d.Reply, answer = h.Now(), history.Again, `{"status":"RETRY"}`
		status -= fails * (http.StatusOK - http.StatusInternalServerError)
	default:
		d.End = h.Now()
	}
	h.AddDelivery(d)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer)
}

// settle acknowledges a delivery with a state transaction, and sets d.Settled if the transaction succeeds. While
// Cluster.Quiet is running, it sends nothing and returns false.
func (s *subscriber) settle(r *http.Request, d *history.Delivery) bool {
	if !s.load.cluster.gate.TryRLock() {
		return false
	}
	defer s.load.cluster.gate.RUnlock()
	body := text(map[string]any{"operations": []any{map[string]any{"operation": "upsert",
		"request": map[string]any{"key": "settled-" + d.ID, "value": d.Topic}}}})
	limit, cancel := context.WithTimeout(r.Context(), answerTime)
	defer cancel()
	reply, err := s.node.raw(limit, http.MethodPost, "/v1.0/state/statestore/transaction", body, "Quorate-Ack",
		r.Header.Get("Quorate-Ack"))
	switch {
	case err != nil: // the outcome is unknown
	case reply.status == http.StatusNoContent:
		d.Settled = true
	case reply.status == http.StatusConflict: // it was settled before, or comes again
		d.Reply = history.Again
	}
	return true
}

// Stop stops the clients and returns the violations. If whole is true, it first waits until every acknowledged message
// is delivered and no consumer group has messages left. If the cluster does not serve requests, whole must be false;
// Stop then checks only what is already recorded.
func (l *TopicLoad) Stop(ctx context.Context, whole bool) (bad []string) {
	l.stop()
	l.wg.Wait()
	l.calm.Store(true)
	if whole {
		err := Until(ctx, func() error {
			if ids := l.History.Missing(); len(ids) > 0 {
				return fmt.Errorf("%d messages are not delivered, such as %v", len(ids), ids[:min(10, len(ids))])
			}
			return l.settled(ctx)
		})
		if err == nil {
			err = l.read(ctx)
		}
		if err != nil {
			bad = append(bad, "topics: "+err.Error())
		}
		if l.History.Size() == 0 {
			bad = append(bad, "nothing was published")
		}
	}
	return append(bad, l.History.Check()...)
}

// settled returns nil if no consumer group has messages that are not acknowledged.
func (l *TopicLoad) settled(ctx context.Context) error {
	nodes := l.cluster.Running()
	if len(nodes) == 0 {
		return errors.New("no node runs")
	}
	var list []schema.TopicStatus
	if err := nodes[0].ask(ctx, adminapi.TopicsPath, &list); err != nil {
		return err
	}
	for i := range list {
		for _, g := range list[i].Groups {
			if g.Lag > 0 {
				return fmt.Errorf("%d messages of topic %s are not acknowledged", g.Lag, list[i].Topic)
			}
		}
	}
	return nil
}

// read reads all messages of all topics into the history. For each publishing transaction with an unknown outcome, read
// also finds out whether the transaction was committed, and records the result.
func (l *TopicLoad) read(ctx context.Context) error {
	l.expire(ctx)
	nodes := l.cluster.Running()
	if len(nodes) == 0 {
		return errors.New("no node runs")
	}
	for _, topic := range []string{ordersTopic, parcelsTopic, deadTopic, eventsTopic} {
		var ids []string
		err := Until(ctx, func() (err error) {
			ids, err = nodes[0].messages(ctx, topic)
			return err
		})
		if err != nil {
			return err
		}
		l.History.Holds(topic, ids)
	}
	for _, p := range l.History.Undecided() {
		if p.Topic != eventsTopic {
			continue
		}
		result := history.Refused
		for i, m := range p.Messages {
			value := ""
			err := Until(ctx, func() error {
				reply, err := nodes[0].raw(ctx, http.MethodGet, "/v1.0/state/"+eventsStore+"/"+m.ID+
					"?consistency=strong", "")
				if err == nil && reply.status >= http.StatusBadRequest {
					err = fmt.Errorf("the read of %s is answered with %d %s", m.ID, reply.status, reply.body)
				}
				value = string(reply.body)
				return err
			})
			switch {
			case err != nil:
				return err
			case i > 0 && (value != "") != (result == history.Written):
				return fmt.Errorf("half a transaction is stored: %s", p.String())
			case value != "":
				result = history.Written
			}
		}
		l.History.Resolve(p.Name, result)
	}
	return nil
}

// expire waits until no publish of unknown outcome can still be in progress.
func (l *TopicLoad) expire(ctx context.Context) {
	var newest time.Duration
	for _, p := range l.History.Undecided() {
		newest = max(newest, p.Begin)
	}
	if newest > 0 {
		pause(ctx, newest+2*answerTime-l.History.Now())
	}
}

// messages returns the ids of all messages of a topic, in their order.
func (n *Node) messages(ctx context.Context, topic string) (ids []string, err error) {
	path := adminapi.TopicMessagesPath(&schema.TopicRead{PubSub: "pubsub", Topic: topic, Oldest: true})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := n.admin.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("topic %s at %s: status %d: %s, %w", topic, n.Name, resp.StatusCode, body, err)
	}
	whole := false
	for lines := json.NewDecoder(resp.Body); ; {
		var line schema.TopicLine
		err := lines.Decode(&line)
		switch {
		case errors.Is(err, io.EOF) && whole:
			return ids, nil
		case err != nil:
			return nil, fmt.Errorf("topic %s at %s: %w", topic, n.Name, err)
		case line.Error != nil:
			return nil, fmt.Errorf("topic %s at %s: %s", topic, n.Name, line.Error)
		}
		whole = whole || line.CaughtUp
		if line.Message != nil {
			var e cloudEvent
			if err := json.Unmarshal(line.Message.Data, &e); err != nil {
				return nil, fmt.Errorf("a message of topic %s: %w", topic, err)
			}
			ids = append(ids, strings.Trim(e.Data, `"`))
		}
	}
}
