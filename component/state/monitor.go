package state

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Pinger is implemented by stores whose data is in an external server.
type Pinger interface {
	// Ping returns nil if the server answers and accepts writes. It is called by one goroutine at a time.
	Ping(ctx context.Context) error
	// PingInterval returns the time between two pings while the server answers. 0 = ping only after a failed call,
	// for servers where each request costs money.
	PingInterval() time.Duration
}

const (
	pingTimeout = 5 * time.Second
	pingDown    = time.Second // time between two pings while the server does not answer
)

// MonitorOptions are the settings of a Monitor.
type MonitorOptions struct {
	Name    string       // name of the store
	Logger  *slog.Logger // adds the name of the store to each message
	Metrics *Metrics     // nil = none
}

// Monitor records whether the external server of a store can be reached. A store without an external server has a nil
// *Monitor, for which Down always returns false. A Monitor is safe for concurrent use.
type Monitor struct {
	o     MonitorOptions
	below Pinger

	suspect chan struct{} // a call has failed: ping now
	stop    context.CancelFunc
	ended   sync.WaitGroup

	mu    sync.Mutex
	since time.Time // zero = the server answers
	err   error
}

// Monitored wraps a store whose data is in an external server. It returns the wrapper, and a Monitor that pings the
// server until Close. If store does not implement Pinger, Monitored returns store itself and a nil Monitor.
//
// If an operation fails with fault.Unavailable, the wrapper replaces the error with one that IsOutside recognises.
// While the server is down, the text of this error also contains the time at which the server failed.
func Monitored(store Store, o MonitorOptions) (Store, *Monitor) {
	p, ok := store.(Pinger)
	if !ok {
		return store, nil
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &Monitor{o: o, below: p, suspect: make(chan struct{}, 1), stop: stop}
	o.Metrics.monitored(o.Name, 1)
	m.gauge(1)
	m.ended.Go(func() { m.run(ctx) })
	below := AbilitiesOf(store)
	return wrap(&monitored{Store: store, below: below, monitor: m}, below), m
}

// Close stops the pings and waits for the goroutine. It does nothing for a nil Monitor.
func (m *Monitor) Close() {
	if m == nil {
		return
	}
	m.stop()
	m.ended.Wait()
	m.o.Metrics.monitored(m.o.Name, -1)
}

// Down reports whether the server is down. If it is down, reason contains the time of the failure, the cause, and how
// to fix it.
func (m *Monitor) Down() (reason string, down bool) {
	since, err := m.state()
	if err == nil {
		return "", false
	}
	return downSince(since, err) + ": " + fault.Text(err), true
}

func downSince(since time.Time, err error) string {
	what := "has refused this node"
	if fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Timeout) {
		what = "has been unreachable"
	}
	return "its server " + what + " since " + since.UTC().Format(time.RFC3339)
}

func (m *Monitor) state() (since time.Time, err error) {
	if m == nil {
		return time.Time{}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.since, m.err
}

// run pings the server until ctx ends.
func (m *Monitor) run(ctx context.Context) {
	var last time.Time // time of the last check
	for {
		var due <-chan time.Time
		interval := m.below.PingInterval()
		if _, err := m.state(); err != nil {
			interval = pingDown
		}
		var timer *time.Timer
		if interval > 0 {
			timer = time.NewTimer(interval)
			due = timer.C
		}
		suspect := m.suspect
		if interval == pingDown {
			suspect = nil // the next ping is due soon
		}
		select {
		case <-ctx.Done():
		case <-due:
		case <-suspect:
		}
		if timer != nil {
			timer.Stop()
		}
		// Calls that fail while pings succeed must not cause a ping each.
		if rest := time.Until(last.Add(pingDown)); rest > 0 && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(rest):
			}
		}
		if ctx.Err() != nil {
			return
		}
		m.check(ctx)
		last = time.Now()
	}
}

// check pings the server and records the result. After a failed ping it pings once more, because the first one may
// have used a closed connection. It records nothing if ctx has ended or the server is overloaded.
func (m *Monitor) check(ctx context.Context) {
	begun := time.Now()
	var err error
	for range 2 {
		bounded, cancel := context.WithTimeout(ctx, pingTimeout)
		err = m.below.Ping(bounded)
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil || fault.Is(err, fault.Overloaded) { // an overloaded server is not down
		return
	}
	m.note(begun, err)
}

// note records err, the result of a check that began at the time begun.
func (m *Monitor) note(begun time.Time, err error) {
	m.mu.Lock()
	since, before := m.since, m.err
	m.err = err
	switch {
	case err == nil:
		m.since = time.Time{}
	case before == nil:
		m.since = begun
	}
	m.mu.Unlock()
	switch {
	case err != nil && before == nil:
		m.gauge(0)
		m.o.Logger.Warn("the server of the state store does not answer", "error", fault.Text(err))
	case err == nil && before != nil:
		m.gauge(1)
		m.o.Logger.Info("the server of the state store answers again",
			"after", time.Since(since).Round(time.Millisecond))
	}
}

func (m *Monitor) gauge(value float64) {
	if m.o.Metrics != nil {
		m.o.Metrics.up.WithLabelValues(m.o.Name).Set(value)
	}
}

// outsideError wraps an error that came from the external server of a store.
type outsideError struct{ err error }

// Error implements error.
func (e outsideError) Error() string { return fault.Text(e.err) }

// Unwrap returns the error of the store.
func (e outsideError) Unwrap() error { return e.err }

// IsOutside reports whether err is an error with the code fault.Unavailable from the external server of a store. It
// returns false for errors of this cluster's replicated store.
func IsOutside(err error) bool { return errors.As(err, new(outsideError)) }

// onError returns the error that the caller of the wrapper gets for the error of an operation. It replaces
// fault.Unavailable by an error that IsOutside recognises. While the server is down, this error also contains the time
// at which the server failed. All other errors stay unchanged.
//
// If the server may have caused the error, onError also requests a ping.
func (m *Monitor) onError(err error) error {
	switch fault.CodeOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Indeterminate, fault.Denied:
	default:
		return err
	}
	select {
	case m.suspect <- struct{}{}:
	default:
	}
	if !fault.Is(err, fault.Unavailable) {
		return err
	}
	out := &fault.Error{Code: fault.Unavailable, Op: "state.Monitored", Key: fault.KeyOf(err), Err: outsideError{err}}
	if since, down := m.state(); down != nil {
		out.Msg = downSince(since, down)
	}
	return out
}

// monitored passes the errors of a store to its monitor.
type monitored struct {
	Store
	below   Abilities
	monitor *Monitor
}

// Get implements Store.
func (s *monitored) Get(ctx context.Context, r GetRequest) (Item, error) {
	item, err := s.Store.Get(ctx, r)
	return item, s.monitor.onError(err)
}

// Set implements Store.
func (s *monitored) Set(ctx context.Context, r SetRequest) (Written, error) {
	w, err := s.Store.Set(ctx, r)
	return w, s.monitor.onError(err)
}

// Delete implements Store.
func (s *monitored) Delete(ctx context.Context, r DeleteRequest) (Written, error) {
	w, err := s.Store.Delete(ctx, r)
	return w, s.monitor.onError(err)
}

// Transact implements Transactor.
func (s *monitored) Transact(ctx context.Context, r TransactRequest) (Written, error) {
	w, err := s.below.Transactor.Transact(ctx, r)
	return w, s.monitor.onError(err)
}

// BulkGet implements BulkGetter.
func (s *monitored) BulkGet(ctx context.Context, r BulkGetRequest) ([]Item, error) {
	items, err := s.below.BulkGetter.BulkGet(ctx, r)
	return items, s.monitor.onError(err)
}

// List implements Lister.
func (s *monitored) List(ctx context.Context, r ListRequest) (Page, error) {
	page, err := s.below.Lister.List(ctx, r)
	return page, s.monitor.onError(err)
}

// Watch implements Watcher.
func (s *monitored) Watch(ctx context.Context, r WatchRequest) (Watch, error) {
	w, err := s.below.Watcher.Watch(ctx, r)
	return w, s.monitor.onError(err)
}

// Features implements Featurer.
func (s *monitored) Features() []Feature { return s.below.Featurer.Features() }
