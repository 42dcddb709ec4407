package feed

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/component/state"
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
	users  int // guarded by Hub.mu
	stop   context.CancelFunc

	mu      sync.Mutex
	changes []state.Change // sorted; never modified in place
	bytes   int
	start   uint64 // changes has every change after start up to seen
	seen    uint64
	wake    chan struct{} // closed when something below has changed
	end     error
}

// join returns the topic with the given name and counts one more user. If there is no such topic, join starts it at
// the newest revision of page.
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
	t := &topic{name: name, source: source, users: 1, stop: stop, start: page.Revision, seen: page.Revision,
		wake: make(chan struct{})}
	if h.topics == nil {
		h.topics = map[string]*topic{}
	}
	h.topics[name] = t
	id, restored := page.ID, page.Restored
	h.wg.Go(func() { t.run(ctx, id, restored) })
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
func (t *topic) run(ctx context.Context, id, restored uint64) {
	for ctx.Err() == nil {
		page, err := t.source.Read(ctx, t.position(), liveBytes)
		if err != nil {
			sleep(ctx, pause)
			continue
		}
		if end := endOf(&page, t.position(), id, restored); end != nil {
			t.finish(end)
			return
		}
		if page.Seen != 0 {
			t.add(&page)
		}
		if page.Seen == page.Revision || page.Seen == 0 {
			t.source.Wait(ctx, max(page.Seen, t.position()))
		}
	}
}

// extend keeps the history of the source enabled until ctx ends. It has its own goroutine, because Source.Extend waits
// if the group has no leader, and run must not wait.
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

// endOf returns nil if a watch can continue from a revision that it has reached, which is the parameter after.
// Otherwise it returns a *state.WatchEnd with the reason. The parameters id and restored are Page.ID and Page.Restored
// from the start of the watch. An id of 0 is not compared.
func endOf(page *Page, after, id, restored uint64) error {
	end := &state.WatchEnd{Reason: state.WatchCompacted, Oldest: page.Floor, Current: page.Revision}
	switch {
	case page.Restored > restored:
		end.Reason = state.WatchRestored
	case page.Kept && (id == 0 || page.ID == id) && after >= page.Floor:
		return nil
	}
	return end
}

func (t *topic) position() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}

// newest returns the revision of the newest change in memory. If there is none in memory, it returns the revision at
// which the topic started.
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
	}
}

// add appends changes, drops the oldest ones, and wakes the watchers.
func (t *topic) add(page *Page) {
	t.mu.Lock()
	defer t.mu.Unlock()
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
	close(t.wake)
	t.wake = make(chan struct{})
}

// take returns changes, from memory, to a caller that has seen all changes up to a revision, the parameter after. When
// the caller has handled them, it has seen all changes up to the revision in the result seen. The result known is false
// if the topic no longer has these changes in memory. The channel wake is closed when there may be more changes.
func (t *topic) take(after uint64, maxBytes int) (part []state.Change, seen uint64, known bool, wake <-chan struct{},
	err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end != nil || after < t.start {
		return nil, after, false, t.wake, t.end
	}
	from, _ := slices.BinarySearchFunc(t.changes, after+1, func(c state.Change, r uint64) int {
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
	seen = max(t.seen, after)
	if to < len(t.changes) {
		seen = t.changes[to-1].Revision
	}
	return t.changes[from:to:to], seen, true, t.wake, nil
}
