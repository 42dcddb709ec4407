package pubsub

import (
	"cmp"
	"slices"
)

// Metadata names of every publish/subscribe component.
const (
	MetadataConsumerID         = "consumerID"
	MetadataPublishingScopes   = "publishingScopes"
	MetadataSubscriptionScopes = "subscriptionScopes"
	MetadataAllowedTopics      = "allowedTopics"
	MetadataProtectedTopics    = "protectedTopics"
)

// Instance is one opened broker with the settings of its component file. It is immutable.
type Instance struct {
	Name      string
	Type      string // component type, in lower case
	Version   string
	Namespace string   // namespace of the node; empty = none
	Scopes    []string // app ids that may use the component; empty = all
	// ConsumerID is the consumer group of all applications; empty = the group of each application is its id.
	ConsumerID string
	// Prefix is put in front of the names of topics at the broker.
	Prefix string
	Topics Topics
	Broker Broker
}

// VisibleTo reports whether the application may use the component.
func (i *Instance) VisibleTo(app string) bool {
	return len(i.Scopes) == 0 || slices.Contains(i.Scopes, app)
}

// Group returns the consumer group of an application.
func (i *Instance) Group(app string) string { return cmp.Or(i.ConsumerID, app) }

// TopicOf returns the name that a topic has at the broker.
func (i *Instance) TopicOf(topic string) string { return i.Prefix + topic }

// Capabilities returns the abilities of the broker, under the names that Dapr uses. It omits abilities that have no
// name in Dapr.
func (i *Instance) Capabilities() (out []string) {
	a := i.Broker.Abilities()
	if a.Bulk {
		out = append(out, "BULK_PUBSUB")
	}
	if a.TTL {
		out = append(out, "MESSAGE_TTL")
	}
	return out
}
