package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Peer is who calls, as checked when its connection was made.
type Peer struct {
	Identity
	TLS *tls.ConnectionState // nil without TLS
}

// Request is a call as its handler sees it.
type Request struct {
	From    Peer
	Payload []byte // belongs to the handler
}

// Handler answers a call. Its ctx ends at the caller's deadline, when the caller gives up
// or is lost, and when the port closes; it must return soon then. The answer must not be
// changed afterwards. An error travels with its code, hint and key.
type Handler func(ctx context.Context, r Request) ([]byte, error)

// StreamHandler serves a stream: rw is its body in both directions, r.Payload what came
// with the opening. The stream ends when the handler returns. One goroutine may read while
// another writes. Besides that as Handler.
type StreamHandler func(ctx context.Context, r Request, rw io.ReadWriter) error

// Method is something other nodes may call. The memory one connection can make this node
// hold for it is Concurrency times MaxRequest and MaxAnswer.
type Method struct {
	Name         string // 1 to 64 bytes
	Handle       Handler
	HandleStream StreamHandler // instead of Handle
	Concurrency  int           // handlers at a time for each connection; more wait. Default 256
	MaxRequest   int           // bytes; default Limits.Message. For a stream, of the payload of its opening
	MaxAnswer    int           // bytes; default Limits.Message
	Join         bool          // also callable by Port.Join, from and on servers without a cluster
}

const defaultConcurrency = 256

// method is a Method that was checked.
type method struct {
	Method
	meter *meter
}

func newMethod(m Method, limit int, all *metrics) (*method, error) {
	def(&m.Concurrency, defaultConcurrency)
	def(&m.MaxRequest, limit)
	def(&m.MaxAnswer, limit)
	switch {
	case m.Name == "" || len(m.Name) > maxMethod:
		return nil, fault.New(fault.Invalid, "peer.Handle", fmt.Sprintf("a method name has 1 to %d bytes: %q", maxMethod, m.Name))
	case (m.Handle == nil) == (m.HandleStream == nil):
		return nil, fault.New(fault.Invalid, "peer.Handle", "method "+m.Name+" needs one handler, for calls or for streams")
	case m.Concurrency < 1 || m.MaxRequest < 1 || m.MaxRequest > limit || m.MaxAnswer < 1 || m.MaxAnswer > limit:
		return nil, fault.New(fault.Invalid, "peer.Handle", fmt.Sprintf("the bounds of method %s must be from 1 to %d", m.Name, limit))
	}
	return &method{Method: m, meter: all.meter(calledSide, m.Name)}, nil
}

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
	s := &callee{port: p, from: Peer{Identity: Identity{Server: h.From, Cluster: h.Cluster, Epoch: h.Epoch}}, gates: map[*method]*gate{}}
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
	c.leaving, c.goAway = true, true
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
	if c.leaving && c.load == 0 {
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

// proceed starts the handler once the request is complete.
func (c *callee) proceed(s *stream) {
	if t := s.task; c.err == nil && t.owner && !t.running && !t.over && (s.in.fin || s.in.size < 0) {
		t.running = true
		c.tasks.Go(func() { c.handle(s) })
	}
}

func (c *callee) handle(s *stream) {
	answer, err := c.invoke(s)
	if err == nil && len(answer) > s.task.method.MaxAnswer {
		err = fault.New(fault.TooLarge, "peer.Call", fmt.Sprintf("the answer of method %q has %d bytes, the limit is %d", s.task.method.Name, len(answer), s.task.method.MaxAnswer))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.task.running = false
	c.answer(s, s.task.method, answer, err)
}

// invoke runs the handler. A handler that panics must not take down every node that the
// request is sent to.
func (c *callee) invoke(s *stream) (answer []byte, err error) {
	t := s.task
	defer func() {
		if v := recover(); v != nil {
			c.port.opts.Logger.Error("a peer handler panicked; this is a defect", "method", t.method.Name, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			answer, err = nil, fault.New(fault.Internal, "peer.Call", fmt.Sprintf("method %q failed by a defect; see the log of server %q", t.method.Name, c.conn.self.Server))
		}
	}()
	if err := c.tooLate(t); err != nil {
		return nil, err
	}
	if t.method.HandleStream != nil {
		stop := context.AfterFunc(t.ctx, func() { s.interrupt(t.ctx) })
		defer stop()
		return nil, t.method.HandleStream(t.ctx, Request{From: c.from, Payload: t.opening}, body{s})
	}
	return t.method.Handle(t.ctx, Request{From: c.from, Payload: s.in.buf})
}

// tooLate says why a call is not worth beginning.
func (c *callee) tooLate(t *task) error {
	switch {
	case c.ctx.Err() != nil:
		return errStopping(c.conn.self.Server)
	case t.ctx.Err() != nil:
		return fault.New(fault.Timeout, "peer.Call", fmt.Sprintf("the deadline passed before server %q could begin", c.conn.self.Server))
	}
	return nil
}

func errStopping(server string) error {
	return fault.New(fault.Unavailable, "peer.Call", fmt.Sprintf("server %q is stopping", server))
}

// body is the callee's end of a stream.
type body struct{ s *stream }

func (b body) Read(p []byte) (int, error)  { return b.s.read(p) }
func (b body) Write(p []byte) (int, error) { return b.s.write(p) }

// interrupt ends the reads and writes of a handler whose context has ended.
func (s *stream) interrupt(ctx context.Context) {
	s.mux.mu.Lock()
	defer s.mux.mu.Unlock()
	if s.in.err == nil || s.in.err == io.EOF {
		s.in.err = &fault.Error{Code: fault.Timeout, Op: "peer.Stream", Msg: "the caller is gone, or its deadline has passed", Err: context.Cause(ctx)}
	}
	s.in.buf, s.in.off, s.halted = nil, 0, true
	s.wakeUp()
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
