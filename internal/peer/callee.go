package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// callee is the end of a connection where calls arrive.
type callee struct {
	*mux
	port   *Port
	from   Peer
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	// Guarded by mux.mu.
	gates   map[*method]*gate
	load    int // streams that hold memory or a goroutine
	leaving bool
	retired bool // leaving, but it is for the caller to end the connection
}

// gate lets so many calls of a method in at a time.
type gate struct {
	free    int
	waiting []*stream
}

// task is a call at the callee.
type task struct {
	method  *method
	begun   time.Time
	ctx     context.Context
	cancel  context.CancelFunc
	opening []byte // payload of the opening of a stream
	size    int    // bytes of the request
	owner   bool   // it has passed the gate
	running bool   // its handler runs
	over    bool   // what it answers is known
	freed   bool
}

// serveCalls serves a connection of calls until it ends.
func (p *Port) serveCalls(c *conn, h hello) {
	s := &callee{port: p, from: Peer{Identity: Identity{Server: h.From, Cluster: h.Cluster, Epoch: h.Epoch}, Caller: c.caller}, gates: map[*method]*gate{}}
	if t, ok := c.Conn.(*tls.Conn); ok {
		state := t.ConnectionState()
		s.from.TLS = &state
	}
	s.mux = newMux(c, s, p.opts.Timing)
	s.ctx, s.cancel = context.WithCancel(p.ctx)
	defer s.cancel()
	if !p.enlist(s) {
		_ = c.Close()
		return
	}
	s.run()
	s.cancel()
	s.tasks.Wait()
	p.delist(s)
	if fault.Is(s.err, fault.Corrupt) && p.quiet.allows(ReasonMalformed, h.From) {
		p.opts.Logger.Warn("peer connection closed", "server", h.From, "error", fault.Text(s.err))
	}
}

func (p *Port) enlist(s *callee) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == portClosed {
		return false
	}
	p.servers[s] = struct{}{}
	return true
}

func (p *Port) delist(s *callee) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.servers, s)
}

// drain lets connections send the answers that are ready, for as long as limit, and ends them.
func drain(servers []*callee, limit time.Duration) {
	for _, s := range servers {
		s.leave()
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	for _, s := range servers {
		select {
		case <-s.done:
		case <-t.C:
			t.Reset(0) // the others have no time left either
		}
		s.fail(errPortClosed("peer.Close"))
	}
}

// leave takes nothing new, tells the caller so, and ends the context of every handler.
func (c *callee) leave() {
	c.cancel()
	c.mu.Lock()
	c.leaving, c.retired, c.goAway = true, false, true
	for _, s := range c.streams {
		if t := s.task; !t.running && !t.over {
			c.answer(s, t.method, nil, errStopping(c.conn.self.Server))
		}
	}
	c.mu.Unlock()
	c.rouse()
}

// over is role.
func (c *callee) over() error {
	if c.leaving && !c.retired && c.load == 0 {
		return errPortClosed("peer.Close")
	}
	return nil
}

// take is role.
func (c *callee) take(f frame, body []byte) error {
	if f.kind == frameOpen {
		return c.open(f, body)
	}
	s := c.streams[f.stream]
	switch {
	case s == nil && f.stream > c.last && !c.leaving:
		return errProtocol("stream %d was never opened", f.stream)
	case s == nil:
		return nil // refused or given up meanwhile
	case f.kind == frameData && s.task.over:
		return nil
	case f.kind == frameData:
		if err := s.receive(body, f.fin()); err != nil {
			return err
		}
		c.proceed(s)
	case f.kind == frameReset:
		c.lost(s)
	default:
		return errProtocol("a frame of type %d goes from callee to caller", f.kind)
	}
	return nil
}

// open begins a call.
func (c *callee) open(f frame, body []byte) error {
	o, payload, err := decodeOpening(body)
	switch {
	case err != nil:
		return err
	case c.leaving:
		return nil // the caller is told which streams were taken
	case f.stream <= c.last:
		return errProtocol("stream %d was opened after %d", f.stream, c.last)
	case c.load >= 2*maxInFlight:
		return errProtocol("%d calls are under way, and their refusals are not read", c.load)
	}
	s := &stream{mux: c.mux, id: f.stream, task: &task{begun: time.Now(), size: o.size}}
	s.in.credit, s.out.window = firstRequest, firstAnswer
	c.last = f.stream
	c.streams[s.id] = s
	c.load++
	m, refused := c.admit(o, f.flags&flagStream != 0, len(payload))
	if refused != nil {
		c.metrics(m).begin()
		c.answer(s, m, nil, refused)
		return nil
	}
	s.task.method, s.task.begun = m, m.meter.begin()
	s.task.ctx, s.task.cancel = deadline(c.ctx, o.timeout)
	if err := s.accept(o, payload, f); err != nil {
		return err
	}
	c.enter(s)
	return nil
}

func (c *callee) metrics(m *method) *meter {
	if m != nil {
		return m.meter
	}
	return c.port.metrics.meter(calledSide, otherMethod)
}

func deadline(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout > 0 {
		return context.WithTimeout(ctx, timeout)
	}
	return context.WithCancel(ctx)
}

// accept takes the payload of the opening.
func (s *stream) accept(o opening, payload []byte, f frame) error {
	switch {
	case f.flags&flagStream != 0:
		s.in.size, s.task.opening, s.task.size = -1, payload, len(payload)
		s.changed = sync.NewCond(&s.mux.mu)
		if f.fin() {
			s.in.fin, s.in.err = true, io.EOF
		}
		return nil
	case f.fin() && len(payload) == o.size && o.size <= firstRequest:
		s.in.size, s.in.buf, s.in.fin = o.size, payload, true
		return nil
	}
	s.in.size = o.size
	return s.receive(payload, f.fin())
}

// admit finds the method of a call, or says why it is refused.
func (c *callee) admit(o opening, stream bool, first int) (*method, error) {
	m := c.port.methods[o.method] // fixed since Open
	size := o.size
	if stream {
		size = first
	}
	switch {
	case m == nil || (m.HandleStream != nil) != stream:
		return nil, &fault.Error{Code: fault.Unimplemented, Op: "peer.Call", Msg: fmt.Sprintf("server %q has no method %q", c.conn.self.Server, o.method),
			Hint: "it may run an older version"}
	case c.conn.kind == kindJoin && !m.Join:
		return m, fault.New(fault.Denied, "peer.Call", fmt.Sprintf("method %q is for members of the cluster", o.method))
	case size > m.MaxRequest:
		return m, fault.New(fault.TooLarge, "peer.Call", fmt.Sprintf("a request to method %q has at most %d bytes, this one %d", o.method, m.MaxRequest, size))
	case c.load > maxInFlight:
		return m, fault.New(fault.Unavailable, "peer.Call", fmt.Sprintf("server %q has %d calls of this connection under way", c.conn.self.Server, maxInFlight))
	}
	return m, nil
}

// enter passes the gate, or waits at it.
func (c *callee) enter(s *stream) {
	g := c.gates[s.task.method]
	if g == nil {
		g = &gate{free: s.task.method.Concurrency}
		c.gates[s.task.method] = g
	}
	if g.free == 0 {
		g.waiting = append(g.waiting, s)
		return
	}
	g.free--
	c.pass(s)
}

// pass lets a call through the gate: now it may send its whole request.
func (c *callee) pass(s *stream) {
	s.task.owner = true
	if s.in.target = fullWindow; s.in.size < 0 {
		s.in.target = streamWindow
	}
	s.regrant()
	c.proceed(s)
}

// answer sends what a handler returned, or why none ran.
func (c *callee) answer(s *stream, m *method, answer []byte, err error) {
	c.metrics(m).end(s.task.begun, s.task.size, len(answer), err)
	s.task.over, s.in.buf = true, nil
	if c.err != nil || s.gone {
		c.free(s)
		return
	}
	o := &s.out
	switch o.fin = true; {
	case err != nil:
		o.first, o.head, o.rest = frameFail, encodeFault(err), nil
	case m.Handle != nil:
		o.first, o.head, o.rest = frameAnswer, encodeSize(len(answer)), answer
	}
	c.queue(s)
}

// sent is role: the call is over.
func (c *callee) sent(s *stream) { c.free(s) }

// lost is role: nobody waits for the answer any more.
func (c *callee) lost(s *stream) {
	delete(c.streams, s.id)
	s.finish(errGone())
	if s.task.cancel != nil {
		s.task.cancel()
	}
	if !s.task.running {
		c.free(s)
	}
}

func errGone() error { return fault.New(fault.Timeout, "peer.Call", "the caller is gone") }

// free gives back what a call holds, and lets the next one in.
func (c *callee) free(s *stream) {
	t := s.task
	if t.freed {
		return
	}
	t.freed = true
	if !t.over {
		t.over = true
		t.method.meter.end(t.begun, t.size, 0, errGone())
	}
	c.load--
	delete(c.streams, s.id)
	c.turns.remove(s)
	s.in.buf, s.out.rest, s.out.head = nil, nil, nil
	if t.cancel != nil {
		t.cancel()
	}
	if c.leaving {
		c.rouse()
	}
	g := c.gates[t.method]
	switch {
	case g == nil:
	case !t.owner:
		g.waiting = slices.DeleteFunc(g.waiting, func(w *stream) bool { return w == s })
	case len(g.waiting) == 0:
		g.free++
	default:
		next := g.waiting[0]
		g.waiting = slices.Delete(g.waiting, 0, 1)
		c.pass(next)
	}
}
