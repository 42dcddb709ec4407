package feed

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Hub has the topics of one store or node. The zero value is ready to use.
type Hub struct {
	mu     sync.Mutex
	topics map[string]*topic
	closed bool
	wg     sync.WaitGroup
}

// topic holds the newest changes of one prefix.
type topic struct {
	name   string
	source Source
	hub    *Hub
	users  int // guarded by Hub.mu
	ctx    context.Context
	stop   context.CancelFunc

	id, restored uint64 // Page.ID and Page.Restored at the start

	mu         sync.Mutex
	changes    []state.Change // sorted; never modified in place
	bytes      int
	start      uint64 // changes has every change after start up to seen
	seen       uint64
	wake       chan struct{} // closed when something below has changed
	end        error
	onChange   map[*watch]func()
	shared     map[shape]sharedPart // parts for further watches; see sharedPart
	refreshes  uint64               // completed reads of refresh (see refreshed)
	refreshErr error                // error of the latest of these reads
	refreshing chan struct{}        // closed when the read in progress ends; nil = none
}

// shape identifies the parts that watches can share. Two watches with the same shape match the same keys and are at the
// same position, so their next parts are equal.
type shape struct {
	match string // see watch.shape
	pos   uint64
}

// sharedPart is a part that one watch has delivered. Other watches of the same shape deliver it too, and need not
// select the matching changes again. A watch of several keys shares no parts.
type sharedPart struct {
	part      state.WatchPart
	pos, seen uint64 // position of the watch after the part
}

// maxShared is how many parts a topic keeps for further watches.
const maxShared = 32

// join returns the topic with the given name, and counts the caller as a user. If the topic does not exist, join starts
// it. The topic then contains only changes after page.Revision.
func (h *Hub) join(name string, source Source, page *Page) (*topic, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, &state.WatchEnd{Reason: state.WatchClosing}
	}
	if t := h.topics[name]; t != nil && t.ended() == nil {
		t.users++
		return t, nil
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &topic{name: name, source: source, hub: h, users: 1, ctx: ctx, stop: stop, id: page.ID,
		restored: page.Restored, start: page.Revision, seen: page.Revision, wake: make(chan struct{})}
	if h.topics == nil {
		h.topics = map[string]*topic{}
	}
	h.topics[name] = t
	h.wg.Go(func() { t.run(ctx) })
	h.wg.Go(func() { t.extend(ctx) })
	return t, nil
}

func (h *Hub) leave(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.users--; t.users > 0 {
		return
	}
	t.stop()
	if h.topics[t.name] == t {
		delete(h.topics, t.name)
	}
}

// Close ends all watches with state.WatchClosing and waits for the goroutines.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for _, t := range h.topics {
		t.finish(&state.WatchEnd{Reason: state.WatchClosing})
		t.stop()
	}
	h.mu.Unlock()
	h.wg.Wait()
}

// run reads new changes until ctx ends or the history cannot be followed any more.
func (t *topic) run(ctx context.Context) {
	for ctx.Err() == nil {
		page, err := t.read(ctx)
		if err != nil {
			sleep(ctx, pause)
			continue
		}
		if t.ended() != nil {
			return
		}
		if page.Seen == page.Revision || page.Seen == 0 {
			t.source.Wait(ctx, max(page.Seen, t.position()))
		}
	}
}

// read reads the next changes from the source and adds them to the topic. It ends the topic if the source no longer has
// these changes, or if a backup was restored.
func (t *topic) read(ctx context.Context) (Page, error) {
	after := t.position()
	page, err := t.source.Read(ctx, after, liveBytes)
	if err != nil {
		return page, err
	}
	if end := endOf(&page, after, t.id, t.restored); end != nil {
		t.finish(end)
		return page, nil
	}
	if page.Seen != 0 {
		t.add(after, &page)
	}
	return page, nil
}

// refresh makes t.seen current: it starts a goroutine that reads the source once, unless such a read is in progress. It
// returns a channel that is closed when the read has ended. The channel is nil if the topic has ended and no read is in
// progress.
func (t *topic) refresh() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refreshing != nil || t.end != nil {
		return t.refreshing // Hub.Close sets end before it waits for wg
	}
	done := make(chan struct{})
	t.refreshing = done
	t.hub.wg.Go(func() {
		_, err := t.read(t.ctx)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.refreshing = nil
		close(done)
		if t.ctx.Err() == nil && !fault.Is(err, fault.Unavailable) {
			t.refreshes, t.refreshErr = t.refreshes+1, err
			t.notify()
		}
	})
	return done
}

// refreshed returns the number of completed reads of refresh, and the error of the latest one. Reads that failed with
// fault.Unavailable or were cancelled do not count.
func (t *topic) refreshed() (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refreshes, t.refreshErr
}

// listen sets the function that the topic calls when the watch w may have something new to read. listen(w, nil) removes
// the function.
func (t *topic) listen(w *watch, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f == nil {
		delete(t.onChange, w)
		return
	}
	if t.onChange == nil {
		t.onChange = map[*watch]func(){}
	}
	t.onChange[w] = f
}

// notify calls the functions of all watches. The caller must hold t.mu.
func (t *topic) notify() {
	for _, f := range t.onChange {
		f()
	}
}

// sharedWith returns the part that another watch of the same shape has delivered. The result ok is false if there is no
// such part, or if the topic has ended.
func (t *topic) sharedWith(s shape) (p sharedPart, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok = t.shared[s]
	return p, ok && t.end == nil
}

// share keeps a part for other watches of the same shape until there are newer changes. It keeps at most maxShared
// parts.
func (t *topic) share(s shape, p sharedPart) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared == nil {
		t.shared = map[shape]sharedPart{}
	}
	if len(t.shared) < maxShared {
		t.shared[s] = p
	}
}

// extend keeps the history of the source enabled until ctx ends. It runs in its own goroutine, because Source.Extend
// may wait for a leader, and reading must not wait.
func (t *topic) extend(ctx context.Context) {
	for ctx.Err() == nil {
		round, cancel := context.WithTimeout(ctx, extendTime/10)
		err := t.source.Extend(round)
		cancel()
		if err != nil {
			sleep(ctx, extendRetry)
			continue
		}
		sleep(ctx, extendTime)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// endOf returns nil if a watch can continue with page, and otherwise a *state.WatchEnd with the reason. The watch has
// all changes up to the revision reached. id and restored are the values of Page.ID and Page.Restored at the start of
// the watch; an id of 0 is not compared.
func endOf(page *Page, reached, id, restored uint64) error {
	end := &state.WatchEnd{Reason: state.WatchCompacted, Oldest: page.Floor, Current: page.Revision}
	switch {
	case page.Restored > restored:
		end.Reason = state.WatchRestored
	case page.Kept && (id == 0 || page.ID == id) && reached >= page.Floor:
		return nil
	}
	return end
}

func (t *topic) position() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}

// newest returns the revision of the newest change that the topic has received. If there was none, it returns the
// revision at which the topic started.
func (t *topic) newest() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.changes); n > 0 {
		return t.changes[n-1].Revision
	}
	return t.start
}

func (t *topic) ended() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end
}

func (t *topic) finish(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end == nil {
		t.end = err
		close(t.wake)
		t.notify()
	}
}

// add appends the changes of a page and wakes the watchers. start is the revision after which the page begins. If
// another read has already added these changes, add does nothing. If the changes in memory exceed liveBytes, it drops
// the oldest ones.
func (t *topic) add(start uint64, page *Page) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen != start {
		return
	}
	t.seen = page.Seen
	if len(page.Changes) == 0 || t.end != nil {
		return
	}
	for i := range page.Changes {
		t.bytes += size(&page.Changes[i])
	}
	t.changes = append(t.changes, page.Changes...)
	drop := 0
	for ; t.bytes > liveBytes && drop < len(t.changes); drop++ {
		t.bytes -= size(&t.changes[drop])
		t.start = t.changes[drop].Revision
	}
	if drop > 0 {
		t.changes = slices.Clone(t.changes[drop:]) // readers may still use the old array
	}
	t.shared = nil
	close(t.wake)
	t.wake = make(chan struct{})
	t.notify()
}

// take returns the changes in memory after the given revision, up to about maxBytes bytes. The caller then has all
// changes up to the revision seen. The channel wake is closed when there may be more changes.
//
// The result known is false if the topic has ended, or if changes after the given revision are no longer in memory.
func (t *topic) take(revision uint64, maxBytes int) (part []state.Change, seen uint64, known bool, wake <-chan struct{},
	err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end != nil || revision < t.start {
		return nil, revision, false, t.wake, t.end
	}
	from, _ := slices.BinarySearchFunc(t.changes, revision+1, func(c state.Change, r uint64) int {
		switch {
		case c.Revision < r:
			return -1
		case c.Revision > r:
			return 1
		}
		return 0
	})
	to := from
	for ; to < len(t.changes) && (to == from || maxBytes > 0); to++ {
		maxBytes -= size(&t.changes[to])
	}
	seen = max(t.seen, revision)
	if to < len(t.changes) {
		seen = t.changes[to-1].Revision
	}
	return t.changes[from:to:to], seen, true, t.wake, nil
}
