// Package state is the contract of a state store: what every implementation offers
// and what the API service asks of it.
//
// It owns the request and answer types, the key prefix strategies and the
// instrumentation that wraps a store. It must never know HTTP, raft or a particular
// store. Implementations live in folders below and pass the suite in statetest.
// A Store is safe for concurrent use; this package starts no goroutines.
package state

import (
	"context"
	"time"
)

// Consistency is the level a caller asks for.
type Consistency uint8

// The levels. DefaultConsistency means that the caller said nothing: the store's own
// default applies (eventual, unless its component says otherwise).
const (
	DefaultConsistency Consistency = iota
	Eventual
	Strong
)

// Concurrency is the caller's wish for a write.
type Concurrency uint8

// The modes. A write with an ETag is conditional in every mode. FirstWrite without an
// ETag makes a Set create-only and leaves a Delete unconditional.
const (
	LastWrite Concurrency = iota
	FirstWrite
)

// Level names what an answer is worth. See docs/consistency.md.
type Level string

// The levels an answer can be given at.
const (
	Linearizable Level = "linearizable" // as if read at one instant between call and return
	SessionLevel Level = "session"      // own writes seen, never backward
	Bounded      Level = "bounded"      // no older than the bound that was asked for
	Stale        Level = "stale"        // no promise
)

// Proof tells at which level an answer was given. The zero value promises nothing.
type Proof struct {
	Level   Level
	Age     time.Duration // upper bound of the answer's age, for eventual reads; negative = unknown
	Session string        // token to send with later requests; empty if the store has no sessions
}

// ReadOptions say how a read may be served.
type ReadOptions struct {
	Consistency  Consistency
	Session      string            // token of an earlier answer; empty = none
	MaxStaleness time.Duration     // bound on the age of an eventual read; 0 = none
	Metadata     map[string]string // store specific; nil = none
}

// GetRequest reads one key.
type GetRequest struct {
	Key string // stored key, prefix included
	ReadOptions
}

// Item is one stored value. ETag is empty if, and only if, the key does not exist (or has expired).
type Item struct {
	Key         string
	Value       []byte    // exactly the bytes that were saved; the caller must not modify them
	ContentType string    // empty = JSON text
	ETag        string    // opaque
	Expires     time.Time // zero = never
	Err         error     // only inside bulk answers: this key could not be read
	Proof
}

// Found reports whether the key exists.
func (i Item) Found() bool { return i.ETag != "" }

// Write is one conditional change of one key.
type Write struct {
	Key         string // stored key, prefix included
	Value       []byte // kept byte for byte; ignored for a delete. The store may keep the slice
	ContentType string // empty = JSON text
	ETag        string // empty = no condition
	Concurrency Concurrency
	TTL         TTL
	Metadata    map[string]string
}

// TTL is the life time of a written value.
type TTL struct {
	Set     bool      // false: the store's default applies (none, unless configured)
	Seconds int64     // > 0: expires so many seconds after the write; 0 or less with Set: never expires
	At      time.Time // if not zero: expires at this instant, whatever Seconds says
}

// SetRequest writes one or several items: all or none where the store offers transactions.
// Conditions are checked against the state before the request; then items are applied in
// order, so the last of several writes to one key wins.
type SetRequest struct {
	Items       []Write
	Consistency Consistency
	Session     string
	RequestID   string // client's own id for exactly-once retries; empty = none
}

// DeleteRequest deletes one key. Deleting an absent key without an ETag is no error.
type DeleteRequest struct {
	Key         string
	ETag        string
	Concurrency Concurrency
	Consistency Consistency
	Session     string
	RequestID   string
	Metadata    map[string]string
}

// OpKind is the kind of one operation of a transaction.
type OpKind uint8

// The kinds.
const (
	Upsert OpKind = iota
	Remove
)

// Operation is one step of a transaction.
type Operation struct {
	Kind OpKind
	Write
}

// TransactRequest applies all operations or none. Ordering rules as for SetRequest.
type TransactRequest struct {
	Operations  []Operation
	Consistency Consistency
	Session     string
	RequestID   string
	Metadata    map[string]string
}

// Written is the outcome of a write. ETags has one element per item or operation, in
// request order, empty for deletes; it is nil when the store acknowledged before it
// knew the outcome (eventual consistency).
type Written struct {
	ETags []string
	Proof
}

// Store is what every state store offers. All methods are safe for concurrent use and
// honour ctx. Errors are *fault.Error:
//
//	conflict       an ETag or create-only condition failed; Key names the key; nothing was changed
//	invalid        the request cannot be served by this store
//	too_large      a limit of this store; Msg names it
//	unavailable    not done: no quorum, closing
//	read_only      not done: values are refused for now, because the disk is nearly full
//	overloaded     not done: too much is waiting already
//	timeout        not done in time
//	indeterminate  may have been done
type Store interface {
	// Get reads one key. An absent key is an Item for which Found is false, not an error.
	Get(ctx context.Context, r GetRequest) (Item, error)
	// Set writes items.
	Set(ctx context.Context, r SetRequest) (Written, error)
	// Delete removes a key.
	Delete(ctx context.Context, r DeleteRequest) (Written, error)
	// Close releases what the store holds and waits for its goroutines. It is idempotent.
	Close() error
}

// Transactor is the optional ability to apply several operations atomically. A store
// that has it also makes a Set of several items atomic.
type Transactor interface {
	Transact(ctx context.Context, r TransactRequest) (Written, error)
}

// BulkGetRequest reads several keys.
type BulkGetRequest struct {
	Keys        []string // stored keys; duplicates are allowed
	Parallelism int      // upper bound of concurrent reads; 0 or less = the store's choice
	ReadOptions
}

// BulkGetter is the optional ability to read many keys in one call. Items come in
// request order, duplicates repeated; a key that cannot be read carries Err.
type BulkGetter interface {
	BulkGet(ctx context.Context, r BulkGetRequest) ([]Item, error)
}

// ListRequest pages through the stored keys that start with Prefix, in byte order.
type ListRequest struct {
	Prefix string // stored key prefix, never empty for an application's own listing
	After  string // stored key to continue after; empty = from the start
	Limit  int    // at most so many keys; the store may give fewer
	ReadOptions
}

// Page is one page of a listing. Items carry Key, ETag, Expires, not necessarily Value.
type Page struct {
	Items []Item
	More  bool // there may be keys after the last one
	Proof
}

// Lister is the optional ability to list keys in order.
type Lister interface {
	List(ctx context.Context, r ListRequest) (Page, error)
}

// Feature is a capability as GET /v1.0/metadata names it.
type Feature string

// The features.
const (
	FeatureETag          Feature = "ETAG"
	FeatureTransactional Feature = "TRANSACTIONAL"
	FeatureTTL           Feature = "TTL"
)

// Featurer is implemented by stores that can tell their capabilities.
type Featurer interface {
	Features() []Feature
}
