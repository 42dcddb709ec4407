package pluggable

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/signal"
)

const (
	maxDeliveries  = 1000     // unsettled deliveries of one subscription
	maxBytes       = 16 << 20 // bytes of these deliveries; one message may exceed the limit
	maxMessageID   = 1 << 10  // bytes of the id of a delivery, and of a message whose attempts count
	maxAttempts    = 10_000   // failed messages whose attempts a subscription counts
	maxMessageText = 64 << 10 // bytes of the metadata of a message
	maxSeconds     = 20       // bytes of ttlInSeconds

	leaveTime = time.Second // time that a process has to end a stream after the node has closed its side
)

// Streams of messages.
type (
	pullStream = stream[components.PullMessagesRequest, components.PullMessagesResponse]
	pullDuplex = duplex[components.PullMessagesRequest, components.PullMessagesResponse]
	pullReader = reader[components.PullMessagesRequest, components.PullMessagesResponse]
)

// member is a subscription to a topic. It has one stream at a time. When the stream ends, its unsettled deliveries
// become void, and the process sends their messages again on the next stream. A member is safe for concurrent use.
type member struct {
	broker  *broker
	request pubsub.SubscribeRequest
	reader  pullReader
	most    int            // maximum number of unsettled deliveries
	changed *signal.Signal // fired when there are more messages in the queue
	freed   *signal.Signal // fired when deliveries are settled or void
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	closed   bool
	stream   *pullStream // current stream; nil = none
	number   uint64      // number of the last delivery
	queue    []*delivery
	held     map[string]*delivery // unsettled deliveries by Ref, including those in the queue
	bytes    int64                // total size of the deliveries in held
	attempts map[string]int       // number of failed attempts, by the id of the message
}

// delivery is a message that the process has delivered and that is not settled.
type delivery struct {
	pubsub.Delivery
	stream *pullStream
	id     string // id that the process has given the message
	size   int64  // size of the message in bytes
}

// Subscribe implements pubsub.Broker. Dapr's protocol has no field for the consumer group. Subscribe therefore sends
// the group as the metadata consumerID of the topic.
func (b *broker) Subscribe(ctx context.Context, r pubsub.SubscribeRequest) (pubsub.Subscription, error) {
	m := newMember(b, r)
	first, err := m.reader.open(ctx)
	if err != nil {
		m.end()
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		m.end()
		first.close()
		return nil, errClosed("pluggable.Subscribe")
	}
	b.members[m] = true
	m.running.Go(func() { m.reader.run(first) })
	return m, nil
}

func newMember(b *broker, r pubsub.SubscribeRequest) *member {
	m := &member{broker: b, request: r, most: min(max(maxEvents, r.Unsettled), maxDeliveries), changed: signal.New(),
		freed: signal.New(), held: map[string]*delivery{}, attempts: map[string]int{}}
	m.life, m.end = context.WithCancel(context.Background())
	m.reader = pullReader{consumer: m, link: b.link, op: "pluggable.PullMessages", what: "messages",
		log: b.link.options.Logger.With("topic", r.Topic), life: m.life, closing: m.life.Done()}
	return m
}

// begin implements consumer.
func (m *member) begin(ctx context.Context, conn grpc.ClientConnInterface) (pullDuplex, error) {
	client, err := components.NewPubSubClient(conn).PullMessages(ctx)
	if err != nil {
		return nil, err
	}
	meta := map[string]string{}
	for name, value := range m.request.Metadata {
		if !strings.EqualFold(name, pubsub.MetadataConsumerID) { // the pair may name the group of another application
			meta[name] = value
		}
	}
	meta[pubsub.MetadataConsumerID] = m.request.Group
	return client, client.Send(&components.PullMessagesRequest{Topic: &components.Topic{Name: m.request.Topic,
		Metadata: meta}})
}

// ready implements consumer. It waits until there is room for another message. The unsettled messages may exceed
// maxBytes by one message, because the size of a message is not known in advance.
func (m *member) ready(s *pullStream) error {
	for {
		freed := m.freed.Wait()
		m.mu.Lock()
		m.stream = s
		free := len(m.held) < m.most && m.bytes < maxBytes
		m.mu.Unlock()
		if free {
			return s.Context().Err()
		}
		select {
		case <-freed:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// accept implements consumer. It puts a message into the queue. It returns an error, which ends the stream, if the id
// of the message is missing, too long or already in use. Such a message could not be acknowledged.
func (m *member) accept(s *pullStream, in *components.PullMessagesResponse) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, problem := in.GetId(), ""
	switch {
	case id == "":
		problem = "without an id"
	case len(id) > maxMessageID:
		problem = fmt.Sprintf("whose id has more than %d bytes", maxMessageID)
	case !s.begin(id):
		problem = "with the id of a message that is not acknowledged"
	}
	if problem != "" {
		return fault.New(fault.Corrupt, m.reader.op, m.reader.link.who()+" sent a message "+problem)
	}
	message, notice := messageOf(in)
	if notice != "" {
		m.reader.log.Warn("a message is delivered without its metadata", "id", shorten(id), "reason", notice)
	}
	m.number++
	d := &delivery{stream: s, id: id, size: message.Size(), Delivery: pubsub.Delivery{Topic: m.request.Topic,
		Ref: strconv.FormatUint(m.number, 10), Message: message}}
	d.Attempt = m.attempts[d.name()] + 1
	m.held[d.Ref] = d
	m.bytes += d.size
	m.queue = append(m.queue, d)
	m.changed.Fire()
	return nil
}

// name returns an id that stays the same when the message is delivered again: the id of the CloudEvent or, if there is
// none, the id from the process. It returns "" if the id is longer than maxMessageID.
func (d *delivery) name() string {
	name := cmp.Or(d.ID, d.id)
	if len(name) > maxMessageID {
		return ""
	}
	return name
}

// messageOf returns the message of a delivery. It leaves out the metadata quorate.id and quorate.key, which the node
// adds when it publishes a message. If the remaining metadata exceed a limit, the message gets no metadata, and notice
// gives the reason. ttlInSeconds does not count towards the limits.
func messageOf(in *components.PullMessagesResponse) (out pubsub.Message, notice string) {
	meta := in.GetMetadata()
	out = pubsub.Message{Data: in.GetData(), ContentType: in.GetContentType(), ID: meta[metaID], Key: meta[metaKey]}
	if out.Key == "" {
		out.Key = meta[metaPartition]
	}
	delete(meta, metaID)
	delete(meta, metaKey)
	pairs, size := 0, 0
	for name, value := range meta {
		if name != metaTTL || len(value) > maxSeconds {
			pairs++
			size += len(name) + len(value)
		}
	}
	switch {
	case pairs > pubsub.MaxMessageMetadata:
		notice = fmt.Sprintf("it has %d pairs of metadata; the limit is %d", pairs, pubsub.MaxMessageMetadata)
	case size > maxMessageText:
		notice = fmt.Sprintf("its metadata has %d bytes; the limit is %d", size, maxMessageText)
	case len(meta) > 0:
		out.Metadata = meta
	}
	return out, notice
}

// ended implements consumer. It makes all unsettled deliveries void, because they belong to the stream that has ended.
func (m *member) ended(*pullStream) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stream, m.queue = nil, nil
	for _, d := range m.held {
		m.drop(d)
	}
	return m.closed
}

// drop removes a delivery that is settled or void. The caller holds m.mu.
func (m *member) drop(d *delivery) {
	delete(m.held, d.Ref)
	m.bytes -= d.size
	m.freed.Fire()
}

// Receive implements pubsub.Subscription.
func (m *member) Receive(ctx context.Context, limit int) ([]pubsub.Delivery, error) {
	const op = "pluggable.Receive"
	for {
		changed := m.changed.Wait()
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return nil, errClosed(op)
		}
		n := min(limit, len(m.queue))
		out := make([]pubsub.Delivery, n)
		for i, d := range m.queue[:n] {
			out[i] = d.Delivery
		}
		m.queue = m.queue[n:]
		m.mu.Unlock()
		if n > 0 {
			return out, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, &fault.Error{Code: fault.Timeout, Op: op, Err: ctx.Err(), Msg: "no message has come"}
		}
	}
}

// take removes a delivery from the unsettled deliveries. If the outcome is Failed, take counts the attempt. It returns
// fault.NotFound if the delivery was settled, or if its stream has ended.
func (m *member) take(ref string, o pubsub.Outcome) (*delivery, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.held[ref]
	if d == nil {
		return nil, fault.New(fault.NotFound, "pluggable.Settle", "the delivery is settled, or its stream has ended")
	}
	m.drop(d)
	switch name := d.name(); {
	case name == "":
	case o == pubsub.Acknowledged:
		delete(m.attempts, name)
	case o == pubsub.Failed:
		if len(m.attempts) >= maxAttempts {
			clear(m.attempts) // the counts are only informative
		}
		m.attempts[name] = d.Attempt
	}
	return d, nil
}

// Settle implements pubsub.Subscription. For every outcome except Acknowledged, the process decides when it delivers
// the message again.
func (m *member) Settle(_ context.Context, d *pubsub.Delivery, o pubsub.Outcome) error {
	held, err := m.take(d.Ref, o)
	if err != nil {
		return err
	}
	ack := &components.PullMessagesRequest{AckMessageId: held.id}
	if o != pubsub.Acknowledged {
		ack.AckError = &components.AckMessageError{Message: "the message was " + o.String()}
	}
	if err := held.stream.acknowledge(held.id, ack); err != nil {
		return &fault.Error{Code: fault.Unavailable, Op: "pluggable.Settle", Err: err,
			Msg: m.reader.link.who() + " has ended the stream; it delivers the message again"}
	}
	return nil
}

// DeadLetter implements pubsub.Subscription. It publishes the message to the given topic, and then acknowledges the
// delivery. It does not check the size, because a message that was received is small enough.
func (m *member) DeadLetter(ctx context.Context, d *pubsub.Delivery, topic string) error {
	m.mu.Lock()
	held := m.held[d.Ref]
	m.mu.Unlock()
	if held == nil {
		return fault.New(fault.NotFound, "pluggable.DeadLetter", "the delivery is settled, or its stream has ended")
	}
	if err := m.broker.publish(ctx, topic, &held.Message, nil); err != nil {
		return err
	}
	return m.Settle(ctx, d, pubsub.Acknowledged)
}

// Close implements pubsub.Subscription. It closes the node's side of the stream, so that the process still reads all
// acknowledgements. It waits up to leaveTime for the process to end the stream, and then cancels the stream. Messages
// that were not settled are delivered again.
func (m *member) Close() {
	m.mu.Lock()
	m.closed = true
	s := m.stream
	m.mu.Unlock()
	m.changed.Fire()
	if s != nil {
		defer time.AfterFunc(leaveTime, m.end).Stop()
		s.closeSend()
	} else {
		m.end()
	}
	m.running.Wait()
	m.end()
	m.broker.mu.Lock()
	defer m.broker.mu.Unlock()
	delete(m.broker.members, m)
}
