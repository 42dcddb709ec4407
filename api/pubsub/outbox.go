package pubsub

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

var _ api.Topics = (*Service)(nil)

// Outbox prepares the events of a transaction for publishing. It implements api.Topics. How the events are published
// depends on which components can take part in a transaction:
//
//   - Store and broker: The transaction publishes the events itself, atomically.
//   - Only the store: The transaction writes the events to the internal topic of the outbox. A relay of the Subscriber
//     then publishes them.
//   - Not the store: Outbox writes the events to the internal topic before the transaction. The transaction stores a
//     marker for each event. The relay publishes only the events that have a marker.
//
// Outbox returns an error if an internal topic is needed but no component can have it.
func (s *Service) Outbox(ctx context.Context, r *api.OutboxRequest) (out api.Outbox, failure *api.Error) {
	o := r.Store.Outbox
	i, failure := s.outboxTarget(o.PubSub, o.Topic)
	if failure != nil {
		return out, failure
	}
	via, at := i, i.TopicOf(o.Topic)
	if pubsub.StagerOf(i.Broker) == nil || !r.Store.Effects {
		if via = relayed(s.o.Source, s.o.App.ID, r.Store); via == nil {
			return out, outboxFailed(i.Name, "the events of state store "+r.Store.Name+" of type "+r.Store.Type+
				" need an internal topic ("+state.MetadataOutboxInternal+" must name a pubsub.raft)", nil)
		}
		at = via.TopicOf(relayTopic(s.o.App, r.Store))
	}
	if !r.Store.Effects && !slices.Contains(r.Store.Features, state.FeatureETag) {
		return out, outboxFailed(i.Name, "state store "+r.Store.Name+" of type "+r.Store.Type+" has no ETags, so it "+
			"cannot create the keys of an outbox (remove "+state.MetadataOutboxPubSub+", or use another store)", nil)
	}
	if err := pubsub.CheckTopic(at); err != nil {
		return out, outboxFailed(i.Name, "the name of the topic of the outbox "+err.Error(), nil)
	}
	span, ctx := s.span(ctx, r.Header, i.Name, o.Topic)
	messages, failure := s.outboxMessages(i, o, r.Changes, span)
	if failure != nil {
		span.end(failure)
		return out, failure
	}
	start := time.Now()
	request := pubsub.PublishRequest{Topic: at, Messages: messages}
	var err error
	if r.Store.Effects {
		var effect state.Effect
		effect, err = pubsub.StagerOf(via.Broker).StagePublish(ctx, request)
		out = api.Outbox{Effects: []state.Effect{effect}, Ended: func(err error) {
			pubsub.Staged(i.Broker, len(messages), err)
		}}
	} else {
		m := &markers{store: r.Store, app: s.o.App.ID, metadata: r.Metadata}
		out.Operations = m.operations(messages)
		out.Ended = func(err error) {
			if err != nil && !fault.Is(err, fault.Indeterminate) && !fault.Is(err, fault.Timeout) {
				m.discard(ctx, messages)
			}
		}
		if err = mark(r.Store, r.Metadata, messages, s.o.Now()); err == nil {
			err = publishAll(ctx, via.Broker, request)
		}
		if err != nil {
			m.discard(ctx, messages) // the broker may have some of them
		}
	}
	if err != nil {
		failure = outboxFailed(i.Name, textOf(err), err)
		span.end(failure)
		return api.Outbox{}, failure
	}
	ended := out.Ended
	out.Ended = func(err error) {
		ended(err)
		if s.o.Observer != nil {
			for range messages {
				s.o.Observer.Published(i.Name, o.Topic, false, err == nil, time.Since(start))
			}
		}
		if span.span != nil {
			span.span.EndBinding(err)
		}
	}
	return out, nil
}

// publishAll publishes messages, and returns an error unless the broker has accepted all of them.
func publishAll(ctx context.Context, b pubsub.Broker, r pubsub.PublishRequest) error {
	failures, err := b.Publish(ctx, r)
	if err == nil && len(failures) > 0 {
		err = failures[0].Err
	}
	return err
}

// outboxTarget returns the pub/sub component of an outbox. It returns an error if the application may not publish to
// the topic.
func (s *Service) outboxTarget(name, topic string) (*pubsub.Instance, *api.Error) {
	i, ok := s.o.Source.PubSub(name)
	switch {
	case ok && i.VisibleTo(s.o.App.ID):
	case !s.o.Source.Loaded():
		return nil, starting(name)
	default:
		return nil, outboxFailed(name, "pubsub "+api.ShortenName(name)+" is not found (declare it, or correct "+
			state.MetadataOutboxPubSub+" of the state store)", nil)
	}
	if !i.Topics.MayPublish(s.o.App.ID, topic) {
		return nil, forbidden(i.Name, topic, s.o.App.ID)
	}
	return i, nil
}

// outboxMessages makes the events of a transaction, one for each change.
func (s *Service) outboxMessages(i *pubsub.Instance, o *state.Outbox, changes []api.Change, t *trace) (
	[]pubsub.Message, *api.Error) {
	out, now := make([]pubsub.Message, len(changes)), s.o.Now()
	for n := range changes {
		c := &changes[n]
		if text := checkMetadata(c.Metadata); text != "" {
			return nil, outboxFailed(i.Name, text, nil)
		}
		e := envelope{topic: o.Topic, pubsub: i.Name, source: s.o.App.ID, trace: t, now: now}
		m := &out[n]
		var err error
		if m.Data, m.ID, err = e.wrapChange(c); err != nil {
			return nil, outboxFailed(i.Name, "an event cannot be encoded", err)
		}
		m.ContentType, m.Key = contentCloudEvent, c.Metadata[keyPartition]
	}
	return out, nil
}

// wrapChange returns a CloudEvent with a value that a transaction sets, and the id of the event. As in Dapr, the
// metadata of the operation becomes attributes of the event. Metadata cannot set data, data_base64, id, topic and
// pubsubname.
func (e *envelope) wrapChange(c *api.Change) (data []byte, id string, err error) {
	id = outboxPrefix + newID()
	kind := c.ContentType
	if kind == "" {
		kind = contentText
	}
	a := e.attributes(kind)
	value := c.Data
	var text string
	if c.JSON && !isJSON(kind) && json.Unmarshal(value, &text) == nil {
		value = []byte(text) // without quotes
	}
	a.data(kind, value)
	for name, v := range c.Metadata {
		switch name {
		case "data", "data_base64", "id":
		default:
			a.set(name, v)
		}
	}
	a.set("id", id)
	a.set("topic", e.topic)
	a.set("pubsubname", e.pubsub)
	data, err = a.json()
	return data, id, err
}

func isJSON(kind string) bool {
	base, _, _ := strings.Cut(kind, ";")
	return strings.EqualFold(strings.TrimSpace(base), contentJSON)
}

// tokenSeparator separates the two parts of a delivery's token: the name of the component, and the token from the
// broker.
const tokenSeparator = "/"

// Acknowledge implements api.Topics.
func (s *Service) Acknowledge(ctx context.Context, store *state.Instance, tokens []string) ([]state.Effect, error) {
	const op = "pubsub.Acknowledge"
	out := make([]state.Effect, len(tokens))
	for n, text := range tokens {
		name, token, _ := strings.Cut(text, tokenSeparator)
		i, ok := s.o.Source.PubSub(name)
		if !ok || !i.VisibleTo(s.o.App.ID) {
			return nil, &fault.Error{Code: fault.Invalid, Op: op,
				Msg:  "pubsub " + api.ShortenName(name) + " of the token of a delivery is not found",
				Hint: "send the value of Quorate-Ack of the delivery unchanged"}
		}
		stager := pubsub.StagerOf(i.Broker)
		if stager == nil {
			return nil, fault.New(fault.Invalid, op, "state store "+store.Name+" and pubsub "+i.Name+" of type "+i.Type+
				" cannot change in one step (use pubsub.raft)")
		}
		var err error
		out[n], err = stager.StageAck(ctx, pubsub.AckRequest{Token: token, Group: i.Group(s.o.App.ID),
			Allowed: func(topic string) bool {
				return i.Topics.MaySubscribe(s.o.App.ID, strings.TrimPrefix(topic, i.Prefix))
			}})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
