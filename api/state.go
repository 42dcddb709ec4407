package api

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// StateStores returns the opened state stores. The set changes while components are being loaded. Implementations are
// safe for concurrent use.
type StateStores interface {
	// StateStore returns the store with the given component name.
	StateStore(name string) (*state.Instance, bool)
	// StateStores returns all stores, in the order of their names.
	StateStores() []*state.Instance
	// ActorStore returns the actor state store.
	ActorStore() (*state.Instance, bool)
	// Loaded reports whether all components have been opened. Until then, a missing store may still appear.
	Loaded() bool
}

// State serves one application's state. It is immutable and safe for concurrent use. All errors are *Error.
type State struct {
	app    App
	stores StateStores
	limits Limits

	actors   ActorHosts // nil = this node hosts no actors
	callee   App        // the application whose sessions the requests use
	locks    LockStores // lock stores whose tokens writes can carry; nil = none
	topics   Topics     // for events and acknowledgements of transactions; nil = none
	sessions *Sessions
	watches  *Watches
	seen     observed
}

// Remember sets the sessions that the service uses for app, and returns s. With sessions, app and the applications
// that it calls can read each other's writes. Remember must be called before the first request.
func (s *State) Remember(app App, sessions *Sessions) *State {
	s.callee, s.sessions = app, sessions
	return s
}

// visit is one request to a store. trace is its trace id, requested is the session token that the client sent, and
// begun is the session token that the store gets.
type visit struct {
	s                       *State
	trace, requested, begun string
}

// enter begins a request. It merges the session of the application for the trace into *token, the session token of the
// request.
func (s *State) enter(trace string, token *string) visit {
	v := visit{s: s, trace: trace, requested: *token}
	*token = s.sessions.Begin(s.callee, trace, *token)
	v.begun = *token
	return v
}

// shown returns the session token for what the store has shown in its answer (see Sessions.Shown). p is the proof in
// the answer.
func (v visit) shown(p *state.Proof) string { return v.s.sessions.Shown(v.begun, p.Session) }

// leave records the session token that the store has returned in p. It then replaces this token in p with the token for
// the client.
func (v visit) leave(p *state.Proof) {
	p.Session = v.s.sessions.End(v.s.callee, v.trace, v.requested, v.begun, p.Session)
}

// NewState returns the state service of app.
func NewState(app App, stores StateStores, limits Limits) *State {
	return &State{app: app, stores: stores, limits: limits.WithDefaults(), watches: NewWatches()}
}

// ReadOptions are the options of a read.
type ReadOptions struct {
	Consistency state.Consistency
	Session     string            // token of an earlier answer; empty = none
	Trace       string            // trace id of the request; empty = none
	Metadata    map[string]string // maxStaleness, and metadata for the store; nil = none
	MaxValue    int64             // bytes; a read of one key may return only the size of a larger value; 0 = no bound
}

// UnreservedValue is the maximum size in bytes of a value that the HTTP and gRPC servers read without reserving memory
// first.
const UnreservedValue = 256 << 10

// WriteOptions are the options of every write.
type WriteOptions struct {
	Session   string
	Trace     string // trace id of the request; empty = none
	RequestID string // the client's own id for exactly-once retries; empty = none
	// Locks are tokens of locks, as lockTokens.add parses them. The write is refused unless the locks have these
	// tokens.
	Locks    []string
	Metadata map[string]string // overrides the metadata of each item; nil = none
}

// GetRequest reads one key.
type GetRequest struct {
	Store, Key string
	ReadOptions
}

// DeleteRequest deletes one key.
type DeleteRequest struct {
	Store, Key  string
	ETag        string // empty = no condition
	Concurrency state.Concurrency
	Consistency state.Consistency
	WriteOptions
}

// Check returns an error if this node cannot serve requests to the store. The HTTP and gRPC servers call it before
// they decode a request body.
func (s *State) Check(store string) error {
	if _, err := s.store(store); err != nil {
		return err
	}
	return nil
}

// Get reads one key. If the key does not exist, Found of the item is false.
func (s *State) Get(ctx context.Context, r GetRequest) (state.Item, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return state.Item{}, failure
	}
	keys, failure := s.keyspace(inst, r.Metadata)
	if failure != nil {
		return state.Item{}, failure
	}
	if err := keys.check(r.Key); err != nil {
		return state.Item{}, illegalKey(r.Store, "key", "", err)
	}
	v := s.enter(r.Trace, &r.Session)
	options, failure := readOptions(inst, r.ReadOptions)
	if failure != nil {
		return state.Item{}, failure
	}
	start := s.seen.begin()
	item, err := inst.Store.Get(ctx, state.GetRequest{Key: keys.stored(r.Key), ReadOptions: options})
	s.seen.state(inst.Name, observedGet, start, err)
	if err != nil {
		return state.Item{}, opGet.failed(err, inst.Name, r.Key, "")
	}
	v.leave(&item.Proof)
	item.Key = r.Key
	return item, nil
}

// Delete removes one key.
func (s *State) Delete(ctx context.Context, r DeleteRequest) (state.Written, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return state.Written{}, failure
	}
	keys, failure := s.keyspace(inst, r.Metadata)
	if failure == nil {
		failure = s.writable(ctx, keys, r.Key)
	}
	if failure != nil {
		return state.Written{}, failure
	}
	if err := keys.check(r.Key); err != nil {
		return state.Written{}, illegalKey(r.Store, "key", "", err)
	}
	if failure := checkRequestID(r.RequestID, s.limits.RequestIDSize); failure != nil {
		return state.Written{}, failure
	}
	locks, failure := s.writeLocks(inst, &r.WriteOptions, nil)
	if failure != nil {
		return state.Written{}, failure
	}
	v := s.enter(r.Trace, &r.Session)
	start := s.seen.begin()
	written, err := inst.Store.Delete(ctx, state.DeleteRequest{
		Key:         keys.stored(r.Key),
		ETag:        r.ETag,
		Concurrency: r.Concurrency,
		Consistency: resolve(inst, r.Consistency),
		Session:     r.Session,
		RequestID:   r.RequestID,
		Metadata:    r.Metadata,
		Locks:       locks,
	})
	s.seen.state(inst.Name, observedDelete, start, err)
	if err != nil {
		return state.Written{}, opDelete.failed(err, inst.Name, r.Key, deleteText(err, inst.Name, r))
	}
	v.leave(&written.Proof)
	return written, nil
}

func deleteText(err error, store string, r DeleteRequest) string {
	if !fault.Is(err, fault.Conflict) {
		return ""
	}
	return conflictText(store, r.Key, r.ETag)
}

// store returns a store, or an error that explains why it cannot be used.
func (s *State) store(name string) (*state.Instance, *Error) {
	if inst, ok := s.stores.StateStore(name); ok {
		return inst, nil
	}
	switch {
	case !s.stores.Loaded():
		return nil, storesStarting(name)
	case len(s.stores.StateStores()) == 0:
		return nil, storesNotConfigured(s.app, name)
	default:
		return nil, storeNotFound(s.app, name)
	}
}

// checkRequestID returns an error if the request id of a client is longer than limit bytes or is not valid UTF-8.
func checkRequestID(id string, limit int) *Error {
	if len(id) > limit {
		return Exceeded("the request id is too long, in bytes", len(id), limit)
	}
	if !utf8.ValidString(id) {
		return malformed("the request id is not valid UTF-8")
	}
	return nil
}

// resolve returns c, or the default of the store if c is not set.
func resolve(inst *state.Instance, c state.Consistency) state.Consistency {
	if c == state.DefaultConsistency {
		return max(inst.DefaultConsistency, state.Eventual)
	}
	return c
}

// metadataMaxStaleness is the metadata key for the maximum age of an eventual read.
const metadataMaxStaleness = "maxStaleness"

func readOptions(inst *state.Instance, r ReadOptions) (state.ReadOptions, *Error) {
	out := state.ReadOptions{Consistency: resolve(inst, r.Consistency), Session: r.Session, MaxValue: r.MaxValue,
		Metadata: r.Metadata}
	for name, value := range r.Metadata {
		if !strings.EqualFold(name, metadataMaxStaleness) || value == "" {
			continue
		}
		bound, err := time.ParseDuration(value)
		if err != nil || bound <= 0 {
			return out, malformed("metadata.maxStaleness must be a duration above zero, such as 500ms or 2s (for " +
				"the newest data ask with consistency=strong)")
		}
		out.MaxStaleness = bound
	}
	return out, nil
}

// merge combines the metadata of an item with that of its request. If both have the same key, the request has
// precedence. The caller must not change the result, because it may be one of the given maps.
func merge(item, request map[string]string) map[string]string {
	switch {
	case len(request) == 0:
		return item
	case len(item) == 0:
		return request
	}
	out := make(map[string]string, len(item)+len(request))
	for name, value := range item {
		out[name] = value
	}
	for name, value := range request {
		out[name] = value
	}
	return out
}
