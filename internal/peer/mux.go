package peer

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// batch is the approximate size in bytes of one write to the network.
const batch = 64 << 10

// mux carries many streams over one connection. It runs on both sides of the connection, and role handles what differs
// between caller and callee. Streams take turns to send: each sends one chunk per turn. A mux has three goroutines: a
// reader, a writer and a watcher.
type mux struct {
	conn   *conn
	role   role
	timing Timing
	wake   chan struct{} // there may be data to send
	done   chan struct{} // closed by fail
	heard  atomic.Uint64 // successful reads
	spoken atomic.Uint64 // successful writes

	mu      sync.Mutex // guards what follows, and every stream
	streams map[uint64]*stream
	turns   turns
	ping    bool // a ping is to be sent
	pong    bool // a pong is to be sent
	goAway  bool // a go-away frame is to be sent
	last    uint64
	err     error // why the connection ended
}

// role is the side of a connection: caller or callee. Its methods are called with mux.mu held.
type role interface {
	take(f frame, body []byte) error // handles a frame of a stream
	sent(s *stream)                  // is called when the last byte of s was written
	lost(s *stream)                  // is called for each stream when the connection has ended
	over() error                     // returns why the connection is no longer needed, or nil
}

func newMux(c *conn, r role, t Timing) *mux {
	return &mux{conn: c, role: r, timing: t, wake: make(chan struct{}, 1), done: make(chan struct{}),
		streams: map[uint64]*stream{}}
}

// turns is a queue of streams, linked through the streams themselves.
type turns struct{ first, last *stream }

func (t *turns) push(s *stream) {
	s.queued, s.prev = true, t.last
	if t.last == nil {
		t.first = s
	} else {
		t.last.next = s
	}
	t.last = s
}

func (t *turns) pop() *stream {
	s := t.first
	if s != nil {
		t.remove(s)
	}
	return s
}

// remove removes s from the queue, if s is in the queue. If an ended stream were not removed, it would stay in memory
// until its next turn.
func (t *turns) remove(s *stream) {
	if !s.queued {
		return
	}
	if s.prev == nil {
		t.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		t.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.queued, s.prev, s.next = false, nil, nil
}

// queue gives s a turn if it has data to send. The caller holds mu.
func (m *mux) queue(s *stream) {
	if s.queued || m.err != nil || !s.ready() {
		return
	}
	m.turns.push(s)
	m.rouse()
}

func (m *mux) rouse() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run reads and writes frames. It returns when the connection and all goroutines of the mux have ended.
func (m *mux) run() {
	var wg sync.WaitGroup
	wg.Go(m.write)
	wg.Go(m.watch)
	m.fail(m.read())
	wg.Wait()
}

// fail ends the connection. If it is called several times, the first error is kept.
func (m *mux) fail(err error) { m.failIf(err, func() bool { return true }) }

// failIf ends the connection with err, if it is open and the given function returns true. The function is called with
// mu held.
func (m *mux) failIf(err error, still func() bool) {
	m.mu.Lock()
	if m.err != nil || !still() {
		m.mu.Unlock()
		return
	}
	m.err = err
	for _, s := range m.streams {
		m.role.lost(s)
	}
	m.mu.Unlock()
	close(m.done)
	_ = m.conn.Close() // the reads of both ends fail now
}

// write sends queued frames in batches until the connection ends.
func (m *mux) write() {
	buf := make([]byte, 0, batch+2*chunk)
	for {
		buf = m.gather(buf[:0])
		if len(buf) == 0 {
			select {
			case <-m.wake:
				runtime.Gosched() // lets other goroutines add to this batch
				continue
			case <-m.done:
				return
			}
		}
		if _, err := m.conn.Write(buf); err != nil {
			m.fail(err)
			return
		}
		m.spoken.Add(1)
	}
}

// gather appends the next frames to b, up to about one batch. It copies the payloads, because a caller may reuse its
// payload as soon as its call has returned.
func (m *mux) gather(b []byte) []byte {
	m.mu.Lock()
	if m.err != nil {
		m.mu.Unlock()
		return b
	}
	b = m.about(b)
	for len(b) < batch {
		s := m.turns.pop()
		if s == nil {
			break
		}
		before := s.out.sent
		b = s.emit(b)
		if s.ready() {
			m.turns.push(s)
		} else if s.out.sent && !before {
			m.role.sent(s)
		}
	}
	over := error(nil)
	if len(b) == 0 {
		over = m.role.over()
	}
	m.mu.Unlock()
	if over != nil {
		m.fail(over)
	}
	return b
}

// about appends the frames about the connection itself: ping, pong and go-away.
func (m *mux) about(b []byte) []byte {
	if m.pong {
		b = appendFrame(b, framePong, 0, 0)
	}
	if m.ping {
		b = appendFrame(b, framePing, 0, 0)
	}
	if m.goAway {
		b = appendFrame(b, frameGoAway, 0, m.last)
	}
	m.ping, m.pong, m.goAway = false, false, false
	return b
}

// hearing counts reads that returned data.
type hearing struct {
	net.Conn
	count *atomic.Uint64
}

func (h hearing) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if n > 0 {
		h.count.Add(1)
	}
	return n, err
}

// read reads frames until the connection ends.
func (m *mux) read() error {
	r := bufio.NewReaderSize(hearing{m.conn.Conn, &m.heard}, batch)
	var head [frameHead]byte
	scratch := make([]byte, chunk)
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		f, err := decodeFrame(&head)
		if err != nil {
			return err
		}
		body := scratch
		if f.kind == frameOpen || f.kind == frameAnswer {
			body = make([]byte, f.length) // not reused, because its payload is kept
		}
		if _, err := io.ReadFull(r, body[:f.length]); err != nil {
			return err
		}
		if err := m.dispatch(f, body[:f.length]); err != nil {
			return err
		}
	}
}

func (m *mux) dispatch(f frame, body []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	switch f.kind {
	case framePing:
		m.pong = true
		m.rouse()
	case framePong:
	case frameWindow:
		return m.widen(f.stream, body)
	default:
		return m.role.take(f, body)
	}
	return nil
}

func (m *mux) widen(id uint64, body []byte) error {
	s := m.streams[id]
	if s == nil {
		return nil // the stream has ended meanwhile
	}
	d := decoder{b: append([]byte{0, 0, 0, 0}, body...)}
	more := d.uint64()
	if more > fullWindow || s.out.window > fullWindow {
		return errProtocol("a window of %d bytes and %d more", s.out.window, more)
	}
	s.out.window += int(more)
	m.queue(s)
	return nil
}

// watch closes the connection if nothing arrives for Timing.Dead. A working connection is never silent for that long,
// because the caller sends something at least every Timing.Ping, and the callee answers pings. watch counts ticks
// instead of reading the clock, so that a process that was paused keeps its connections.
func (m *mux) watch() {
	tick := time.NewTicker(m.timing.Ping)
	defer tick.Stop()
	var heard, spoken uint64
	silent, idle := time.Duration(0), time.Duration(0)
	for {
		select {
		case <-tick.C:
		case <-m.done:
			return
		}
		silent += m.timing.Ping
		if h := m.heard.Load(); h != heard {
			heard, silent = h, 0
		}
		if silent >= m.timing.Dead {
			m.fail(errSilent(m.conn.server, silent))
			return
		}
		s := m.spoken.Load()
		if m.conn.direction == Outbound {
			idle = m.tick(silent > 0 || s == spoken, idle)
		}
		spoken = s
	}
}

func errSilent(server string, silent time.Duration) error {
	return fault.New(fault.Unavailable, "peer.watch",
		fmt.Sprintf("server %q has not been heard for %s", server, silent))
}

// tick runs every Timing.Ping on the caller's side of a connection. It sends a ping if ping is true. It closes the
// connection after Timing.Idle without calls. idle is the time without calls so far, and tick returns its new value.
func (m *mux) tick(ping bool, idle time.Duration) time.Duration {
	m.mu.Lock()
	if idle += m.timing.Ping; m.busy() {
		idle = 0
	}
	if m.ping = m.ping || ping; ping {
		m.rouse()
	}
	m.mu.Unlock()
	if idle >= m.timing.Idle {
		m.failIf(errIdle(), func() bool { return !m.busy() })
	}
	return idle
}

// busy reports whether a call is in progress. The caller holds mu.
func (m *mux) busy() bool { return len(m.streams) > 0 }

func errIdle() error {
	return fault.New(fault.Unavailable, "peer.watch", "the connection was not in use")
}
