package state

import (
	"slices"
	"time"
)

// Instance is an opened state store with the settings of its component file. It is immutable and safe for concurrent
// use.
//
// Store applies the settings DefaultConsistency, DefaultTTL and MaxValueSize itself, and counts calls. The fields with
// these names only display the settings, for example in GET /v1.0/metadata. Use AbilitiesOf to get the optional
// interfaces of Store.
type Instance struct {
	Name      string // metadata.name, the {store} of request paths
	Type      string // spec.type in lower case, such as "state.raft"
	Version   string // spec.version as written, "v1" when it was left out
	Namespace string // namespace of the node; empty = none
	Store     Store
	Monitor   *Monitor // monitors the server with the data; nil = no external server

	KeyPrefix          KeyPrefix
	DefaultConsistency Consistency   // Eventual or Strong, never DefaultConsistency
	DefaultTTL         time.Duration // whole seconds; 0 = values live until deleted
	MaxValueSize       int64         // bytes of one value; 0 = no limit of this component
	ActorStore         bool          // the store has the actor state
	Features           []Feature     // sorted
	Scopes             []string      // app ids that may use the store; empty = all
	Outbox             *Outbox       // nil = transactions publish nothing
	Effects            bool          // transactions can have effects
}

// Outbox configures the outbox of a store. The outbox publishes an event for each value that a transaction sets.
type Outbox struct {
	PubSub, Topic string // component and topic to which the events are published
	// Internal is the publish/subscribe component that has the events until they are published; empty = the runtime
	// chooses one. It is not used if PubSub can take part in the transactions of the store.
	Internal string
}

// VisibleTo reports whether the application app may use the store. For an application that may not use it, the API
// behaves as if the store did not exist.
func (i *Instance) VisibleTo(app string) bool {
	return len(i.Scopes) == 0 || slices.Contains(i.Scopes, app)
}

// StoredKey returns the stored key for a key of the application app. The caller must have validated app with
// ValidateAppID and key with ValidateKey.
func (i *Instance) StoredKey(app, key string) string {
	return i.KeyPrefix.Stored(i.owner(app), key)
}

// StoredPrefix converts a prefix of keys of the application app to a prefix of stored keys. The result is empty only if
// prefix is empty and keyPrefix is "none".
func (i *Instance) StoredPrefix(app, prefix string) string {
	return i.KeyPrefix.Stored(i.owner(app), prefix)
}

// OriginalKey is the inverse of StoredKey: it returns the application's key for a stored key. The second result is
// false if the stored key belongs to another application or to actor state. Listings therefore omit actor state.
func (i *Instance) OriginalKey(app, stored string) (string, bool) {
	return i.KeyPrefix.Original(i.owner(app), stored)
}

func (i *Instance) owner(app string) Owner {
	return Owner{App: app, Namespace: i.Namespace, Store: i.Name}
}
