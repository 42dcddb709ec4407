// Package command is the format of one log entry: what a leader proposes and every
// replica applies.
//
// It owns the types below and their versioned binary form. It must never know a clock,
// the network, random numbers, the operating system or raft: the same bytes mean the
// same thing on every node for ever. It has no goroutines.
package command

// Version is the newest form this build writes and the newest it can apply. An entry is
// written in the lowest form that has what it asks for, and a form above the first only
// after every server of the group is known to understand it (see group). An entry of a
// higher version than this halts the replica (see kv); it is never skipped.
//
// Version 1 has KindWrite to KindTick, version 2 also KindRestore and KindFormat.
const Version = 2

// Kind says what one Request asks of the state machine.
type Kind uint8

// The kinds. Numbers are part of the format.
const (
	KindWrite    Kind = 1 // Ops, all or none
	KindRegister Kind = 2 // register Name as an origin; the result carries its number
	KindExpire   Kind = 3 // remove what is due at the entry's stamp, at most Limit items of each sort
	KindTick     Kind = 4 // only move cluster time to the entry's stamp
	KindRestore  Kind = 5 // one step of putting a backup in the place of all data (Restore); alone in its batch
	KindFormat   Kind = 6 // from now on entries may be of version Limit; never lowered
)

// OpKind is the kind of one operation of a write.
type OpKind uint8

// The kinds of operations. Numbers are part of the format.
const (
	OpSet    OpKind = 1
	OpDelete OpKind = 2
)

// Cond is the condition of an operation, checked against the state before the request.
type Cond uint8

// The conditions. Numbers are part of the format.
const (
	CondNone     Cond = 0 // unconditional
	CondRevision Cond = 1 // the key exists, has not expired, and its revision is Op.Revision
	CondAbsent   Cond = 2 // the key does not exist or has expired
	CondNever    Cond = 3 // fails always: the ETag was no revision of this store, so it matches nothing
)

// Batch is one log entry: requests of several callers, each with an outcome of its own.
type Batch struct {
	Stamp    uint64 // proposing leader's cluster time, Unix milliseconds; the machine takes the greater of this and its own
	Requests []Request
}

// Request is the unit of atomicity: all of its operations are applied, or none.
type Request struct {
	Kind   Kind
	ID     RequestID
	Client ClientID // optional id of the caller's own; zero = none
	Name   string   // KindRegister: the origin's name (node id and boot id)
	Limit  uint32   // KindExpire: at most so many items; KindFormat: the version
	Ops    []Op     // KindWrite; of a Chunk: unconditional sets of records, in the order of the backup

	Restore *Restore // KindRestore
}

// RequestID makes a retry harmless. Origin is a number handed out by KindRegister; Seq
// counts from 1 within it and is never used for another request. Done says that the
// origin will not ask again about any Seq <= Done; the machine forgets those results.
// Origin 0 means that the request is not protected and must not be retried.
type RequestID struct {
	Origin uint64
	Seq    uint64
	Done   uint64
}

// ClientID protects retries that a client makes on its own account. Scope separates
// applications (namespace, store and key prefix). The machine keeps the result for
// ClientResultLife of cluster time; the same ID with other operations is refused.
type ClientID struct {
	Scope string
	ID    string
}

// ClientResultLife is how long, in milliseconds of cluster time, the result of a request
// with a ClientID is kept. It is part of the format: every replica must agree.
const ClientResultLife = 10 * 60 * 1000

// Op changes one key.
type Op struct {
	Kind        OpKind
	Cond        Cond
	Revision    uint64 // CondRevision
	Store       string // cluster-wide store identity: namespace "/" component name; no NUL
	Key         string // stored key
	Value       []byte // OpSet
	ContentType string // OpSet; empty = JSON text
	TTL         uint64 // OpSet: milliseconds from the entry's cluster time; 0 = none
	ExpireAt    uint64 // OpSet: absolute cluster time, Unix milliseconds; wins over TTL; 0 = none
}
