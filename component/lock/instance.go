package lock

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/component/state"
)

// Metadata names of every lock store.
const MetadataKeyPrefix = "keyPrefix" // which applications share locks; see state.ParseKeyPrefix

// Instance is one opened lock store with the settings of its component file. It is immutable.
type Instance struct {
	Name      string
	Type      string // in lower case
	Version   string
	Namespace string   // of the node; empty = none
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

// KeyOf returns the key of an application's lock.
func (i *Instance) KeyOf(app, resource string) Key {
	prefix := i.KeyPrefix.Prefix(state.Owner{App: app, Namespace: i.Namespace, Store: i.Name})
	return Key{Prefix: strings.TrimSuffix(prefix, state.Separator), Resource: resource}
}
