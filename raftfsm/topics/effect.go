package topics

import (
	"context"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
)

// Effect is the part of a transaction of a state store that concerns topics.
type Effect interface {
	state.Effect
	// Ops returns the operations of the effect. They are for a request to the Raft group gid, which stores the state.
	Ops(gid uint32) ([]command.Op, error)
	// Refused returns the error of a request that the state machine refused at the given key. It returns nil if the
	// effect has no operation that can fail at that key.
	Refused(gid uint32, key string) error
	// Unsettled is called after a request was refused because a message that the request acknowledges is settled, or
	// was handed out again. That message can belong to another effect of the request.
	Unsettled()
	// Applied is called after a request was applied.
	Applied(gid uint32)
}

var _ pubsub.Stager = (*Broker)(nil)

// outboxEvents are the messages that a transaction publishes. They are stored in the Raft group of the transaction's
// state, so one log entry contains the transaction and its messages.
type outboxEvents struct {
	b        *Broker
	topic    string
	messages []pubsub.Message
}

// StagePublish implements pubsub.Stager. The ids of the messages are not compared with the ids of earlier messages, so
// the caller must use new ids.
func (b *Broker) StagePublish(_ context.Context, r pubsub.PublishRequest) (state.Effect, error) {
	if b.isClosed() {
		return nil, errClosed(opPublish)
	}
	if err := checkRequest(&r); err != nil {
		return nil, err
	}
	return &outboxEvents{b, r.Topic, r.Messages}, nil
}

// Effect implements state.Effect.
func (e *outboxEvents) Effect() string { return "events for the topic " + fault.Shorten(e.topic, 128) }

func (e *outboxEvents) part(gid uint32) Topic {
	return Topic{Group: gid, Store: e.b.store, Name: e.topic}
}

// Ops implements Effect.
func (e *outboxEvents) Ops(gid uint32) ([]command.Op, error) {
	return e.b.publishOps(e.part(gid), e.messages, 0), nil
}

// Refused implements Effect.
func (e *outboxEvents) Refused(gid uint32, key string) error {
	if t := e.part(gid); key == t.key(tableFull, "") {
		return errFull(e.topic)
	}
	return nil
}

// Unsettled implements Effect.
func (e *outboxEvents) Unsettled() {}

// Applied implements Effect.
func (e *outboxEvents) Applied(gid uint32) { e.b.declare(e.part(gid)) }
