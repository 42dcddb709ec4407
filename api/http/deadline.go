package http

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// deadline is a context that ends with its parent or at an instant. It is what
// context.WithDeadline gives, but makes the timer only when somebody waits: a read that
// is served from memory asks for Err at most.
type deadline struct {
	parent context.Context
	at     time.Time

	mu     sync.Mutex
	timed  context.Context // nil until somebody waits
	cancel context.CancelFunc
}

// deadline gives the service calls of a request their time. The caller ends it.
func (f *Face) deadline(p *reply, r *http.Request) *deadline {
	return &deadline{parent: r.Context(), at: p.start.Add(f.timeout)}
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

// Value asks the timed context where there is one, so that contexts derived from this
// one find it and need no goroutine to follow it.
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
