// Package pubsub defines the contract of a publish/subscribe component. The contract covers topics, messages, consumer
// groups and deliveries. The package owns the request and answer types, the rules for which application may use which
// topic, and a wrapper that records metrics of a broker.
//
// The brokers are in the subfolders and must pass the test suite in pubsubtest. This package starts no goroutines.
package pubsub

import (
	"context"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Limits of the brokers that are built in. The service layer checks them for every broker.
const (
	MaxTopic           = 1024 // bytes of the name of a topic
	MaxGroup           = 512  // bytes of the name of a consumer group
	MaxMessageMetadata = 128  // pairs of metadata of one message
)

// Message is one message of a topic. Data is a CloudEvent in JSON, unless the publisher chose to send raw data.
type Message struct {
	ID          string            // id of the CloudEvent, by which brokers may find duplicates; "" = raw data
	Data        []byte            // never changed after Publish
	ContentType string            // media type of Data
	Metadata    map[string]string // passed to the subscriber; never changed after Publish; nil = none
	Key         string            // messages with the same key keep their order; "" = none
	TTL         time.Duration     // the message expires after this time; 0 = the topic decides
	DeliverAt   time.Time         // the message is not delivered before this time; zero = at once
}

// MessageCost is the memory that a message needs in addition to its texts, in bytes.
const MessageCost = 256

// Size returns how much memory the message needs, in bytes.
func (m *Message) Size() int64 {
	size := MessageCost + len(m.ID) + len(m.Data) + len(m.ContentType) + len(m.Key)
	for name, value := range m.Metadata {
		size += len(name) + len(value) + MessageCost/4
	}
	return int64(size)
}

// PublishRequest publishes messages to one topic, in their order.
type PublishRequest struct {
	Topic    string
	Messages []Message         // at least one
	Metadata map[string]string // metadata of the request; nil = none
}

// Failure is the reason why one message of a request was not published.
type Failure struct {
	Index int // index into PublishRequest.Messages
	Err   error
}

// AllFailed returns one error for a request in which every message has failed. It returns the first error with the code
// fault.Indeterminate, because the message of such an error may have been published. If no error has this code, it
// returns the first error. failures must not be empty.
func AllFailed(failures []Failure) error {
	for _, f := range failures {
		if fault.Is(f.Err, fault.Indeterminate) {
			return f.Err
		}
	}
	return failures[0].Err
}

// SubscribeRequest is a request to join a consumer group of a topic. Every group gets each message, and within a group,
// one member gets the message.
type SubscribeRequest struct {
	Topic    string
	Group    string            // name of the consumer group (consumerID); never empty
	Metadata map[string]string // metadata of the subscription; nil = none
	// Unsettled is how many deliveries the member wants to hold at once, for a batch; 0 = the broker decides.
	Unsettled int
}

// Outcome is the result of a delivery.
type Outcome int

// The outcomes.
const (
	Acknowledged Outcome = iota // the message is handled, and not delivered to this group again
	Failed                      // the message is delivered again later, at a time that the broker chooses
	Released                    // the message is delivered again at once, to any member; not counted as an attempt
)

// String returns the outcome as a label of metrics.
func (o Outcome) String() string {
	switch o {
	case Acknowledged:
		return "acknowledged"
	case Failed:
		return "failed"
	case Released:
		return "released"
	}
	return "unknown"
}

// Delivery is one message that a member of a group has received and not settled yet.
type Delivery struct {
	Message
	Topic string
	// Sequence is not empty if order matters. The receiver handles the deliveries of one sequence one after another, in
	// the order in which Receive returns them. If the receiver does not acknowledge a delivery, it releases the later
	// deliveries of the sequence. A broker sets Sequence to the key of the message. If the group handles one message at
	// a time, Sequence has the same value for all messages.
	Sequence string
	Attempt  int    // number of the attempt; 1 = the first
	Ref      string // identifies the delivery to the broker; opaque
	Token    string // for AckRequest; "" = the broker cannot take part in transactions
}

// Subscription is one member of a consumer group, and receives messages for the group. It is safe for concurrent use.
type Subscription interface {
	// Receive waits for messages until ctx ends. It returns at least one and at most limit messages, in their order, or
	// an error: fault.Timeout when ctx ends, fault.Unavailable after Close. Messages of one sequence come in the same
	// call, or a later one comes only after the earlier ones are settled. A broker limits the number of unsettled
	// deliveries of a subscription. Receive waits while the limit is reached.
	Receive(ctx context.Context, limit int) ([]Delivery, error)
	// Settle reports the outcome of a delivery. A nil error means that the broker has noted the outcome. But a broker
	// may gather acknowledgements for some milliseconds before it stores them; if it crashes within this time, it
	// delivers the messages again. Settle returns fault.NotFound if the delivery was settled already.
	Settle(ctx context.Context, d *Delivery, o Outcome) error
	// DeadLetter moves a message to another topic and acknowledges the delivery. A broker with Abilities.Atomic does
	// both or nothing. Other brokers publish first, so that no message is lost. After an error, the delivery is not
	// settled.
	DeadLetter(ctx context.Context, d *Delivery, topic string) error
	// Close leaves the group and releases the deliveries that are not settled. It is idempotent.
	Close()
}

// Abilities are what a broker can do.
type Abilities struct {
	TTL         bool // messages expire in the broker
	Bulk        bool // a request with several messages is published as a whole or not at all
	Ordered     bool // messages of one key are delivered in order
	Delayed     bool // Message.DeliverAt works
	Deduplicate bool // a second message with the ID of an earlier one is dropped
	Atomic      bool // Subscription.DeadLetter is one step
}

// Stager is implemented by brokers that can take part in transactions of state stores.
type Stager interface {
	// StagePublish returns the effect that publishes messages with a transaction. If the topic has no room for the
	// messages, the transaction fails with fault.Overloaded.
	StagePublish(ctx context.Context, r PublishRequest) (state.Effect, error)
	// StageAck returns the effect that acknowledges a delivery with a transaction. StageAck or the transaction returns
	// fault.DeliverySettled if the token does not belong to a delivery to the group, if the message is settled, or if
	// the message has failed since the delivery. It returns fault.Invalid if the message and the state cannot change in
	// one step.
	StageAck(ctx context.Context, r AckRequest) (state.Effect, error)
}

// AckRequest acknowledges a delivery in a transaction.
type AckRequest struct {
	Token string // what the client has sent as Delivery.Token; not checked
	Group string // consumer group of the application that sends the token
	// Allowed reports whether the application may subscribe to a topic, under its name at the broker. nil = the
	// application may subscribe to all topics.
	Allowed func(topic string) bool
}

// StagerOf returns b as a Stager, or nil if b cannot take part in transactions. Use StagerOf instead of a type
// assertion, which fails if b is wrapped to record metrics.
func StagerOf(b Broker) Stager {
	if c, ok := b.(*counted); ok {
		b = c.Broker
	}
	s, _ := b.(Stager)
	return s
}

// Broker is implemented by every publish/subscribe component. All methods are safe for concurrent use. A method with a
// parameter ctx returns when ctx ends. Errors are *fault.Error with the same codes as those of state.Store. If a topic
// has no room for a message, the code is fault.Overloaded.
type Broker interface {
	// Publish returns nil, nil when all messages are stored as durably as the broker promises. If only some messages
	// were not published, it returns their failures and a nil error. A non-nil error means that no message is known to
	// be published.
	Publish(ctx context.Context, r PublishRequest) ([]Failure, error)
	// Subscribe joins a group. ctx applies only until Subscribe returns. A new group begins with the oldest message
	// that the topic has, unless metadata says otherwise.
	Subscribe(ctx context.Context, r SubscribeRequest) (Subscription, error)
	Abilities() Abilities
	// Close ends all subscriptions and waits for the goroutines of the broker. It is idempotent.
	Close() error
}
