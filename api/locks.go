package api

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Bounds of requests about locks.
const (
	// MaxLockWait is how long a request may wait for a lock.
	MaxLockWait = 10 * time.Minute
	// MaxLockTokens is how many tokens of locks one write may carry.
	MaxLockTokens = 16
)

// LockStores returns the opened lock stores. The set changes while components are being loaded. Implementations are
// safe for concurrent use.
type LockStores interface {
	// LockStore returns the store with the given component name.
	LockStore(name string) (*lock.Instance, bool)
	// LockStores returns all stores.
	LockStores() []*lock.Instance
	// Loaded reports whether all components have been opened.
	Loaded() bool
}

// Locks serves one application's locks. It is immutable and safe for concurrent use. All errors are *Error.
type Locks struct {
	app    App
	stores LockStores
}

// NewLocks returns the lock service of app.
func NewLocks(app App, stores LockStores) *Locks { return &Locks{app: app, stores: stores} }

// LockRequest is a request about one lock.
type LockRequest struct {
	Store, Resource, Owner string
	Expiry                 time.Duration
	Wait                   time.Duration // how long to wait for the lock; 0 = not at all
	RequestID              string        // TryLock: the client's own id for retries; empty = none
	Revision               string        // Unlock: ends only the acquisition with this token; empty = any
}

// TryLock tries to acquire a lock for r.Owner, and waits up to r.Wait for it. If the lock is still held after that
// time, the result has Granted = false. A retry with the same RequestID gets the result of the first request, with one
// exception for requests that wait (see lock.Claim).
func (l *Locks) TryLock(ctx context.Context, r LockRequest) (lock.Grant, error) {
	inst, claim, failure := l.claim(&r)
	if failure != nil {
		return lock.Grant{}, failure
	}
	if failure := checkRequestID(r.RequestID, DefaultRequestIDSize); failure != nil {
		return lock.Grant{}, failure
	}
	_, leaser := inst.Store.(lock.Leaser)
	switch {
	case r.Wait > 0 && !leaser:
		return lock.Grant{}, l.unsupported(inst, CodeTryLock, "waiting for a lock")
	case r.RequestID != "" && !leaser:
		return lock.Grant{}, l.unsupported(inst, CodeTryLock, "request ids")
	}
	claim.RequestID = r.RequestID
	g, err := inst.Store.TryLock(ctx, claim)
	if err != nil {
		return lock.Grant{}, lockFailed(CodeTryLock, "failed to try acquiring lock", inst.Name, err)
	}
	return g, nil
}

// Renew restarts the expiry of a lock that r.Owner owns. If r.Owner does not own the lock, the result has Granted =
// false.
func (l *Locks) Renew(ctx context.Context, r LockRequest) (lock.Grant, error) {
	inst, claim, failure := l.claim(&r)
	if failure != nil {
		return lock.Grant{}, failure
	}
	leaser, ok := inst.Store.(lock.Leaser)
	if !ok {
		return lock.Grant{}, l.unsupported(inst, CodeTryLock, "the renewal of a lock")
	}
	g, err := leaser.Renew(ctx, claim)
	if err != nil {
		return lock.Grant{}, lockFailed(CodeTryLock, "failed to renew lock", inst.Name, err)
	}
	return g, nil
}

// Unlock releases a lock that r.Owner owns. If r.Revision is set and differs from the token of the lock, Unlock does
// nothing and returns lock.BelongsToOthers.
func (l *Locks) Unlock(ctx context.Context, r LockRequest) (lock.Status, error) {
	inst, failure := l.store(&r, r.Owner == "")
	if failure != nil {
		return lock.InternalError, failure
	}
	token, failure := parseRevision(r.Revision)
	if failure != nil {
		return lock.InternalError, failure
	}
	if _, ok := inst.Store.(lock.Leaser); token != 0 && !ok {
		return lock.InternalError, l.unsupported(inst, CodeUnlock, "the revision of a lock")
	}
	s, err := inst.Store.Unlock(ctx,
		lock.Release{Key: inst.KeyOf(l.app.ID, r.Resource), Owner: r.Owner, Token: token})
	if err != nil {
		return lock.InternalError, lockFailed(CodeUnlock, "failed to release lock", inst.Name, err)
	}
	return s, nil
}

// Look returns the state of a lock. The read is linearizable.
func (l *Locks) Look(ctx context.Context, r LockRequest) (lock.Grant, error) {
	inst, failure := l.store(&r, false)
	if failure != nil {
		return lock.Grant{}, failure
	}
	leaser, ok := inst.Store.(lock.Leaser)
	if !ok {
		return lock.Grant{}, l.unsupported(inst, CodeTryLock, "looking at a lock")
	}
	g, err := leaser.Look(ctx, inst.KeyOf(l.app.ID, r.Resource))
	if err != nil {
		return lock.Grant{}, lockFailed(CodeTryLock, "failed to look at lock", inst.Name, err)
	}
	return g, nil
}

// claim checks a request to acquire or renew a lock, and returns the lock store and the claim for it. It makes its
// checks in the same order as Dapr, so that clients get the same errors.
func (l *Locks) claim(r *LockRequest) (*lock.Instance, lock.Claim, *Error) {
	if r.Expiry <= 0 {
		return nil, lock.Claim{}, malformed("expiryInSeconds must be a whole number above zero")
	}
	inst, failure := l.store(r, r.Owner == "")
	switch {
	case failure != nil:
		return nil, lock.Claim{}, failure
	case r.Wait < 0 || r.Wait > MaxLockWait:
		return nil, lock.Claim{}, malformed("wait must be a duration from 0s to " + MaxLockWait.String())
	}
	return inst, lock.Claim{Key: inst.KeyOf(l.app.ID, r.Resource), Owner: r.Owner, Expiry: r.Expiry, Wait: r.Wait}, nil
}

// store returns the lock store of a request. It returns an error if the store cannot be used, or if the resource is
// empty or not valid. If noOwner is true, the request lacks a required owner, and store returns an error too.
func (l *Locks) store(r *LockRequest, noOwner bool) (*lock.Instance, *Error) {
	visible := 0
	for _, i := range l.stores.LockStores() {
		if i.VisibleTo(l.app.ID) {
			visible++
		}
	}
	inst, found := l.stores.LockStore(r.Store)
	switch {
	case !l.stores.Loaded():
		return nil, &Error{Kind: Unavailable, Code: CodeLockStoreNotConfigured,
			Message: "components are being loaded (wait for /v1.0/healthz/outbound)",
			Details: Details{Reason: ReasonStarting}}
	case visible == 0:
		return nil, &Error{Kind: NotConfigured, Code: CodeLockStoreNotConfigured,
			Message: "lock store is not configured", Details: Details{Reason: ReasonNotConfigured}}
	case r.Resource == "":
		return nil, malformed("ResourceId is empty in lock store " + Shorten(r.Store))
	case noOwner:
		return nil, malformed("LockOwner is empty in lock store " + Shorten(r.Store))
	case !found || !inst.VisibleTo(l.app.ID):
		return nil, &Error{Kind: Missing, Code: CodeLockStoreNotFound,
			Message: "lock store " + Shorten(r.Store) + " not found",
			Details: Details{Reason: ReasonNotFound, Metadata: Attributes("store", Shorten(r.Store))}}
	}
	if failure := checkResource(r.Resource); failure != nil {
		return nil, failure
	}
	return inst, nil
}

// checkResource returns an error for a resource that no lock can have.
func checkResource(resource string) *Error {
	what := "the resource " + strconv.Quote(Shorten(resource))
	switch {
	case strings.Contains(resource, state.Separator):
		return malformed(what + " contains " + strconv.Quote(state.Separator) +
			", which separates the prefix from the resource")
	case !utf8.ValidString(resource):
		return malformed(what + " is not valid UTF-8")
	}
	return nil
}

// parseRevision parses the revision in an unlock request. A revision is the token that the lock had when it was
// acquired. parseRevision returns 0 if text is empty.
func parseRevision(text string) (token uint64, failure *Error) {
	if text == "" {
		return 0, nil
	}
	token, err := strconv.ParseUint(text, 10, 64)
	if err != nil || token == 0 {
		return 0, malformed("the revision of the lock is not a whole number above zero: " + Shorten(text))
	}
	return token, nil
}

func (l *Locks) unsupported(inst *lock.Instance, code, what string) *Error {
	return &Error{Kind: Unsupported, Code: code, Message: "lock store " + inst.Name + " of type " + inst.Type +
		" does not support " + what, Details: Details{Reason: ReasonUnsupported}}
}

// lockFailed returns the public error for an operation on a lock store that failed with err. If err is fault.TooLarge,
// the result is the error of a malformed request. Otherwise it has the given code, as in Dapr. The message begins with
// the given sentence.
func lockFailed(code, sentence, store string, err error) *Error {
	v := row{conflict: Failed, writes: true}.verdict(fault.CodeOf(err))
	kind := Failed
	if v.kind == Indeterminate || v.kind == Unavailable || v.kind == Timeout {
		kind = v.kind
	}
	if fault.Is(err, fault.TooLarge) {
		kind, code = Malformed, CodeMalformed
	}
	return &Error{Kind: kind, Code: code, Message: sentence + " in lock store " + store + ": " + StoreText(err),
		Details: Details{Reason: v.reason, Metadata: Attributes("store", store)}, Cause: err}
}

// lockTokens are the lock tokens of one write, without duplicates.
type lockTokens []lockToken

// add parses the lock tokens in text and adds them to l. text contains one token, or several tokens separated by
// commas. A token has the form {component}/{resource}@{token}, and its resource is percent-encoded. add returns an
// error if a token has another form, or if l would have more than MaxLockTokens tokens.
func (l *lockTokens) add(text string) *Error {
	for one := range strings.SplitSeq(text, ",") {
		t, ok := parseLockToken(strings.TrimSpace(one))
		switch {
		case !ok:
			return malformed("a lock token is not of the form {component}/{resource}@{token}: " + Shorten(one))
		case slices.Contains(*l, t): // items of one write may all carry the same token
			continue
		case len(*l) == MaxLockTokens:
			return malformed("a write may carry at most " + strconv.Itoa(MaxLockTokens) + " lock tokens")
		}
		*l = append(*l, t)
	}
	return nil
}

// addFrom adds the lock tokens in metadata, if there are any.
func (l *lockTokens) addFrom(metadata map[string]string) *Error {
	if text, found := metadata[MetadataLock]; found {
		return l.add(text)
	}
	return nil
}

// lockToken is a fencing token that a client sends with a write. The write is refused if the lock has another token.
type lockToken struct {
	Store, Resource string
	Token           uint64
}

func parseLockToken(text string) (t lockToken, ok bool) {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return t, false
	}
	var resource string
	if t.Store, resource, ok = strings.Cut(text[:at], "/"); !ok {
		return t, false
	}
	token, err := strconv.ParseUint(text[at+1:], 10, 64)
	if err != nil || t.Store == "" {
		return t, false
	}
	t.Token = token
	t.Resource, err = url.PathUnescape(resource)
	return t, err == nil && t.Resource != ""
}

// MetadataLock is the metadata key for lock tokens, in the metadata of a write or of one item. Clients use this key if
// they cannot send the header Quorate-Lock.
const MetadataLock = "quorateLock"

// resolveLocks converts the lock tokens of a write to the form that the state store needs. It returns an error if a
// lock store does not exist, or if its locks do not protect the state store inst.
func (s *State) resolveLocks(inst *state.Instance, given lockTokens) ([]state.LockToken, *Error) {
	if len(given) == 0 {
		return nil, nil
	}
	out := make([]state.LockToken, len(given))
	for i, t := range given {
		locks, found := s.lockStore(t.Store)
		if !found || !locks.VisibleTo(s.app.ID) {
			return nil, malformed("lock store " + Shorten(t.Store) + " of a lock token not found")
		}
		if locks.StateStore != inst.Name {
			return nil, &Error{Kind: Malformed, Code: CodeMalformed, Details: Details{Reason: ReasonUnsupported},
				Message: "the locks of " + t.Store + " do not protect state store " + inst.Name +
					" (declare a component lock.raft with stateStore: " + inst.Name + ", and use its locks)"}
		}
		if failure := checkResource(t.Resource); failure != nil {
			return nil, failure
		}
		key := locks.KeyOf(s.app.ID, t.Resource)
		out[i] = state.LockToken{Component: locks.Name, Prefix: key.Prefix, Resource: key.Resource, Token: t.Token}
	}
	return out, nil
}

// writeLocks returns all lock tokens of a write: those in o.Locks, in o.Metadata and in the metadata of the items. The
// items must have the metadata that the client sent, not yet merged with o.Metadata. The merge would replace the token
// of an item with the token in o.Metadata.
func (s *State) writeLocks(inst *state.Instance, o *WriteOptions, items []Item) ([]state.LockToken, *Error) {
	var given lockTokens
	for _, text := range o.Locks {
		if failure := given.add(text); failure != nil {
			return nil, failure
		}
	}
	if failure := given.addFrom(o.Metadata); failure != nil {
		return nil, failure
	}
	for i := range items {
		if failure := given.addFrom(items[i].Metadata); failure != nil {
			return nil, failure
		}
	}
	return s.resolveLocks(inst, given)
}

func (s *State) lockStore(name string) (*lock.Instance, bool) {
	if s.locks == nil {
		return nil, false
	}
	return s.locks.LockStore(name)
}

// Fence sets the lock stores and returns s. A write may then carry a fencing token of one of these stores. Fence must
// be called before the first request.
func (s *State) Fence(locks LockStores) *State {
	s.locks = locks
	return s
}
