package http

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// deadline is a context that ends at a fixed time, or earlier with its parent. Unlike context.WithDeadline, it starts
// its timer at the first call of Done. A read from memory does not call Done, so it needs no timer.
type deadline struct {
	parent context.Context
	at     time.Time

	mu     sync.Mutex
	timed  context.Context // nil until Done is called
	cancel context.CancelFunc
}

// deadline returns a context for the service calls of a request. The context ends at the request timeout. The caller
// must call the method end of the context.
func (c *core) deadline(p *reply, r *http.Request) *deadline {
	return &deadline{parent: r.Context(), at: p.start.Add(c.timeout)}
}

// end releases the timer.
func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
}

func (d *deadline) Deadline() (time.Time, bool) {
	if at, ok := d.parent.Deadline(); ok && at.Before(d.at) {
		return at, true
	}
	return d.at, true
}

func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed == nil {
		d.timed, d.cancel = context.WithDeadline(d.parent, d.at)
	}
	return d.timed.Done()
}

func (d *deadline) Err() error {
	if timed := d.made(); timed != nil {
		return timed.Err()
	}
	if err := d.parent.Err(); err != nil {
		return err
	}
	if !time.Now().Before(d.at) {
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context. After the first call of Done, it delegates to the timed context instead of the
// parent. Package context then finds the timed context as the parent of derived contexts, and needs no goroutines for
// them.
func (d *deadline) Value(key any) any {
	if timed := d.made(); timed != nil {
		return timed.Value(key)
	}
	return d.parent.Value(key)
}

func (d *deadline) made() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.timed
}
