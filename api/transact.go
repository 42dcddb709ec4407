package api

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// The names of operations in a transaction. Case matters.
const (
	OperationUpsert = "upsert"
	OperationDelete = "delete"
)

// Operation is one step of a transaction; a delete ignores the value.
type Operation struct {
	Name string // OperationUpsert or OperationDelete
	Item
}

// TransactRequest applies all operations or none.
type TransactRequest struct {
	Store      string
	Operations []Operation
	// StoreMetadata is passed to the store for the transaction as a whole.
	StoreMetadata map[string]string
	// Acks has the tokens of deliveries that the transaction acknowledges. One text may have several tokens, separated
	// by commas.
	Acks []string
	// Header has traceparent and tracestate of the caller, for events; nil = none.
	Header http.Header
	WriteOptions
}

// Transact applies all operations atomically. If operations request different consistency levels, the strictest level
// applies to all of them. A request without operations does nothing. If such a request acknowledges deliveries,
// Transact returns an error.
func (s *State) Transact(ctx context.Context, r TransactRequest) (state.Written, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return state.Written{}, failure
	}
	t := transaction{state: s, inst: inst, op: opTransact, limit: s.limits.Operations,
		storedKey: func(key string) string {
			return inst.StoredKey(s.app.ID, key)
		}}
	return t.run(ctx, r)
}

// transaction is an atomic change of several keys. It serves transactions of the state API, transactions of the actor
// API, and deletes of several keys.
type transaction struct {
	state     *State
	inst      *state.Instance
	op        operation
	limit     int               // maximum number of operations
	actor     *state.ActorEpoch // nil = none
	storedKey func(key string) string
	shown     string // session token of what the store has shown; run sets it for actors
}

func (t *transaction) run(ctx context.Context, r TransactRequest) (state.Written, error) {
	store := state.AbilitiesOf(t.inst.Store).Transactor
	if store == nil {
		return state.Written{}, transactionsNotSupported(t.inst.Name)
	}
	if n, limit := len(r.Operations), t.limit; n > limit {
		return state.Written{}, tooManyOperations(t.inst.Name, n, limit)
	}
	failure := checkRequestID(r.RequestID, t.state.limits.RequestIDSize)
	if failure == nil && len(r.Operations) == 0 {
		failure = t.acknowledge(ctx, &r, &state.TransactRequest{})
	}
	if failure != nil || len(r.Operations) == 0 {
		return state.Written{}, orNil(failure)
	}
	v := t.state.enter(r.Trace, &r.Session)
	request := state.TransactRequest{
		Operations: make([]state.Operation, len(r.Operations)),
		Session:    r.Session,
		RequestID:  r.RequestID,
		Metadata:   r.StoreMetadata,
		Actor:      t.actor,
	}
	for i := range r.Operations {
		at := place{index: i, count: len(r.Operations)}
		if failure := t.convert(&r.Operations[i], r.Metadata, at, &request.Operations[i]); failure != nil {
			return state.Written{}, failure
		}
		request.Consistency = max(request.Consistency, resolve(t.inst, r.Operations[i].Consistency))
	}
	given := append(itemsOf(r.Operations), Item{Metadata: r.StoreMetadata}) // also what t.changes removes
	changes := t.changes(&r, &request)
	if failure = t.acknowledge(ctx, &r, &request); failure == nil {
		request.Locks, failure = t.state.writeLocks(t.inst, &r.WriteOptions, given)
	}
	if failure != nil {
		return state.Written{}, failure
	}
	events, failure := t.publish(ctx, &r, changes, &request)
	if failure != nil {
		return state.Written{}, failure
	}
	if len(request.Operations) == 0 {
		return state.Written{}, nil
	}
	start := t.state.seen.begin()
	written, err := store.Transact(ctx, request)
	events.Done(err)
	t.state.seen.state(t.inst.Name, observedTransact, start, err)
	if err != nil {
		return state.Written{}, t.failed(err, writesOf(request.Operations), r.Operations)
	}
	if len(written.ETags) > len(r.Operations) {
		written.ETags = written.ETags[:len(r.Operations)]
	}
	if t.actor != nil {
		t.shown = v.shown(&written.Proof)
	}
	v.leave(&written.Proof)
	return written, nil
}

func itemsOf(operations []Operation) []Item {
	out := make([]Item, len(operations), len(operations)+1)
	for i := range operations {
		out[i] = operations[i].Item
	}
	return out
}

func writesOf(operations []state.Operation) []state.Write {
	out := make([]state.Write, len(operations))
	for i := range operations {
		out[i] = operations[i].Write
	}
	return out
}

func (t *transaction) convert(o *Operation, over map[string]string, at place, out *state.Operation) *Error {
	switch o.Name {
	case OperationUpsert:
		out.Kind = state.Upsert
		if failure := t.state.convert(keyspace{inst: t.inst}, &o.Item, over, at, &out.Write); failure != nil {
			return failure
		}
	case OperationDelete:
		out.Kind = state.Remove
		if err := state.ValidateKey(o.Key); err != nil {
			return illegalKey(t.inst.Name, at.field("key"), at.prefix(), err)
		}
		out.ETag, out.Concurrency, out.Metadata = o.ETag, o.Concurrency, merge(o.Metadata, over)
	default:
		return t.unknown(o.Name, at)
	}
	out.Key = t.storedKey(o.Key)
	return nil
}

func (t *transaction) unknown(name string, at place) *Error {
	if t.op == opActorTransact {
		return unknownOperation(CodeActorStateSave, at.prefix(), name)
	}
	return unknownOperation(CodeOperationUnknown, at.prefix(), name)
}

func (t *transaction) failed(err error, writes []state.Write, given []Operation) *Error {
	i := concerned(err, writes)
	switch {
	case i < 0:
		return t.op.failed(err, t.inst.Name, "", "")
	case i >= len(given) && fault.Is(err, fault.Conflict): // the outbox has already discarded the events
		return t.outboxLate(err)
	case i >= len(given):
		return t.op.failed(err, t.inst.Name, "", "")
	}
	return t.op.failed(err, t.inst.Name, given[i].Key, itemText(err, t.inst.Name, &given[i].Item))
}
