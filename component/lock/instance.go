package lock

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/component/state"
)

// MetadataKeyPrefix is the name of the metadata field that sets the key prefix of a lock store. Applications with the
// same key prefix share locks (see state.ParseKeyPrefix).
const MetadataKeyPrefix = "keyPrefix"

// Instance is one opened lock store with the settings of its component file. It is immutable.
type Instance struct {
	Name      string
	Type      string // in lower case
	Version   string
	Namespace string   // namespace of the node; empty = none
	Scopes    []string // app ids that may use the store; empty = all
	KeyPrefix state.KeyPrefix
	// StateStore is the state store whose writes can check tokens of these locks; empty = none.
	StateStore string
	Store      Store
}

// VisibleTo reports whether the application may use the store.
func (i *Instance) VisibleTo(app string) bool {
	return len(i.Scopes) == 0 || slices.Contains(i.Scopes, app)
}

// KeyOf returns the key of the lock that the application app uses for resource.
func (i *Instance) KeyOf(app, resource string) Key {
	prefix := i.KeyPrefix.Prefix(state.Owner{App: app, Namespace: i.Namespace, Store: i.Name})
	return Key{Prefix: strings.TrimSuffix(prefix, state.Separator), Resource: resource}
}
