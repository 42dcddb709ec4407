package state

import (
	"slices"
	"time"
)

// Instance is one opened state store as the service layer sees it: the store, and what
// its component file says about it. The loader makes it; it is immutable afterwards and
// safe for concurrent use.
//
// Store is already wrapped: it applies DefaultConsistency, DefaultTTL and MaxValueSize
// (see WithSettings) and counts its calls (see Metrics.Instrument). The fields repeat
// them for callers that want to know beforehand, such as GET /v1.0/metadata. Optional
// abilities are found by assertion on Store, as for every store.
type Instance struct {
	Name      string // metadata.name, the {store} of request paths
	Type      string // spec.type in lower case, such as "state.raft"
	Version   string // spec.version as written, "v1" when it was left out
	Namespace string // of the node that opened it; empty = none
	Store     Store

	KeyPrefix          KeyPrefix
	DefaultConsistency Consistency   // Eventual or Strong, never DefaultConsistency
	DefaultTTL         time.Duration // whole seconds; 0 = values live until deleted
	MaxValueSize       int64         // bytes of one value; 0 = no limit of this component
	ActorStore         bool          // carries the actor state
	Features           []Feature     // sorted
	Scopes             []string      // app ids that may use the store; empty = all
}

// VisibleTo reports whether app may use the store. On a node that serves several
// applications a store can be meant for some of them only; to the others it does not exist.
func (i *Instance) VisibleTo(app string) bool {
	return len(i.Scopes) == 0 || slices.Contains(i.Scopes, app)
}

// StoredKey returns the key under which app's key lies in the store. Validate app with
// ValidateAppID and key with ValidateKey first.
func (i *Instance) StoredKey(app, key string) string {
	return i.KeyPrefix.Stored(i.owner(app), key)
}

// StoredPrefix returns what every stored key of app begins with whose own key begins
// with prefix. It is empty only for an empty prefix under keyPrefix "none".
func (i *Instance) StoredPrefix(app, prefix string) string {
	return i.KeyPrefix.Stored(i.owner(app), prefix)
}

// OriginalKey is the inverse of StoredKey. It answers false for a stored key that is
// not one of app's own: another application's, or actor state, which lies below the
// same prefix. A listing leaves those out.
func (i *Instance) OriginalKey(app, stored string) (string, bool) {
	return i.KeyPrefix.Original(i.owner(app), stored)
}

func (i *Instance) owner(app string) Owner {
	return Owner{App: app, Namespace: i.Namespace, Store: i.Name}
}
