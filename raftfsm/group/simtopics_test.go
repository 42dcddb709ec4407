package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/history"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/topics"
)

// The topics of a simulation. The subscriber of ordersTopic fails sometimes. The subscriber of parcelsTopic also
// rejects some messages. The group of queueTopic handles one message at a time. Transactions publish to eventsTopic.
const (
	ordersTopic  = "orders"
	parcelsTopic = "parcels"
	deadTopic    = "dead"
	queueTopic   = "queue"
	eventsTopic  = "events"

	topicGroup = "app"
	topicNodes = 2 // number of nodes that subscribe
)

func topicNames() []string {
	return []string{ordersTopic, parcelsTopic, deadTopic, queueTopic, eventsTopic}
}

// topicLoad has clients that publish single messages, bulks, and state transactions with events, and nodes that
// subscribe to all topics. Nodes acknowledge some deliveries with state transactions. Brokers, keepers, groups, logs
// and snapshots are those of the product. history.Topics.Check describes what is checked.
type topicLoad struct {
	s    *sim
	h    *history.Topics
	calm atomic.Bool // subscribers accept everything
	over atomic.Bool // the nodes are to end

	nodes incarnations[*topicNode]
}

func newTopicLoad(s *sim) *topicLoad {
	l := &topicLoad{s: s, h: history.NewTopics(
		history.Subscription{Topic: ordersTopic}, history.Subscription{Topic: parcelsTopic, Dead: deadTopic},
		history.Subscription{Topic: deadTopic}, history.Subscription{Topic: queueTopic},
		history.Subscription{Topic: eventsTopic})}
	l.nodes.s, l.nodes.open = s, l.open
	s.kill = l.nodes.kill
	s.service = &simService{stores: topics.Stores, open: func(o *Options, _ *simAccess) simKeeper {
		k := topics.NewKeeper(topics.Options{Logger: o.Logger})
		o.Topics = k
		return k
	}}
	return l
}

// adapt replaces some blows by kills of nodes, full disks and read-only groups. It also makes the pauses between blows
// longer, so that messages are delivered between them.
func (l *topicLoad) adapt(blows []blow) {
	rnd := rand.New(rand.NewPCG(l.s.seed, 7))
	for i := range blows {
		blows[i].wait *= 3
		switch rnd.IntN(5) {
		case 0:
			blows[i].kind = blowKill
		case 1:
			blows[i].kind = blowFull + rnd.IntN(2)
		}
	}
}

func (l *topicLoad) start(stop <-chan struct{}, work *sync.WaitGroup) {
	l.nodes.startAll(topicNodes)
	for id := range 2 {
		p := &topicPublisher{l: l, id: id, a: l.s.newAccess(id), rnd: rand.New(rand.NewPCG(l.s.seed, uint64(id+20)))}
		p.b = p.a.newBroker()
		work.Go(func() {
			for range 60 {
				select {
				case <-stop:
					_ = p.b.Close()
					return
				case <-time.After(time.Duration(p.rnd.IntN(300)) * time.Millisecond):
					p.n++
					p.publish()
				}
			}
			_ = p.b.Close()
		})
	}
}

// newBroker returns a broker of a node.
func (a *simAccess) newBroker() *topics.Broker {
	return topics.NewBroker(a, "ns/pubsub", topics.BrokerOptions{Window: time.Hour, Backoff: 20 * time.Millisecond,
		Logger: a.s.logger})
}

// topicPublisher publishes one request after another.
type topicPublisher struct {
	l     *topicLoad
	id, n int
	a     *simAccess
	b     *topics.Broker
	rnd   *rand.Rand
}

// key returns a random key. Some keys belong to one publisher, and all publishers share the others.
func (p *topicPublisher) key() string {
	if n := p.rnd.IntN(4); n < 2 {
		return fmt.Sprint("shared-", n)
	}
	return fmt.Sprintf("own-%d-%d", p.id, p.rnd.IntN(2))
}

// publish publishes a request. It repeats a request of unknown outcome with the same ids.
func (p *topicPublisher) publish() {
	made := &history.Publish{Name: fmt.Sprintf("p%d-%04d", p.id, p.n), Topic: ordersTopic}
	kind, size := p.rnd.IntN(5), 1
	switch kind {
	case 0:
		size = 2 + p.rnd.IntN(3) // a bulk
	case 1:
		made.Topic, size = eventsTopic, 1+p.rnd.IntN(3)
	case 2:
		made.Topic = parcelsTopic
	case 3:
		made.Topic = queueTopic
	}
	list := make([]pubsub.Message, size)
	for i := range list {
		m := history.Message{ID: fmt.Sprintf("%s-%d", made.Name, i), Key: p.key()}
		list[i] = pubsub.Message{ID: m.ID, Key: m.Key, Data: []byte(m.ID)}
		if made.Topic == queueTopic {
			m.Key = "all" // the queue delivers all messages in one sequence, whatever their keys are
		}
		made.Messages = append(made.Messages, m)
	}
	made.Begin, made.Result = p.l.h.Now(), history.Unknown
	for try := 0; try < 3 && made.Result == history.Unknown; try++ {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if kind == 1 {
			made.Result = p.transact(ctx, list)
			try = 2 // no retry, because the ids of events are not compared
		} else {
			made.Result = resultOf(nil, p.send(ctx, made.Topic, list))
		}
		if try > 0 && made.Result == history.Refused {
			made.Result = history.Unknown // an earlier request may have been applied
		}
		cancel()
	}
	made.End = p.l.h.Now()
	p.l.h.AddPublish(made)
}

func (p *topicPublisher) send(ctx context.Context, topic string, list []pubsub.Message) error {
	failed, err := p.b.Publish(ctx, pubsub.PublishRequest{Topic: topic, Messages: list})
	if len(failed) > 0 {
		p.l.s.fail("a publish is answered with %v", failed)
	}
	return err
}

// transact publishes messages with a state transaction. Some transactions have a condition that is never true.
func (p *topicPublisher) transact(ctx context.Context, list []pubsub.Message) history.Result {
	e, err := p.b.StagePublish(ctx, pubsub.PublishRequest{Topic: eventsTopic, Messages: list})
	if err != nil {
		return history.Refused
	}
	var ops []command.Op
	for i := range list {
		ops = append(ops, command.Op{Kind: command.OpSet, Store: store, Key: list[i].ID, Value: []byte("1")})
	}
	if p.rnd.IntN(4) == 0 {
		ops = append(ops, command.Op{Kind: command.OpCheck, Cond: command.CondNever, Store: store, Key: "never"})
	}
	res, err := p.a.transact(ctx, ops, e)
	return resultOf(&res, err)
}

// transact executes a state transaction that consists of ops and the effect e, which a topic broker has staged.
func (a *simAccess) transact(ctx context.Context, ops []command.Op, e state.Effect) (kv.Result, error) {
	of := e.(topics.Effect)
	own, err := of.Ops(0)
	if err != nil {
		return kv.Result{}, err
	}
	res, err := a.Write(ctx, 0, &command.Request{Kind: command.KindWrite, Ops: append(own, ops...)})
	if err == nil && res.Outcome == kv.Applied {
		of.Applied(0)
	}
	return res, err
}

// resultOf returns what the client knows after a request with the result res and the error err. res is nil if there is
// no result.
func resultOf(res *kv.Result, err error) history.Result {
	switch {
	case fault.Is(err, fault.ReadOnly), err == nil && res != nil && res.Outcome == kv.Conflict:
		return history.Refused
	case err != nil:
		return history.Unknown
	}
	return history.Written
}

// topicNode is one incarnation of a node with its application, which subscribes to the topics.
type topicNode struct {
	l  *topicLoad
	id int
	a  *simAccess
	b  *topics.Broker
}

// open starts a node.
func (l *topicLoad) open(id int) *topicNode {
	n := &topicNode{l: l, id: id, a: l.s.newAccess(id)}
	n.b = n.a.newBroker()
	for _, topic := range topicNames() {
		l.nodes.tasks.Go(func() { n.subscribe(topic) })
	}
	return n
}

// close implements incarnation.
func (n *topicNode) close(kill bool) {
	if kill {
		close(n.a.dead)
	}
	_ = n.b.Close()
}

// subscribe handles the messages of a topic until the node ends.
func (n *topicNode) subscribe(topic string) {
	request := pubsub.SubscribeRequest{Topic: topic, Group: topicGroup}
	if topic == queueTopic {
		request.Metadata = map[string]string{"concurrency": "1"}
	}
	var s pubsub.Subscription
	for s == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		var err error
		if s, err = n.b.Subscribe(ctx, request); err != nil {
			s = nil
			after(100 * time.Millisecond)
		}
		cancel()
		if n.a.ended() || n.l.over.Load() {
			return
		}
	}
	defer s.Close()
	var handlers sync.WaitGroup
	defer handlers.Wait()
	for {
		list, err := s.Receive(context.Background(), 1+n.a.chance(3))
		if err != nil {
			return // the broker is closed
		}
		for _, some := range sequences(list) {
			handlers.Go(func() {
				for i := range some {
					if !n.handle(s, &some[i]) {
						for j := range some[i+1:] {
							_ = s.Settle(context.Background(), &some[i+1+j], pubsub.Released)
						}
						return
					}
				}
			})
		}
	}
}

// sequences groups deliveries. The deliveries in one group must be handled one after another.
func sequences(list []pubsub.Delivery) (out [][]pubsub.Delivery) {
	at := map[string]int{}
	for i := range list {
		name := list[i].Sequence
		if j, ok := at[name]; ok && name != "" {
			out[j] = append(out[j], list[i])
			continue
		}
		at[name] = len(out)
		out = append(out, list[i:i+1:i+1])
	}
	return out
}

// handle handles one delivery as the application and the delivery of package api/pubsub do. It returns false if the
// message is not acknowledged.
func (n *topicNode) handle(s pubsub.Subscription, d *pubsub.Delivery) bool {
	h := n.l.h
	seen := &history.Delivery{ID: d.ID, Topic: d.Topic, Node: fmt.Sprint("node ", n.id), Begin: h.Now()}
	if n.a.chance(4) == 0 {
		after(time.Duration(n.a.chance(400)) * time.Millisecond)
	}
	outcome, dead := pubsub.Acknowledged, false
	switch what := n.a.chance(12); {
	case n.l.calm.Load() || what > 5:
	case what > 3:
		seen.End = h.Now() // the message may be settled as soon as the transaction is sent
		n.settleIn(d, seen)
		if seen.Reply == history.Again || what == 4 { // after an acknowledgement, a failure must not change anything
			outcome = pubsub.Failed
			dead = seen.Settled && d.Topic == parcelsTopic // the application rejects what it has acknowledged
		}
	case what > 1 && d.Topic == parcelsTopic:
		seen.Reply, dead = history.Rejected, true
	case what < 3:
		seen.Reply, outcome = history.Again, pubsub.Failed
	}
	killed := n.a.ended()
	if seen.End == 0 { // no transaction was sent
		if seen.End = h.Now(); killed {
			seen.Reply = history.Again
		}
	}
	if h.AddDelivery(seen); killed {
		return false
	}
	if dead {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if s.DeadLetter(ctx, d, deadTopic) == nil {
			return true
		}
		outcome = pubsub.Failed
	}
	_ = s.Settle(context.Background(), d, outcome)
	return outcome == pubsub.Acknowledged
}

// settleIn acknowledges a delivery with a transaction. Sometimes the application sends two transactions, of which at
// most one may be applied.
func (n *topicNode) settleIn(d *pubsub.Delivery, seen *history.Delivery) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	effects := make([]state.Effect, 1+n.a.chance(3)/2)
	for i := range effects {
		var err error
		if effects[i], err = n.b.StageAck(ctx, pubsub.AckRequest{Token: d.Token, Group: topicGroup}); err != nil {
			if fault.Is(err, fault.DeliverySettled) {
				seen.Reply = history.Again // the message was settled before, or is delivered again
			}
			return
		}
	}
	applied, refused := 0, 0
	for _, e := range effects {
		switch res, err := n.a.transact(ctx, []command.Op{{Kind: command.OpAppend, Store: store,
			Key: "settled/" + d.Topic + "/" + d.ID + "/", Value: []byte("1")}}, e); {
		case err != nil:
		case res.Outcome == kv.Applied:
			applied++
		default:
			refused++
		}
	}
	if applied > 1 {
		n.l.s.fail("%d transactions have acknowledged message %s of topic %s", applied, d.ID, d.Topic)
	}
	if seen.Settled = applied > 0; refused == len(effects) {
		seen.Reply = history.Again
	}
}

// audit waits until everything is delivered, and compares the topics with the history.
func (l *topicLoad) audit() {
	l.calm.Store(true)
	a := l.s.newAccess(0)
	b := a.newBroker()
	defer func() { _ = b.Close() }()
	s := l.s
	if !s.within(simBound, "after healing, all messages are delivered", func() error {
		after(100 * time.Millisecond)
		if ids := l.h.Missing(); len(ids) > 0 {
			return fmt.Errorf("%d messages are not delivered, such as %v", len(ids), ids[:min(10, len(ids))])
		}
		return nil
	}) {
		return
	}
	after(2 * simAskTimeout) // calls that are late have ended afterwards
	if !s.within(simBound, "after healing, all messages are acknowledged", func() error {
		for _, topic := range topicNames() {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			n, err := b.Lag(ctx, topic, topicGroup)
			cancel()
			if err == nil && n > 0 {
				err = fmt.Errorf("%d messages of topic %s are not acknowledged", n, topic)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}) {
		return
	}
	if s.within(simBound, "after healing, reading", func() error { return l.read(a) }) {
		s.within(simBound, "after healing, equal states", s.equal)
	}
}

// read reads all messages of all topics, and which transactions of unknown outcome were committed.
func (l *topicLoad) read(a *simAccess) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	admin := topics.NewAdmin(a, "ns/pubsub")
	for _, topic := range topicNames() {
		var ids []string
		if err := admin.Read(ctx, topic, topics.Start{}, false, func(e *topics.Entry) error {
			ids = append(ids, e.ID)
			return nil
		}, func() error { return nil }); err != nil {
			return err
		}
		l.h.Holds(topic, ids)
	}
	for _, p := range l.h.Undecided() {
		if p.Topic != eventsTopic {
			continue
		}
		have := 0
		for _, m := range p.Messages {
			values, err := a.Values(ctx, 0, store, []string{m.ID})
			if err != nil {
				return err
			}
			if values[0].Found {
				have++
			}
		}
		switch have {
		case 0:
			l.h.Resolve(p.Name, history.Refused)
		case len(p.Messages):
			l.h.Resolve(p.Name, history.Written)
		default:
			l.s.fail("half a transaction is stored: %s", p.String())
		}
	}
	return nil
}

// end ends the nodes.
func (l *topicLoad) end() {
	l.over.Store(true)
	l.nodes.end()
}

// simulateTopics runs the schedule of a seed with topics. It returns the first broken guarantee, if any.
func simulateTopics(t *testing.T, seed uint64, b simBreak) (simTotals, error) {
	t.Helper()
	s := newSim(seed, b)
	s.logTo(t)
	var l *topicLoad
	synctest.Test(t, func(*testing.T) {
		l = newTopicLoad(s)
		s.play(l)
	})
	s.totals.Schedules, s.totals.Operations, s.totals.Unknown = 1, l.h.Size(), len(l.h.Undecided())
	return s.totals, s.verdict(t, l.h)
}

func TestSimulation_TopicsKeepGuarantees(t *testing.T) {
	playSeedsOf(t, 25, func(seed uint64) (simTotals, error) { return simulateTopics(t, seed, simBreak{}) })
}

func TestSimulation_TopicsFindLostLogEntries(t *testing.T) {
	findsFault(t, 50, func(seed uint64) (simTotals, error) { return simulateTopics(t, seed, simBreak{disk: "log"}) })
}
