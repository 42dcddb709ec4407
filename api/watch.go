package api

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// The bounds of a watch.
const (
	MaxWatchKeys     = 100
	DefaultBookmark  = 15 * time.Second
	MinBookmark      = time.Second
	MaxBookmark      = 5 * time.Minute
	watchStoreNeeded = "state.raft or state.in-memory"
)

// WatchRequest asks for the changes of the application's own keys.
type WatchRequest struct {
	Store    string
	Prefix   string   // prefix of the application's own keys; may be empty
	Keys     []string // keys to watch instead of a prefix
	HasBoth  bool     // prefix and keys were given, which is an error
	From     string   // position to continue from; empty = from now on
	Snapshot bool
	Bookmark time.Duration // time without changes until a bookmark; 0 = DefaultBookmark
	Session  string        // token of an earlier answer; empty = none
}

// Watch is a running watch. Only one goroutine may use it. The caller must call Close.
type Watch struct {
	Session  string // token that includes everything up to the start, and the token of the request; empty = none
	watch    state.Watch
	inst     *state.Instance
	app      string
	bookmark time.Duration
	entry    *watchEntry
	snapshot bool // items of the snapshot are still being delivered

	parent, ctx context.Context // parent is the argument of the last Next; ctx is derived from it
	cancel      context.CancelFunc
}

// Watch starts a watch. The watch counts against the limits of the listener and of the node.
func (s *State) Watch(ctx context.Context, r WatchRequest) (*Watch, error) {
	inst, failure := s.store(r.Store)
	if failure != nil {
		return nil, failure
	}
	watcher := state.AbilitiesOf(inst.Store).Watcher
	if watcher == nil {
		return nil, watchingNotSupported(inst.Name)
	}
	request, failure := s.watchRequest(inst, &r)
	if failure != nil {
		return nil, failure
	}
	entry, failure := s.watches.enter(s, inst.Name)
	if failure != nil {
		return nil, failure
	}
	w, err := watcher.Watch(ctx, request)
	if err != nil {
		entry.leave(endReason(err))
		return nil, watchFailed(err, inst.Name)
	}
	entry.watch(w)
	session := s.sessions.Extend(r.Session, s.sessionOf(ctx, inst, &request))
	return &Watch{Session: session, watch: w, inst: inst, app: s.app.ID, bookmark: r.Bookmark,
		entry: entry, snapshot: r.Snapshot}, nil
}

// sessionOf returns a session token for a new watch. A read with this token sees at least the state at the start of the
// watch. sessionOf gets the token by reading the first watched key, or the prefix as if it were a key. It returns "" if
// the read fails or the store has no sessions.
func (s *State) sessionOf(ctx context.Context, inst *state.Instance, r *state.WatchRequest) string {
	key := r.Prefix
	if len(r.Keys) > 0 {
		key = r.Keys[0]
	}
	item, err := inst.Store.Get(ctx, state.GetRequest{Key: key, ReadOptions: state.ReadOptions{MaxValue: 1}})
	if err != nil {
		return "" // the watch works without a token
	}
	return item.Session
}

func (s *State) watchRequest(inst *state.Instance, r *WatchRequest) (out state.WatchRequest, failure *Error) {
	switch {
	case r.HasBoth:
		return out, malformed("a watch has either prefix or key, not both")
	case len(r.Keys) > MaxWatchKeys:
		return out, Exceeded("too many keys in one watch", len(r.Keys), MaxWatchKeys)
	case r.Bookmark == 0:
		r.Bookmark = DefaultBookmark
	case r.Bookmark < MinBookmark || r.Bookmark > MaxBookmark:
		return out, malformed("bookmark must be from 1s to 5m")
	}
	for _, k := range r.Keys {
		if err := state.ValidateKey(k); err != nil {
			return out, illegalKey(inst.Name, "key", "", err)
		}
		out.Keys = append(out.Keys, inst.StoredKey(s.app.ID, k))
	}
	if r.Prefix != "" {
		if err := state.ValidateKey(r.Prefix); err != nil {
			return out, illegalKey(inst.Name, "prefix", "prefix: ", err)
		}
	}
	out.Prefix, out.Snapshot = inst.StoredPrefix(s.app.ID, r.Prefix), r.Snapshot
	if len(out.Keys) > 0 {
		out.Prefix = commonPrefix(out.Keys)
	} else if out.Prefix == "" {
		return out, malformed("state store " + inst.Name +
			" has keyPrefix none, so its keys tell no owner: watch them with a prefix")
	}
	if r.From != "" {
		var err error
		if out.From, err = state.ParsePosition(r.From); err != nil {
			return out, invalid("", err)
		}
		out.Resume = true
	}
	return out, nil
}

func commonPrefix(keys []string) string {
	prefix := keys[0]
	for _, k := range keys[1:] {
		n := 0
		for n < len(prefix) && n < len(k) && prefix[n] == k[n] {
			n++
		}
		prefix = prefix[:n]
	}
	return prefix
}

// Position returns the position up to which everything was delivered.
func (w *Watch) Position() string { return w.watch.Position().String() }

// PositionAt returns the position of a revision.
func (w *Watch) PositionAt(revision uint64) string {
	p := w.watch.Position()
	p.Revision = revision
	return p.String()
}

// Next waits for changes of the application's keys. If there are none within the bookmark interval, it returns a part
// without changes but with a newer position. After an error the watch has ended, and EndOf returns the reason.
func (w *Watch) Next(ctx context.Context) (state.WatchPart, error) { return w.next(ctx, w.bookmark) }

func (w *Watch) next(ctx context.Context, wait time.Duration) (state.WatchPart, error) {
	if w.parent != ctx {
		w.endContext()
		w.parent = ctx
		w.ctx, w.cancel = w.entry.context(ctx)
	}
	part, err := w.watch.Next(w.ctx, wait)
	if err != nil {
		if w.entry.closing() {
			err = &state.WatchEnd{Reason: state.WatchClosing}
		}
		return state.WatchPart{}, err
	}
	w.snapshot = w.snapshot && !part.Synced
	part.Items, part.Changes = w.own(part.Items), w.own(part.Changes)
	w.entry.count(len(part.Items) + len(part.Changes))
	w.entry.pos.Store(w.watch.Position().Revision)
	return part, nil
}

// Bookmark returns the bookmark interval. After this time without changes, the client gets the position.
func (w *Watch) Bookmark() time.Duration { return w.bookmark }

// OnChange sets the function f, which is called whenever Poll may have something new, and when the node stops. f must
// not block and must not use the watch. Call OnChange before the first Poll.
func (w *Watch) OnChange(f func()) {
	w.entry.onClose(f)
	w.watch.OnChange(f)
}

// Refresh asks for a part without changes but with a newer position; see state.Watch.
func (w *Watch) Refresh() { w.watch.Refresh() }

// Poll returns the next part if it is already in memory, and never waits. r reports whether Poll has returned a part.
// After an error the watch has ended, and EndOf returns the reason.
//
// The part has stored keys, which Own converts. The caller must not change the part, because watches with the same
// request share it. Own has the same result for all watches with the same request and Scope.
func (w *Watch) Poll() (part state.WatchPart, r state.Readiness, err error) {
	if w.entry.closing() {
		return part, state.WatchIdle, &state.WatchEnd{Reason: state.WatchClosing}
	}
	if part, r, err = w.watch.Poll(); err == nil && r == state.WatchReady {
		w.entry.pos.Store(part.Seen)
	}
	return part, r, err
}

// CatchUp returns the next part after Poll has returned state.WatchBehind. It is like Next, but it only reads the
// store and does not wait for changes.
func (w *Watch) CatchUp(ctx context.Context) (state.WatchPart, error) { return w.next(ctx, 0) }

// WatchScope identifies the store and the application of a watch. If two watches have the same WatchScope, Own converts
// the same part to the same result.
type WatchScope struct {
	inst *state.Instance
	app  string
}

// Scope returns the scope of the watch.
func (w *Watch) Scope() WatchScope { return WatchScope{w.inst, w.app} }

// Own converts a part from Poll to the form that the application receives. It removes actor state, and replaces stored
// keys with the application's keys. It does not change the slices of part, because other watches share them.
func (w *Watch) Own(part state.WatchPart) state.WatchPart {
	part.Items, part.Changes = w.own(part.Items), w.own(part.Changes)
	return part
}

// Count counts events that were sent to the client, for metrics.
func (w *Watch) Count(events int) { w.entry.count(events) }

// own drops actor state, and replaces stored keys by those of the application.
func (w *Watch) own(list []state.Change) []state.Change {
	out := make([]state.Change, 0, len(list))
	for i := range list {
		if key, ok := w.inst.OriginalKey(w.app, list[i].Key); ok {
			out = append(out, list[i])
			out[len(out)-1].Key = key
		}
	}
	return out
}

// Close ends the watch. err is the error of Next or of the connection, for metrics.
func (w *Watch) Close(err error) {
	w.endContext()
	w.watch.Close()
	w.entry.leave(endReason(err))
}

// endContext releases the context of Next.
func (w *Watch) endContext() {
	if w.cancel != nil {
		w.cancel()
		w.parent, w.ctx, w.cancel = nil, nil, nil
	}
}

// Rest frees the context that Next and CatchUp keep between calls. Call it if neither of them will be called for a long
// time.
func (w *Watch) Rest() { w.endContext() }

// EndOf returns what to send to the client of a watch that ended with err: the public error, the name of the reason,
// and the position from which the client can continue. If the position is empty, the client must start again with a
// snapshot.
func (w *Watch) EndOf(err error) (e *Error, reason, resume string) {
	reason = endReason(err)
	switch reason {
	case ReasonCompacted, ReasonRestored, ReasonMoved:
	default:
		if !w.snapshot { // the position does not include the items that are missing
			resume = w.Position()
		}
	}
	return watchFailed(err, w.inst.Name), reason, resume
}

// Values of the label reason of the metric quorate_watch_ends_total. Further values are the reasons of state.WatchEnd.
const (
	endClient = "client"
	endError  = "error"
)

func endReason(err error) string {
	var end *state.WatchEnd
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return endClient
	case errors.As(err, &end):
		return end.Reason
	case errors.Is(err, os.ErrDeadlineExceeded): // a write to the client took too long; see internal/connlimit
		return state.WatchSlow
	}
	return endError
}

func watchFailed(err error, store string) *Error {
	var end *state.WatchEnd
	if !errors.As(err, &end) {
		return watchFault(err, store)
	}
	e := &Error{Kind: Unavailable, Code: CodeWatch, Cause: err,
		Message: "watch of state store " + store + ": " + end.Error(),
		Details: Details{Reason: end.Reason, Store: store}}
	if end.Reason == state.WatchCompacted || end.Reason == state.WatchRestored {
		e.Kind, e.Code = Compacted, CodeWatchCompacted
		e.Details.Metadata = Attributes("oldest", strconv.FormatUint(end.Oldest, 10),
			"current", strconv.FormatUint(end.Current, 10))
	}
	return e
}

// watchFault returns the public error of a store's failure.
func watchFault(err error, store string) *Error {
	v := row{code: CodeWatch}.verdict(fault.CodeOf(err))
	if v.reason == ReasonNoQuorum {
		v.reason = ReasonNotReady
	}
	return &Error{Kind: v.kind, Code: cmp.Or(v.code, CodeWatch), Cause: err,
		Message: "watch of state store " + store + ": " + fault.Text(err),
		Details: Details{Reason: v.reason, Store: store}}
}

func watchingNotSupported(store string) *Error {
	return &Error{Kind: Unsupported, Code: CodeStoreNotSupported,
		Message: "state store " + store + " doesn't support watching keys (use " + watchStoreNeeded + ")",
		Details: Details{Reason: ReasonUnsupported, Metadata: Attributes("store", store), Store: store}}
}
