package peer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Client calls methods of other servers. It uses up to two connections to each server: one for requests of up to 64
// KiB, and one for longer requests. All methods are safe for concurrent use.
type Client struct {
	port *Port
	kind kind

	mu    sync.Mutex // guards links
	links map[string]*link
}

func newClient(p *Port, k kind) *Client {
	return &Client{port: p, kind: k, links: map[string]*link{}}
}

// maxTries is the maximum number of connections that a call tries. It tries the next one only if the previous one ended
// before the callee accepted the call. That can happen when one side has just closed or renewed the connection.
const maxTries = 3

const (
	laneSmall = iota
	laneLarge
	lanes
)

// link is a client's state for one server.
type link struct {
	server string
	slots  chan struct{} // one element for each Client.Call in flight
	waits  chan struct{} // one element for each Client.Wait in flight
	users  int           // guarded by Client.mu
	lanes  [lanes]lane
}

// lane is one connection, dialled on demand.
type lane struct {
	mu      sync.Mutex // guards what follows
	line    *line
	dialing *dialing
}

type dialing struct {
	done chan struct{}
	line *line
	err  error
}

// Call sends payload to a method of server and returns the answer. The caller owns the answer, and may reuse payload
// after Call has returned. The handler gets the deadline of ctx, and is cancelled when ctx ends. Errors of the handler
// keep their code, hint and key. The other errors are:
//
//	unavailable    the server could not be reached, or refused the request: not executed
//	timeout        ctx ended before the request was sent or the handler began: not executed
//	indeterminate  the request was sent, but no answer came: it may have been executed
//	too_large      request or answer exceed Limits.Message, or the method's own limits
//	unimplemented  the server has no such method
//	denied         the method may not be called by the client of Port.Join
//	invalid        the method's name is wrong
//	internal       the handler panicked
func (c *Client) Call(ctx context.Context, server, method string, payload []byte) ([]byte, error) {
	return c.measured(ctx, server, method, payload, func(l *link) chan struct{} { return l.slots })
}

// Wait does the same as Call. It is for methods whose handlers may wait for a long time. Limits.InFlight counts these
// calls separately, so that they never delay calls by Call.
func (c *Client) Wait(ctx context.Context, server, method string, payload []byte) ([]byte, error) {
	return c.measured(ctx, server, method, payload, func(l *link) chan struct{} { return l.waits })
}

func (c *Client) measured(ctx context.Context, server, method string, payload []byte,
	slots func(*link) chan struct{}) ([]byte, error) {
	m := c.port.metrics.meter(caller, method)
	begun := m.begin()
	answer, err := c.call(ctx, server, method, payload, slots)
	m.end(begun, len(payload), len(answer), err)
	return answer, err
}

func (c *Client) call(ctx context.Context, server, method string, payload []byte,
	slots func(*link) chan struct{}) ([]byte, error) {
	if err := c.check(method, len(payload), c.port.opts.Limits.Message); err != nil {
		return nil, err
	}
	l, err := c.enter(ctx, server, slots)
	if err != nil {
		return nil, err
	}
	defer c.leave(l, slots(l))
	lane := &l.lanes[laneSmall]
	if len(payload) > firstRequest {
		lane = &l.lanes[laneLarge]
	}
	for tries := 1; ; tries++ {
		line, err := c.line(ctx, l, lane)
		if err != nil {
			return nil, err
		}
		out := line.wait(ctx, line.begin(opening{method: method, timeout: remaining(ctx), size: len(payload)}, payload))
		if !out.again || tries == maxTries {
			return out.answer, out.err
		}
	}
}

func (c *Client) check(method string, size, limit int) error {
	switch {
	case method == "" || len(method) > maxMethod:
		return fault.New(fault.Invalid, "peer.Call",
			fmt.Sprintf("a method name has 1 to %d bytes: %q", maxMethod, method))
	case size > limit:
		return fault.New(fault.TooLarge, "peer.Call",
			fmt.Sprintf("a request to method %q has at most %d bytes, this one %d", method, limit, size))
	}
	return nil
}

// remaining returns the time until the deadline of ctx, but at least one millisecond. It returns 0 if ctx has no
// deadline.
func remaining(ctx context.Context) time.Duration {
	at, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(time.Until(at), time.Millisecond)
}

// enter waits for a slot for a call to server. It returns fault.Timeout if ctx ends first.
func (c *Client) enter(ctx context.Context, server string, slots func(*link) chan struct{}) (*link, error) {
	if ctx.Err() != nil {
		return nil, &fault.Error{Code: fault.Timeout, Op: "peer.Call", Err: context.Cause(ctx),
			Msg: fmt.Sprintf("the time for a call to server %q ended before the call began", server)}
	}
	l := c.use(server)
	select {
	case slots(l) <- struct{}{}:
		return l, nil
	case <-ctx.Done():
		c.unuse(l)
		return nil, &fault.Error{Code: fault.Timeout, Op: "peer.Call", Err: context.Cause(ctx),
			Msg: fmt.Sprintf("%d calls to server %q are under way, and none ended in time", cap(l.slots), server)}
	}
}

func (c *Client) leave(l *link, slots chan struct{}) {
	<-slots
	c.unuse(l)
}

func (c *Client) use(server string) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[server]
	if l == nil {
		n := c.port.opts.Limits.InFlight
		l = &link{server: server, slots: make(chan struct{}, n), waits: make(chan struct{}, n)}
		c.links[server] = l
	}
	l.users++
	return l
}

// unuse records that a call no longer uses l. It removes l if l has no other users and no connections.
func (c *Client) unuse(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.users--
	c.tidy(l)
}

func (c *Client) tidy(l *link) {
	if l.users == 0 && c.links[l.server] == l && !l.lanes[laneSmall].busy() && !l.lanes[laneLarge].busy() {
		delete(c.links, l.server)
	}
}

func (l *lane) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line != nil || l.dialing != nil
}

// line returns the connection of lane. If there is none that accepts calls, it dials one. Concurrent callers share one
// dial.
func (c *Client) line(ctx context.Context, l *link, lane *lane) (*line, error) {
	lane.mu.Lock()
	if lane.line != nil && lane.line.usable() {
		defer lane.mu.Unlock()
		return lane.line, nil
	}
	if lane.dialing == nil {
		if err := c.redial(l, lane); err != nil {
			lane.mu.Unlock()
			return nil, err
		}
	}
	d := lane.dialing
	lane.mu.Unlock()
	select {
	case <-d.done:
		return d.line, d.err
	case <-ctx.Done():
		return nil, &fault.Error{Code: fault.Timeout, Op: "peer.Call",
			Msg: fmt.Sprintf("server %q was not reached in time", l.server), Err: context.Cause(ctx)}
	}
}

// redial dials the server of l in the background, to get a new connection for lane. It returns fault.Unavailable if the
// server is in backoff after failed dials, or if the Port of this node is closed. The caller holds lane.mu.
func (c *Client) redial(l *link, lane *lane) error {
	if err := c.port.health.blocked(target{l.server, false}); err != nil {
		return err
	}
	d := &dialing{done: make(chan struct{})}
	if !c.port.spawn(func() { c.connect(l, lane, d) }) {
		return errPortClosed("peer.Call")
	}
	lane.dialing = d
	return nil
}

// connect makes the connection of a lane and runs it until it ends.
func (c *Client) connect(l *link, lane *lane, d *dialing) {
	conn, err := c.port.dial(c.port.ctx, l.server, c.kind, 0)
	if d.err = err; err == nil {
		d.line = newLine(conn, c.port.opts.Timing, c.port.opts.Limits.Message)
	}
	lane.set(d.line, nil)
	close(d.done)
	if err == nil {
		d.line.run()
		lane.set(nil, d.line)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tidy(l)
}

// set changes the line of a lane after a dial, or removes a line that has ended. After a dial, to is the new line, or
// nil if the dial failed, and ended is nil. After the end of a line, ended is this line, and to is nil.
func (l *lane) set(to, ended *line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ended == nil:
		l.line, l.dialing = to, nil
	case l.line == ended:
		l.line = nil
	}
}

// close ends every connection, so that the calls in progress return.
func (c *Client) close() {
	var lines []*line
	c.mu.Lock()
	for _, l := range c.links {
		for i := range l.lanes {
			if line := l.lanes[i].current(); line != nil {
				lines = append(lines, line)
			}
		}
	}
	c.mu.Unlock()
	for _, l := range lines {
		l.fail(errPortClosed("peer.Close"))
	}
}

func (l *lane) current() *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line
}
