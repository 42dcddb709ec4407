package feed

import (
	"context"
	"strings"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// watch implements state.Watch.
type watch struct {
	hub    *Hub
	topic  *topic
	source Source
	match  func(key string) bool
	prefix string
	shape  string // equal for watches that match the same keys; empty = not shared

	id, restored uint64 // Page.ID and Page.Restored at the start
	pos          uint64 // all changes up to this revision were read
	seen         uint64 // all matching changes up to this revision were delivered
	held         *state.Change
	skipped      int
	scan         Scan // the rest of a snapshot; nil = none
	closed       bool

	asked   bool // Refresh was called
	askedAt uint64
}

// Watch starts a watch of the changes that source provides. All watches with the same name share one topic, so the name
// must identify the source.
func (h *Hub) Watch(ctx context.Context, name string, source Source, r state.WatchRequest) (state.Watch, error) {
	if c := source.Cluster(); r.Resume && r.From.Cluster != "" && r.From.Cluster != c {
		return nil, state.ErrForeignPosition(r.From, c)
	}
	w := &watch{hub: h, source: source, match: matcher(&r), prefix: r.Prefix, shape: shapeOf(&r)}
	page, err := w.ready(ctx, r.From.Revision, r.Resume && !r.Snapshot)
	if err != nil {
		return nil, err
	}
	w.id, w.restored = page.ID, page.Restored
	switch {
	case r.Snapshot:
		if w.scan, err = source.Scan(ctx, r.Prefix); err != nil {
			return nil, err
		}
		w.pos = w.scan.Revision()
	case r.Resume && r.From.Revision == 0:
		w.pos = page.Floor
	case r.Resume:
		w.pos = r.From.Revision
	default:
		w.pos = page.Revision
	}
	w.seen = w.pos
	if w.topic, err = h.join(name, source, &page); err != nil {
		w.drop()
		return nil, err
	}
	return w, nil
}

func shapeOf(r *state.WatchRequest) string {
	switch len(r.Keys) {
	case 0:
		return "prefix " + r.Prefix
	case 1:
		return "key " + r.Keys[0]
	}
	return ""
}

func matcher(r *state.WatchRequest) func(key string) bool {
	if len(r.Keys) == 0 {
		prefix := r.Prefix
		return func(key string) bool { return strings.HasPrefix(key, prefix) }
	}
	keys := make(map[string]bool, len(r.Keys))
	for _, k := range r.Keys {
		keys[k] = true
	}
	return func(key string) bool { return keys[key] }
}

// ready enables the history of the source and waits until the history exists. If resume is true, ready also waits until
// the source has reached the revision start. It then returns a *state.WatchEnd if changes after start are no longer
// kept. A start of 0 means the oldest change that is kept. After aheadTime, ready returns fault.Unavailable.
func (w *watch) ready(ctx context.Context, start uint64, resume bool) (Page, error) {
	first := true
	ctx, cancel := context.WithTimeout(ctx, aheadTime)
	defer cancel()
	for {
		page, err := w.source.Read(ctx, start, 1)
		switch {
		case err != nil:
			return page, err
		case !page.Kept && first:
			if err := w.source.Extend(ctx); err != nil {
				return page, err
			}
			first = false
			continue
		case page.Kept && resume && start != 0 && start < page.Floor:
			return page, &state.WatchEnd{Reason: state.WatchCompacted, Oldest: page.Floor, Current: page.Revision}
		case page.Kept && (!resume || start <= page.Revision):
			return page, nil
		case ctx.Err() != nil:
			return page, &fault.Error{Code: fault.Unavailable, Op: "feed.Watch",
				Msg:  "this node has not reached the position yet",
				Hint: "try again, or at another node"}
		}
		round, end := context.WithTimeout(ctx, pause)
		w.source.Wait(round, page.Revision)
		end()
	}
}

// Position implements state.Watch.
func (w *watch) Position() state.Position {
	return state.Position{Cluster: w.source.Cluster(), Revision: w.seen}
}

// Newest implements state.Watch.
func (w *watch) Newest() uint64 { return w.topic.newest() }

// Close implements state.Watch.
func (w *watch) Close() {
	if !w.closed {
		w.closed = true
		w.drop()
		w.topic.listen(w, nil)
		w.hub.leave(w.topic)
	}
}

func (w *watch) drop() {
	if w.scan != nil {
		w.scan.Close()
		w.scan = nil
	}
}

// Next implements state.Watch.
func (w *watch) Next(ctx context.Context, wait time.Duration) (state.WatchPart, error) {
	if w.scan != nil {
		return w.snapshot(ctx)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		changes, pos, known, wake, err := w.topic.take(w.pos, pageBytes)
		if err != nil {
			return state.WatchPart{}, err
		}
		if !known {
			if changes, pos, err = w.read(ctx); err != nil {
				return state.WatchPart{}, err
			}
		}
		if part, any := w.deliver(changes, pos); any {
			return part, nil
		}
		if !known || len(changes) > 0 {
			continue // there may be more
		}
		if done, err := w.confirmed(); done || err != nil {
			return state.WatchPart{Seen: w.seen}, err
		}
		select {
		case <-wake:
		case <-timer.C:
			if done := w.askRefresh(); done != nil {
				await(ctx, done)
			}
			timer.Reset(pause) // try again soon if the source was unavailable
		case <-ctx.Done():
			return state.WatchPart{}, &fault.Error{Code: fault.Timeout, Op: "feed.Next", Msg: "the watch was given up",
				Err: ctx.Err()}
		}
	}
}

// confirmed reports whether a read of the source has ended since Refresh was called, and returns the error of this
// read. A read without an error confirms the position of the watch.
func (w *watch) confirmed() (bool, error) {
	if !w.asked {
		return false, nil
	}
	n, err := w.topic.refreshed()
	if n == w.askedAt {
		return false, nil
	}
	w.asked = false
	return true, err
}

func await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// OnChange implements state.Watch.
func (w *watch) OnChange(f func()) { w.topic.listen(w, f) }

// Refresh implements state.Watch.
func (w *watch) Refresh() { w.askRefresh() }

// askRefresh implements Refresh: it starts a read of the source, and returns a channel that is closed when the read has
// ended. The channel is nil if the watch is closed, or if its topic has ended and no read is in progress.
func (w *watch) askRefresh() <-chan struct{} {
	if w.closed {
		return nil
	}
	if !w.asked {
		w.asked = true
		w.askedAt, _ = w.topic.refreshed()
	}
	return w.topic.refresh()
}

// Poll implements state.Watch.
func (w *watch) Poll() (state.WatchPart, state.Readiness, error) {
	if w.scan != nil {
		return state.WatchPart{}, state.WatchBehind, nil
	}
	for {
		begin := shape{w.shape, w.pos}
		if w.shape != "" && w.held == nil {
			if p, ok := w.topic.sharedWith(begin); ok {
				w.pos, w.seen, w.skipped = p.pos, p.seen, 0
				return p.part, state.WatchReady, nil
			}
		}
		changes, pos, known, _, err := w.topic.take(w.pos, pageBytes)
		switch {
		case err != nil:
			return state.WatchPart{}, state.WatchIdle, err
		case !known:
			return state.WatchPart{}, state.WatchBehind, nil
		}
		whole := w.held == nil
		if part, any := w.deliver(changes, pos); any {
			if w.shape != "" && whole && w.held == nil && len(part.Changes) > 0 {
				w.topic.share(begin, sharedPart{part, w.pos, w.seen})
			}
			return part, state.WatchReady, nil
		}
		if len(changes) > 0 {
			continue
		}
		switch done, err := w.confirmed(); {
		case err != nil:
			return state.WatchPart{}, state.WatchIdle, err
		case done:
			return state.WatchPart{Seen: w.seen}, state.WatchReady, nil
		}
		return state.WatchPart{}, state.WatchIdle, nil
	}
}

// read reads the next changes from the source, because the topic no longer has them in memory. The watch then has all
// changes up to the revision pos. While the source is unavailable, read tries again until ctx ends.
func (w *watch) read(ctx context.Context) (changes []state.Change, pos uint64, err error) {
	for {
		page, err := w.source.Read(ctx, w.pos, pageBytes)
		if err == nil {
			if end := endOf(&page, w.pos, w.id, w.restored); end != nil {
				return nil, 0, end
			}
			return page.Changes, max(page.Seen, w.pos), nil
		}
		if ctx.Err() != nil || !fault.Is(err, fault.Unavailable) {
			return nil, 0, err
		}
		if end := w.topic.ended(); end != nil {
			return nil, 0, end
		}
		sleep(ctx, pause)
	}
}

// deliver converts changes from the source to the next WatchPart. pos is the position after these changes. The result
// ok is false if there is nothing to deliver yet.
//
// Only the last matching change of a write request carries a position. Therefore deliver holds back each matching
// change until it reads the next matching change or the end of the request.
func (w *watch) deliver(changes []state.Change, pos uint64) (part state.WatchPart, ok bool) {
	for i := range changes {
		c := &changes[i]
		if w.match(c.Key) {
			if w.held != nil {
				part.Changes = append(part.Changes, *w.held)
			}
			one := *c
			one.Position = 0
			w.held = &one
		} else {
			w.skipped++
		}
		if !c.Last {
			continue
		}
		if w.held != nil {
			w.held.Position = c.Revision
			part.Changes = append(part.Changes, *w.held)
			w.held = nil
		}
		w.seen = c.Revision // seen is correct even if changes ends within the next request
	}
	w.pos = pos
	if w.held == nil {
		w.seen = w.pos
	}
	if len(part.Changes) > 0 || w.skipped >= maxSkipped {
		w.skipped = 0
		part.Seen = w.seen
		return part, true
	}
	return part, false
}

// snapshot returns the next items of the snapshot. If they cannot be read, it returns state.WatchEnd with the reason
// WatchMoved.
func (w *watch) snapshot(ctx context.Context) (part state.WatchPart, err error) {
	items, more, err := w.scan.Next(ctx, pageBytes)
	if err != nil {
		return part, &state.WatchEnd{Reason: state.WatchMoved}
	}
	for i := range items {
		if w.match(items[i].Key) {
			part.Items = append(part.Items, items[i])
		}
	}
	if !more {
		w.drop()
		part.Synced, part.Seen = true, w.seen
	}
	return part, nil
}
