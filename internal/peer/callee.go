package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// callee is the serving end of a connection that carries calls.
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
	retired bool // leaving because of Renew: the caller closes the connection
}

// gate limits the concurrent calls of one method.
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
	size    int  // bytes of the request
	owner   bool // the task holds a slot of the gate
	running bool // the handler runs
	over    bool // the answer is known
	freed   bool
}

// serveCalls serves a connection of calls until it ends.
func (p *Port) serveCalls(c *conn, h hello) {
	s := &callee{port: p, from: Peer{Identity: Identity{Server: h.From, Cluster: h.Cluster, Epoch: h.Epoch},
		Caller: c.caller}, gates: map[*method]*gate{}}
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

// drain closes the given connections for calls when this node stops. It first refuses further calls, and waits until
// running handlers have returned and their answers have been sent. The parameter limit bounds the wait for all
// connections together.
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
			t.Reset(0) // the limit applies to all connections together
		}
		s.fail(errPortClosed("peer.Close"))
	}
}

// leave prepares a connection for its end, because this node is stopping. It cancels the contexts of running handlers,
// and refuses calls whose handler has not started. It sends the caller a go-away frame, so that the caller makes no new
// calls on this connection.
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

// over implements role.
func (c *callee) over() error {
	if c.leaving && !c.retired && c.load == 0 {
		return errPortClosed("peer.Close")
	}
	return nil
}

// take implements role.
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
		return nil // the go-away frame names the streams that were accepted
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
	m, refused := c.admit(o)
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

// accept stores the part of the request that the open frame contains.
func (s *stream) accept(o opening, payload []byte, f frame) error {
	switch {
	case f.fin() && len(payload) == o.size && o.size <= firstRequest:
		s.in.size, s.in.buf, s.in.fin = o.size, payload, true
		return nil
	}
	s.in.size = o.size
	return s.receive(payload, f.fin())
}

// admit returns the method of a call, or the error that refuses it.
func (c *callee) admit(o opening) (*method, error) {
	m := c.port.methods[o.method] // methods does not change after Open
	switch {
	case m == nil:
		return nil, &fault.Error{Code: fault.Unimplemented, Op: "peer.Call",
			Msg:  fmt.Sprintf("server %q has no method %q", c.conn.self.Server, o.method),
			Hint: "it may run an older version"}
	case c.conn.kind == kindJoin && !m.Join:
		return m, fault.New(fault.Denied, "peer.Call",
			fmt.Sprintf("method %q may be called only by members of the cluster", o.method))
	case o.size > m.MaxRequest:
		return m, fault.New(fault.TooLarge, "peer.Call",
			fmt.Sprintf("a request to method %q has at most %d bytes, this one %d", o.method, m.MaxRequest, o.size))
	case c.load > maxInFlight:
		return m, fault.New(fault.Unavailable, "peer.Call",
			fmt.Sprintf("server %q has %d calls of this connection under way", c.conn.self.Server, maxInFlight))
	}
	return m, nil
}

// enter gives a call a slot of the gate of its method. If no slot is free, enter queues the call.
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

// pass records that a call has a slot of its gate, and permits the caller to send the whole request.
func (c *callee) pass(s *stream) {
	s.task.owner = true
	s.in.target = fullWindow
	s.regrant()
	c.proceed(s)
}

// answer sends the result of a call to the caller: err if it is not nil, and otherwise the answer of the handler.
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
	default:
		o.first, o.head, o.rest = frameAnswer, encodeSize(len(answer)), answer
	}
	c.queue(s)
}

// sent implements role. It frees the call, because the whole result of the call has been sent.
func (c *callee) sent(s *stream) { c.free(s) }

// lost implements role. It cancels the handler of the call, because no caller waits for the answer any more.
func (c *callee) lost(s *stream) {
	delete(c.streams, s.id)
	s.gone = true
	if s.task.cancel != nil {
		s.task.cancel()
	}
	if !s.task.running {
		c.free(s)
	}
}

func errGone() error { return fault.New(fault.Timeout, "peer.Call", "the caller is gone") }

// free releases the resources of a call and starts the next call in the queue.
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
