// Package command defines the format of log entries. An entry is a batch of requests. A leader proposes entries, and
// every replica applies them to its state machine. The package owns the types below and their versioned binary form.
//
// Decoding depends on nothing except the bytes, so an entry has the same meaning on every node. The package has no
// goroutines.
package command

// Version is the newest format version that this build writes and applies. An entry has the lowest version that can
// represent its requests.
//
// Before a leader uses a version above 1, every server of the group must have reported that it can read that version
// (see package group). A replica halts at an entry of an unknown version (see package kv).
const Version = 1

// Kind is what a Request does.
type Kind uint8

// The kinds. Numbers are part of the format.
const (
	KindWrite    Kind = 1 // Ops, all or none
	KindRegister Kind = 2 // register Name as an origin; the result carries its number
	KindExpire   Kind = 3 // remove what is due at the entry's stamp, at most Limit items of each sort
	KindTick     Kind = 4 // only move cluster time to the entry's stamp
	// KindRestore is one step of a restore, which replaces all data with a backup (see Restore). It must be the only
	// request in its batch.
	KindRestore Kind = 5
	KindFormat  Kind = 6 // allow entries of versions up to Limit from now on; the allowed version never decreases
	KindWatch   Kind = 7 // keep a history of the changes of a prefix (Watch); the result has the floor of the history
)

// OpKind is the kind of one operation of a write.
type OpKind uint8

// The kinds of operations. Numbers are part of the format.
const (
	OpSet    OpKind = 1
	OpDelete OpKind = 2
	OpCheck  OpKind = 3 // changes nothing; the write fails unless the condition holds
	// OpAppend stores a value under a new key. The new key is Op.Key, followed by the revision of the operation (8
	// bytes, big-endian). Revisions increase, so keys with the same Op.Key sort in the order in which they were
	// appended. The stored value is the cluster time of the entry (8 bytes, big-endian), followed by Op.Value.
	OpAppend OpKind = 4
)

// Cond is the condition of an operation. The state machine checks the condition against the state before the request is
// applied.
type Cond uint8

// The conditions. Numbers are part of the format.
const (
	CondNone     Cond = 0 // unconditional
	CondRevision Cond = 1 // the key exists, has not expired, and its revision is Op.Revision
	CondAbsent   Cond = 2 // the key does not exist or has expired
	// CondNever never holds. It stands for an ETag that cannot be a revision of this store.
	CondNever Cond = 3
)

// Batch is one log entry: requests of several callers, each with its own outcome.
type Batch struct {
	// Stamp is the proposing leader's cluster time in Unix milliseconds. A replica takes the greater of Stamp and
	// its own cluster time.
	Stamp    uint64
	Requests []Request
}

// Request is the unit of atomicity: all of its operations are applied, or none.
type Request struct {
	Kind   Kind
	ID     RequestID
	Client ClientID // optional; zero = none
	Name   string   // KindRegister: the origin's name; every registration of package raftfsm has a name of its own
	Limit  uint32   // KindExpire: maximum number of items; KindFormat: the version
	Ops    []Op     // KindWrite; StepChunk: unconditional sets of records, in the order of the backup

	Restore *Restore // KindRestore
	Watch   *Watch   // KindWatch
}

// RequestID identifies a request of a registered origin. The state machine applies requests with the same RequestID
// only once, so the origin can safely retry a request.
//
//   - Origin is the number that the origin got from KindRegister. It is 0 for a request that is never retried.
//   - Seq numbers the requests of an origin, from 1.
//   - Done promises that the origin no longer retries requests with a Seq of at most Done. The state machine deletes
//     the results of these requests.
type RequestID struct {
	Origin uint64
	Seq    uint64
	Done   uint64
}

// ClientID identifies a write of a client. If the client retries the write with the same ClientID, the state machine
// applies it only once. Scope separates applications; it consists of namespace, store and key prefix.
//
// The state machine keeps the result of the write for ClientResultLife of cluster time, or until the group has a
// million newer results. As long as it has the result, it rejects a different write with the same ClientID.
type ClientID struct {
	Scope string
	ID    string
}

// ClientResultLife is how long the result of a request with a ClientID is stored, in milliseconds of cluster time.
// It is part of the format: every replica must use the same value.
const ClientResultLife = 10 * 60 * 1000

// Op is an operation on one key. It changes or checks the key.
type Op struct {
	Kind        OpKind
	Cond        Cond
	Revision    uint64 // CondRevision
	Store       string // cluster-wide store identity: namespace "/" component name; no NUL
	Key         string // stored key; OpAppend: its prefix
	Value       []byte // OpSet, OpAppend
	ContentType string // OpSet, OpAppend; empty = JSON text
	TTL         uint64 // OpSet, OpAppend: milliseconds from the entry's cluster time; 0 = none
	ExpireAt    uint64 // OpSet, OpAppend: absolute cluster time, Unix milliseconds; wins over TTL; 0 = none
}

// Stores reports whether o stores a value.
func (o *Op) Stores() bool { return o.Kind == OpSet || o.Kind == OpAppend }
