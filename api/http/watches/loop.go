package watches

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Reasons for the end of a watch.
var (
	errPanic  = errors.New("panic")
	errUnread = errors.New("the client sends data after its request")
)

const (
	tickEvery   = 250 * time.Millisecond // interval of ticks
	maxEncoded  = 16                     // number of encoded parts that are kept for further watches
	maxUnread   = 64 << 10               // bytes that a client may send after its request
	clientParts = 8                      // a tick checks the connections of one in clientParts clients
)

// loop serves the watches of a listener over connections that were taken over from net/http. One goroutine serves all
// watches whose clients keep up with the changes. This goroutine runs only while there are watches, and its writes do
// not block. If several watches with the same format get the same changes, the goroutine encodes the changes only once.
//
// A watch has a goroutine of its own, and the phase phaseAlone, in these cases:
//
//   - The watch has just started.
//   - The client does not read the data fast enough.
//   - The watch reads older changes from the store.
//
// Only one goroutine uses a watch at a time.
type loop struct {
	life context.Context // ends when requests in progress are aborted
	log  *slog.Logger
	wake chan struct{} // wakes the loop after a change of a field below, or when life has ended; its capacity is 1

	mu      sync.Mutex
	all     map[*watchConn]struct{}
	ready   []*watchConn // with phase phaseQueued
	running bool
	closing bool // the server is closing, so the loop must check the connections of all clients

	// used by the goroutine of the loop only
	part    int // the part of the watches that the last tick has checked, below clientParts
	encoded map[encodedKey]encodedPart
	write   rawWrite
	read    rawRead
}

// watchConn is a watch and its connection.
type watchConn struct {
	Stream
	loop *loop
	conn *conn
	open *atomic.Int64      // requests in progress
	sent prometheus.Counter // bytes of the answer

	due    time.Time // time of the next bookmark; set by the goroutine that uses the watch
	number int       // decides which tick checks the connection of the client
	unread int       // bytes that the client has sent after its request; used by the goroutine of the loop

	// guarded by loop.mu
	phase   phase
	changed bool               // OnChange was called while phase is phasePolled
	cancel  context.CancelFunc // ends the goroutine in phaseAlone; nil in other phases
}

type phase uint8

const (
	phaseAlone  phase = iota // a goroutine of its own uses it
	phaseQueued              // in loop.ready
	phasePolled              // the loop is using it
	phaseIdle                // waits for changes
	phaseEnded
)

func newLoop(life context.Context, log *slog.Logger) *loop {
	l := &loop{life: life, log: log, wake: make(chan struct{}, 1), all: map[*watchConn]struct{}{}}
	l.write.call, l.read.call = l.write.write, l.read.read
	context.AfterFunc(life, l.signal)
	return l
}

// add starts to serve a watch.
func (l *loop) add(c *conn, s Stream, open *atomic.Int64, sent prometheus.Counter) {
	w := &watchConn{Stream: s, loop: l, conn: c, open: open, sent: sent}
	open.Add(1)
	w.Watch.OnChange(func() { l.notify(w) })
	l.mu.Lock()
	w.number = len(l.all)
	l.all[w] = struct{}{}
	if !l.running {
		l.running = true
		go l.run()
	}
	l.mu.Unlock()
	head := c.head
	c.head = nil
	l.alone(w, finishChunk(w.greet(beginChunk(head)), len(head)))
}

// notify makes the loop poll a watch. The caller holds locks of the watch, so notify must not call the watch.
func (l *loop) notify(w *watchConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch w.phase {
	case phaseIdle:
		l.enqueue(w)
	case phasePolled:
		w.changed = true
	case phaseAlone, phaseQueued, phaseEnded: // the watch is polled later anyway, or has ended
	}
}

// enqueue makes the loop poll w. The caller must hold l.mu.
func (l *loop) enqueue(w *watchConn) {
	w.phase = phaseQueued
	l.ready = append(l.ready, w)
	l.signal()
}

func (l *loop) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // the loop has not seen the previous signal yet
	}
}

// run is the goroutine of the loop. It polls watches until there are none.
func (l *loop) run() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for l.more() {
		select {
		case <-l.wake:
		case now := <-ticker.C:
			l.tick(now)
		}
		switch {
		case l.life.Err() != nil:
			l.abort()
		case l.isClosing():
			l.look(l.idle(func(*watchConn) bool { return true }))
		}
		for w := l.next(); w != nil; w = l.next() {
			l.guard(w, func() { l.poll(w) })
		}
		clear(l.encoded)
	}
}

// more reports whether there are watches. If there are none, the goroutine of the loop must end.
func (l *loop) more() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = len(l.all) > 0
	return l.running
}

func (l *loop) next() *watchConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ready) == 0 {
		l.ready = nil
		return nil
	}
	w := l.ready[0]
	l.ready[0] = nil
	l.ready = l.ready[1:]
	w.phase, w.changed = phasePolled, false
	return w
}

// guard calls step, and ends the watch if step panics.
func (l *loop) guard(w *watchConn, step func()) {
	defer func() {
		if cause := recover(); cause != nil {
			l.log.Error("a watch ended in a panic; please report it", "panic", fault.PanicText(cause), "stack",
				string(debug.Stack()))
			l.end(w, errPanic)
		}
	}()
	step()
}

// poll sends the pending changes of a watch. Afterwards, the watch is idle, has ended, or has a goroutine of its own.
func (l *loop) poll(w *watchConn) {
	for {
		raw, found, err := w.Watch.Poll()
		switch {
		case err != nil:
			l.last(w, err)
			return
		case found == state.WatchBehind:
			l.alone(w, nil)
			return
		case found == state.WatchIdle:
			if l.rest(w) {
				return
			}
			continue
		}
		p := l.encode(w, &raw)
		w.Watch.Count(p.events)
		w.due = time.Now().Add(w.Watch.Bookmark())
		n, err := l.write.try(w.conn.raw, p.bytes)
		w.sent.Add(float64(n))
		if err != nil {
			l.end(w, err)
			return
		}
		if n < len(p.bytes) {
			l.alone(w, p.bytes[n:])
			return
		}
	}
}

// rest makes a watch idle. It returns false if the watch must be polled again.
func (l *loop) rest(w *watchConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.changed {
		w.changed = false
		return false
	}
	w.phase = phaseIdle
	return true
}

// last tries to send the last object of the answer without waiting, and ends the watch.
func (l *loop) last(w *watchConn, err error) {
	b := append(finishChunk(w.appendEnd(beginChunk(nil), err), 0), lastChunk...)
	n, _ := l.write.try(w.conn.raw, b) // the client may have gone
	w.sent.Add(float64(n))
	_, _ = l.read.look(w.conn.raw) // with unread data, the kernel would reset the connection
	l.end(w, err)
}

// end ends a watch. Only the goroutine that uses the watch may call it.
func (l *loop) end(w *watchConn, err error) {
	l.mu.Lock()
	if w.phase == phaseEnded {
		l.mu.Unlock()
		return
	}
	w.phase = phaseEnded
	delete(l.all, w)
	l.signal() // w may have been the last watch
	l.mu.Unlock()
	w.Watch.Close(err)
	w.open.Add(-1)
	w.conn.end()
}

// alone gives a watch a goroutine of its own, which sends all changes that the client has not received yet. The bytes
// in rest are sent first.
func (l *loop) alone(w *watchConn, rest []byte) {
	ctx, cancel := context.WithCancel(l.life)
	l.mu.Lock()
	w.phase, w.cancel = phaseAlone, cancel
	l.mu.Unlock()
	go l.guard(w, func() {
		defer cancel()
		if err := l.catchUp(ctx, w, rest); err != nil {
			l.end(w, err)
		}
	})
}

// catchUp sends all changes that the client has not received yet, and then hands the watch back to the goroutine of the
// loop. The bytes in rest are sent first. After an error, the caller must end the watch.
func (l *loop) catchUp(ctx context.Context, w *watchConn, rest []byte) error {
	for {
		if len(rest) > 0 {
			n, err := w.conn.Write(rest)
			w.sent.Add(float64(n))
			if err != nil {
				return err
			}
		}
		part, found, err := w.Watch.Poll()
		switch {
		case err != nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case found == state.WatchIdle:
			w.due = time.Now().Add(w.Watch.Bookmark())
			w.Watch.Rest()
			if err := w.conn.SetWriteDeadline(time.Time{}); err != nil {
				return err
			}
			l.mu.Lock()
			w.cancel = nil
			l.enqueue(w)
			l.mu.Unlock()
			return nil
		case found == state.WatchBehind:
			part, err = w.Watch.CatchUp(ctx)
		default:
			part = w.Watch.Own(part)
			w.Watch.Count(len(part.Changes))
		}
		if err != nil {
			if ctx.Err() == nil {
				b := append(finishChunk(w.appendEnd(beginChunk(nil), err), 0), lastChunk...)
				_, _ = w.conn.Write(b) // the client may have gone
			}
			return err
		}
		rest = finishChunk(w.appendPart(beginChunk(nil), &part), 0)
	}
}

// tick requests bookmarks for the idle watches whose next bookmark is due. It also checks the connections of an eighth
// of all clients (see clientParts), and ends the watches whose clients have disconnected.
func (l *loop) tick(now time.Time) {
	l.part = (l.part + 1) % clientParts
	for _, w := range l.idle(func(w *watchConn) bool { return w.phase == phaseIdle && !now.Before(w.due) }) {
		w.Watch.Refresh()
	}
	l.look(l.idle(func(w *watchConn) bool { return w.number%clientParts == l.part }))
}

// closeSoon makes the loop check the connections of all clients at once, and again each time the loop wakes.
func (l *loop) closeSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	l.signal()
}

func (l *loop) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing
}

// idle returns the watches in phaseIdle or phaseAlone for which match returns true. Despite its name, it also returns
// watches with a goroutine of their own.
func (l *loop) idle(match func(*watchConn) bool) (list []*watchConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.all {
		if (w.phase == phaseIdle || w.phase == phaseAlone) && match(w) {
			list = append(list, w)
		}
	}
	return list
}

// look checks the connections of the watches in list. It ends a watch if its client has disconnected, or has sent more
// than maxUnread bytes after the request.
func (l *loop) look(list []*watchConn) {
	for _, w := range list {
		n, err := l.read.look(w.conn.raw)
		if w.unread += n; err == nil && w.unread > maxUnread {
			err = errUnread
		}
		if err != nil {
			l.gone(w, err)
		}
	}
}

// gone ends a watch whose client has disconnected or must be disconnected. err is the error of the connection, or
// errUnread if the client has sent too many bytes.
func (l *loop) gone(w *watchConn, err error) {
	l.mu.Lock()
	cancel, mine := w.cancel, w.phase == phaseIdle || w.phase == phaseQueued
	if mine {
		l.take(w)
	}
	l.mu.Unlock()
	if mine {
		if errors.Is(err, syscall.ETIMEDOUT) { // see limitUnacknowledged
			err = &state.WatchEnd{Reason: state.WatchSlow}
		} else {
			err = nil
		}
		l.end(w, err)
	} else if cancel != nil {
		cancel()
	}
}

// take reserves an idle or queued watch for the caller, so that the caller can end it. A queued watch leaves the queue.
// The caller must hold l.mu.
func (l *loop) take(w *watchConn) {
	if w.phase == phaseQueued {
		for i, q := range l.ready {
			if q == w {
				l.ready = append(l.ready[:i:i], l.ready[i+1:]...)
				break
			}
		}
	}
	w.phase = phasePolled
}

// abort ends all idle and queued watches. Watches with a goroutine of their own end with their contexts.
func (l *loop) abort() {
	l.mu.Lock()
	var mine []*watchConn
	for w := range l.all {
		if w.phase == phaseIdle || w.phase == phaseQueued {
			mine = append(mine, w)
			w.phase = phasePolled
		}
	}
	l.ready = nil
	l.mu.Unlock()
	for _, w := range mine {
		l.end(w, context.Canceled)
	}
}

// encodedKey identifies an encoded part. Parts with different bytes have different keys.
type encodedKey struct {
	scope          api.WatchScope
	first          *state.Change // first change of the part that Poll has returned; nil = a bookmark
	seen           uint64
	values, events bool
}

// encodedPart is a part as it is written to the connections of several watches.
type encodedPart struct {
	bytes  []byte
	events int
}

// encode encodes a part, which Poll has returned for w, as a chunk of the answer. Watches that get the same part in the
// same format share the encoded bytes.
func (l *loop) encode(w *watchConn, raw *state.WatchPart) encodedPart {
	k := encodedKey{scope: w.Watch.Scope(), seen: raw.Seen, values: w.Values, events: w.Events}
	if len(raw.Changes) > 0 {
		k.first = &raw.Changes[0]
	}
	p, ok := l.encoded[k]
	if !ok {
		part := w.Watch.Own(*raw)
		p = encodedPart{finishChunk(w.appendPart(beginChunk(nil), &part), 0), len(part.Changes)}
		if l.encoded == nil || len(l.encoded) == maxEncoded {
			l.encoded = map[encodedKey]encodedPart{}
		}
		l.encoded[k] = p
	}
	return p
}
