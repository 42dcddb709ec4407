package loader

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/pubsub"
)

// PubSubFactory makes publish/subscribe brokers of one type.
type PubSubFactory struct {
	// Fields are the metadata fields of this type without those of PubSubFields.
	Fields []component.Field
	// Open opens a broker, as StateFactory.Open does.
	Open func(ctx context.Context, c PubSubConfig) (pubsub.Broker, error)
	// Volatile brokers lose their messages when they are closed.
	Volatile bool
}

// PubSubConfig is the configuration of a publish/subscribe broker.
type PubSubConfig struct {
	Name      string // component name
	Namespace string // namespace of the node; empty = none
	Type      string // in lower case
	Version   string
	Metadata  component.Values // the declared Fields, checked
	Logger    *slog.Logger     // carries the component's name
}

// PubSubFields returns the metadata fields that every publish/subscribe component has.
func PubSubFields() []component.Field {
	scopes := func(text string) error { _, err := pubsub.ParseTopicScopes(text); return err }
	return []component.Field{
		{Name: pubsub.MetadataConsumerID, Check: checkConsumerID},
		{Name: pubsub.MetadataPublishingScopes, Security: true, Check: scopes},
		{Name: pubsub.MetadataSubscriptionScopes, Security: true, Check: scopes},
		{Name: pubsub.MetadataAllowedTopics, Security: true, Check: checkTopics},
		{Name: pubsub.MetadataProtectedTopics, Security: true, Check: checkTopics},
	}
}

// checkTopics returns an error if text is not empty but names no topic, for example ",". Such a text would be read as
// an empty list, which restricts nothing.
func checkTopics(text string) error {
	if text != "" && len(pubsub.ParseTopics(text)) == 0 {
		return errors.New("names no topic")
	}
	return nil
}

func checkConsumerID(text string) error { return pubsub.CheckGroup(text) }

func (p *opening) pubSub(ctx context.Context, u *unit) error {
	if p.carry(u) {
		return nil
	}
	topics, err := topicsOf(u.values)
	if err != nil {
		return u.failed(u.spec.Pos, err)
	}
	broker, err := u.pubsub.Open(ctx, PubSubConfig{
		Name: u.spec.Name, Namespace: p.options.Namespace, Type: u.typ(), Version: u.spec.Version,
		Metadata: u.values, Logger: u.logger(p.options.Logger),
	})
	if err != nil {
		return u.opened(err)
	}
	i := &pubsub.Instance{
		Name: u.spec.Name, Type: u.typ(), Version: u.spec.Version, Namespace: p.options.Namespace,
		Scopes: slices.Clone(u.spec.Scopes), ConsumerID: u.values.Text(pubsub.MetadataConsumerID),
		Topics: topics, Broker: broker,
	}
	if slices.ContainsFunc(u.spec.Metadata, func(i component.Item) bool {
		return strings.Contains(i.Value, "{namespace}")
	}) {
		i.Prefix = p.options.Namespace
	}
	if p.options.PubSubMetrics != nil {
		p.options.PubSubMetrics.Instrument(i)
	}
	p.set.add(u, &closer{name: i.Name, close: broker.Close}, func(s *Set, u *unit) {
		s.pubsubs = append(s.pubsubs, i)
		status := statusOf(u.spec, component.Ready, "")
		status.Capabilities = i.Capabilities()
		s.statuses = append(s.statuses, status)
	})
	return nil
}

// topicsOf reads the fields of PubSubFields about topics.
func topicsOf(v component.Values) (t pubsub.Topics, err error) {
	t.Allowed = pubsub.ParseTopics(v.Text(pubsub.MetadataAllowedTopics))
	t.Protected = pubsub.ParseTopics(v.Text(pubsub.MetadataProtectedTopics))
	if t.Publishing, err = pubsub.ParseTopicScopes(v.Text(pubsub.MetadataPublishingScopes)); err != nil {
		return t, err
	}
	t.Subscribed, err = pubsub.ParseTopicScopes(v.Text(pubsub.MetadataSubscriptionScopes))
	return t, err
}

// PubSub returns the publish/subscribe component with the given name. Case matters.
func (s *Set) PubSub(name string) (*pubsub.Instance, bool) {
	for _, i := range s.pubsubs {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// Subscriptions returns the documents of kind Subscription that apply to this node, in the order of the files.
// Documents of the versions v1alpha1 and v2alpha1 are in the same list.
func (s *Set) Subscriptions() []component.Subscription { return slices.Clone(s.subscriptions) }

// PubSubs returns the publish/subscribe components in the order of their opening.
func (s *Set) PubSubs() []*pubsub.Instance { return slices.Clone(s.pubsubs) }
