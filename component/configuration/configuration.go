// Package configuration defines the contract of a configuration store. Such a store keeps named values for
// applications, and reports when the values change.
//
// The package owns the request and answer types, and the queue of a subscription. It also owns the metrics of stores,
// and the warnings about items that cannot be delivered unchanged. Implementations are in the folders below and must
// pass the suite in configurationtest. The package starts no goroutines.
package configuration

import (
	"context"

	"github.com/quorate/quorate/internal/fault"
)

// largestRead limits the total size in bytes of the items that one read returns. itemCost is added to the size of each
// item and of each metadata pair.
const (
	largestRead = 64 << 20
	itemCost    = 128
)

// Tally adds up the sizes of the items in one read, so that a read from a hostile server cannot exhaust the memory. The
// zero value is empty.
type Tally struct{ size int }

// Add adds an item. It returns fault.TooLarge if the items so far are larger than 64 MiB together (the constant
// largestRead).
func (t *Tally) Add(op string, i *Item) error {
	t.size += itemCost + len(i.Key) + len(i.Value) + len(i.Version)
	for name, value := range i.Metadata {
		t.size += itemCost + len(name) + len(value)
	}
	if t.size <= largestRead {
		return nil
	}
	return &fault.Error{Code: fault.TooLarge, Op: op, Msg: "the configuration items have more than 64 MiB together",
		Hint: "request fewer keys at once"}
}

// Limits of configuration.raft and configuration.in-memory.
const (
	MaxItems            = 10_000    // largest number of items in one store
	MaxItemMetadata     = 64        // largest number of metadata pairs of one item
	MaxKey              = 1024      // largest key, in bytes
	DefaultMaxValueSize = 256 << 10 // largest value in bytes, unless the component sets another limit
)

// VersionAbsent is the version of a change that is made only if the key does not exist.
const VersionAbsent = "0"

// Item is one configuration value. When a subscription delivers an Item that has only a key, this key was deleted.
type Item struct {
	Key      string
	Value    string
	Version  string
	Metadata map[string]string // nil = none; must not be modified
}

// Deleted reports whether an item of a subscription says that its key was deleted.
func (i *Item) Deleted() bool { return i.Version == "" && i.Value == "" && len(i.Metadata) == 0 }

// GetRequest reads items.
type GetRequest struct {
	Keys     []string // empty = all
	Strong   bool     // linearizable read, if the store supports it
	Session  string   // token of an earlier answer; empty = none
	Metadata map[string]string
}

// Found is the answer to a GetRequest. It has the items that exist, sorted by key.
type Found struct {
	Items   []Item
	Session string // token to send with later requests; empty if the store has no sessions
}

// SubscribeRequest is a request to subscribe to the changes of items.
type SubscribeRequest struct {
	Keys     []string // empty = all keys, including keys that are created later
	Initial  bool     // deliver the current items first: Next returns all of them at once, without waiting
	Metadata map[string]string
}

// Subscription delivers changes. Only one goroutine may use it.
type Subscription interface {
	// Next waits for changes until ctx ends. It returns the values of a key in the order of their versions. If a key
	// changes several times between two calls, Next returns only the newest value.
	//
	// After an error the subscription has ended, unless ctx has ended. fault.Overloaded means that too many keys
	// waited and changes were dropped.
	Next(ctx context.Context) ([]Item, error)
	// Overflow returns a context that ends when changes are dropped. It is safe for concurrent use.
	Overflow() context.Context
	// Present returns the keys of the subscription that exist, as far as the subscription knows. It may be called
	// after the subscription has ended. A comparison with a new subscription then shows which keys were deleted.
	Present() []string
	// Close ends the subscription. It is idempotent.
	Close()
}

// Store is implemented by every configuration store. All methods are safe for concurrent use. A method with a parameter
// ctx returns when ctx ends. Errors are *fault.Error with the same codes as those of state.Store.
type Store interface {
	Get(ctx context.Context, r GetRequest) (Found, error)
	// Subscribe starts a subscription. ctx applies only until Subscribe returns. The subscription reports every key
	// that changes after that.
	Subscribe(ctx context.Context, r SubscribeRequest) (Subscription, error)
	// Close ends all subscriptions and waits for the goroutines of the store. It is idempotent.
	Close() error
}

// Change is a change of one item.
type Change struct {
	Item        // Version is the version that the key must have; empty = no condition; see VersionAbsent
	Delete bool // removes the key; deleting an absent key is no error, unless Version is set
}

// WriteRequest changes items, all or none. No key may occur twice.
type WriteRequest struct {
	Changes []Change
	Session string
}

// Written is the answer to a WriteRequest.
type Written struct {
	Versions []string // new versions in the order of the changes; empty for a deleted key
	Session  string
}

// Writer is implemented by stores that can be written.
type Writer interface {
	// Write applies the changes. It returns fault.Conflict with the key if a change requires a version that is not
	// the current one.
	Write(ctx context.Context, r WriteRequest) (Written, error)
}
