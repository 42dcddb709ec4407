package pluggable

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// Names of metadata of messages. Dapr defines the first two names.
const (
	metaTTL       = "ttlInSeconds"
	metaPartition = "partitionKey"
	metaID        = "quorate.id"  // Message.ID
	metaKey       = "quorate.key" // the partition key of a message without metaPartition
)

// broker is a publish/subscribe component. It is safe for concurrent use.
type broker struct {
	link      *link
	greeted   bool
	ttl, bulk bool // features of the first connection

	mu      sync.Mutex
	closed  bool
	members map[*member]bool
}

// OpenPubSub opens a publish/subscribe component. It waits for the socket until the deadline of ctx.
func OpenPubSub(ctx context.Context, o Options) (pubsub.Broker, error) {
	b := &broker{members: map[*member]bool{}}
	var err error
	if b.link, err = openLink(ctx, o, b.greet); err != nil {
		return nil, err
	}
	return b, nil
}

// greet initialises the process of the component. The first call also records the features of the process.
func (b *broker) greet(ctx context.Context, c *session) error {
	if err := c.need(components.PubSub_ServiceDesc.ServiceName); err != nil {
		return err
	}
	client := components.NewPubSubClient(c.conn)
	if _, err := client.Init(ctx, &components.PubSubInitRequest{Metadata: c.link.properties()}); err != nil {
		return c.link.uninitialised(ctx, err)
	}
	out, err := client.Features(ctx, &components.FeaturesRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return c.link.uninitialised(ctx, err)
	}
	if !b.greeted {
		has := func(feature string) bool {
			return slices.ContainsFunc(out.GetFeatures(), func(f string) bool { return strings.EqualFold(f, feature) })
		}
		b.greeted, b.ttl, b.bulk = true, has("MESSAGE_TTL"), has("BULK_PUBSUB")
	}
	return nil
}

// Abilities implements pubsub.Broker. The only ability that it can report is TTL. Dapr's protocol guarantees neither
// the order of messages nor that a bulk request is published as a whole.
func (b *broker) Abilities() pubsub.Abilities { return pubsub.Abilities{TTL: b.ttl} }

// merge combines maps of metadata into a new map, in which later values replace earlier ones. It omits the names metaID
// and metaKey, so that a client cannot forge the id or the key of a message.
func merge(parts ...map[string]string) map[string]string {
	size := 3
	for _, part := range parts {
		size += len(part)
	}
	out := make(map[string]string, size)
	for _, part := range parts {
		for name, value := range part {
			if !strings.EqualFold(name, metaID) && !strings.EqualFold(name, metaKey) {
				out[name] = value
			}
		}
	}
	return out
}

// metadataOf returns the metadata that is sent to the process with a message. It contains the metadata of the request
// and of the message, and the TTL, key and id of the message.
func metadataOf(m *pubsub.Message, request map[string]string) map[string]string {
	out := merge(request, m.Metadata)
	if m.TTL > 0 {
		out[metaTTL] = strconv.FormatInt(int64((m.TTL+time.Second-1)/time.Second), 10)
	}
	if m.Key != "" && out[metaPartition] != m.Key {
		out[metaKey] = m.Key
	}
	if m.ID != "" {
		out[metaID] = m.ID
	}
	return out
}

// checkSize returns fault.TooLarge if a message is too large for the stream of a subscription. Such a message must not
// be published, because it would end every stream on which it is delivered.
func (b *broker) checkSize(op string, m *pubsub.Message) error {
	limit := b.link.options.MaxMessage
	if int64(len(m.Data)) <= limit {
		return nil
	}
	return &fault.Error{Code: fault.TooLarge, Op: op, Hint: "raise --max-body-size",
		Msg: fmt.Sprintf("the event of the message has %d bytes; the limit is %d", len(m.Data), limit)}
}

// Publish implements pubsub.Broker. If the process has the feature BULK_PUBSUB, several messages are sent in one call.
// Otherwise, each message is sent in a call of its own, in order.
func (b *broker) Publish(ctx context.Context, r pubsub.PublishRequest) ([]pubsub.Failure, error) {
	if b.bulk && len(r.Messages) > 1 {
		return b.publishBulk(ctx, &r)
	}
	var failures []pubsub.Failure
	for n := range r.Messages {
		m := &r.Messages[n]
		err := b.checkSize(opPublish, m)
		if err == nil {
			err = b.publish(ctx, r.Topic, m, r.Metadata)
		}
		if err != nil {
			failures = append(failures, pubsub.Failure{Index: n, Err: err})
		}
	}
	if len(failures) == len(r.Messages) {
		return nil, pubsub.AllFailed(failures)
	}
	return failures, nil
}

const opPublish = "pluggable.Publish"

// publish publishes one message without a check of its size.
func (b *broker) publish(ctx context.Context, topic string, m *pubsub.Message, request map[string]string) error {
	failed := b.link.call(ctx, writing, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := components.NewPubSubClient(conn).Publish(ctx, &components.PublishRequest{Data: m.Data,
			PubsubName: b.link.options.Name, Topic: topic, Metadata: metadataOf(m, request),
			ContentType: m.ContentType})
		return err
	})
	if failed != nil {
		return b.link.fault(opPublish, "", failed, writing)
	}
	return nil
}

func (b *broker) publishBulk(ctx context.Context, r *pubsub.PublishRequest) ([]pubsub.Failure, error) {
	const op = "pluggable.BulkPublish"
	request := &components.BulkPublishRequest{PubsubName: b.link.options.Name, Topic: r.Topic,
		Metadata: merge(r.Metadata)}
	reasons := map[int]error{}
	for n := range r.Messages {
		m := &r.Messages[n]
		if err := b.checkSize(op, m); err != nil {
			reasons[n] = err
			continue
		}
		request.Entries = append(request.Entries, &components.BulkMessageEntry{EntryId: strconv.Itoa(n), Event: m.Data,
			ContentType: m.ContentType, Metadata: metadataOf(m, nil)})
	}
	if len(request.Entries) == 0 {
		return nil, reasons[0]
	}
	var out *components.BulkPublishResponse
	failed := b.link.call(ctx, writing, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		out, err = components.NewPubSubClient(conn).BulkPublish(ctx, request)
		return err
	})
	if failed != nil {
		return nil, b.link.fault(op, "", failed, writing)
	}
	for _, f := range out.GetFailedEntries() {
		n, err := strconv.Atoi(f.GetEntryId())
		if err != nil || n < 0 || n >= len(r.Messages) {
			return nil, &fault.Error{Code: fault.Indeterminate, Op: op,
				Msg: b.link.who() + " names a failed entry that the request does not have: " + shorten(f.GetEntryId())}
		}
		reasons[n] = &fault.Error{Code: fault.Unavailable, Op: op,
			Msg: b.link.who() + " did not publish the message: " + b.link.clean(f.GetError())}
	}
	var failures []pubsub.Failure
	for _, n := range slices.Sorted(maps.Keys(reasons)) {
		failures = append(failures, pubsub.Failure{Index: n, Err: reasons[n]})
	}
	if len(failures) == len(r.Messages) {
		return nil, pubsub.AllFailed(failures)
	}
	return failures, nil
}

// Close implements pubsub.Broker.
func (b *broker) Close() error {
	b.mu.Lock()
	b.closed = true
	members := slices.Collect(maps.Keys(b.members))
	b.mu.Unlock()
	var closing sync.WaitGroup
	for _, m := range members {
		closing.Go(m.Close)
	}
	closing.Wait()
	b.link.close()
	return nil
}
