package peer

import (
	"context"
	"sync"
	"time"
)

// Stream is the caller's end of a stream. One goroutine may read while another writes.
type Stream struct {
	client *Client
	link   *link
	line   *line
	s      *stream
	meter  *meter
	begun  time.Time
	stop   func() bool // ends the watch over ctx
	once   sync.Once

	mu        sync.Mutex // guards the counts
	sent, got int
}

// Stream opens a stream to a method of server, with a payload of at most 32 KiB. ctx bounds
// the whole stream, not only its opening; its deadline and cancellation reach the handler.
// Close must be called. Errors are those of Call; a handler's error comes from Read, after
// what it wrote.
func (c *Client) Stream(ctx context.Context, server, method string, payload []byte) (*Stream, error) {
	m := c.port.metrics.meter(caller, method)
	out := &Stream{client: c, meter: m, begun: m.begin(), sent: len(payload)}
	if err := out.open(ctx, server, method, payload); err != nil {
		m.end(out.begun, len(payload), 0, err)
		return nil, err
	}
	out.stop = context.AfterFunc(ctx, func() { out.line.abandon(ctx, out.s) })
	return out, nil
}

func (t *Stream) open(ctx context.Context, server, method string, payload []byte) error {
	c := t.client
	if err := c.check(method, len(payload), chunk); err != nil {
		return err
	}
	l, err := c.enter(ctx, server)
	if err != nil {
		return err
	}
	line, err := c.line(ctx, l, &l.lanes[laneLarge])
	if err != nil {
		c.leave(l)
		return err
	}
	t.link, t.line = l, line
	t.s = line.begin(opening{method: method, timeout: remaining(ctx)}, payload, true)
	return nil
}

// Read reads what the handler writes. It returns io.EOF after the last byte of a handler
// that returned nil.
func (t *Stream) Read(p []byte) (int, error) {
	n, err := t.s.read(p)
	t.count(0, n)
	return n, err
}

// Write sends p to the handler. It returns when p was handed to the network.
func (t *Stream) Write(p []byte) (int, error) {
	n, err := t.s.write(p)
	t.count(n, 0)
	return n, err
}

func (t *Stream) count(sent, got int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent += sent
	t.got += got
}

// CloseWrite tells the handler that nothing more will be written: its reads end with io.EOF.
func (t *Stream) CloseWrite() error {
	t.s.closeWrite()
	return nil
}

// Close ends the stream. A handler that has not finished is told to give up. Idempotent.
func (t *Stream) Close() error {
	t.once.Do(func() {
		t.stop()
		t.line.abandon(context.Background(), t.s)
		t.client.leave(t.link)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.meter.end(t.begun, t.sent, t.got, t.outcome())
	})
	return nil
}

// outcome is how the stream ended: by its handler, or by whoever closed it before.
func (t *Stream) outcome() error {
	<-t.s.call.done
	return t.s.call.err
}
