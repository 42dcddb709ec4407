package records

import (
	"context"
	"sync"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Group is the interface through which a keeper uses its Raft group. A keeper maintains records, for example those of
// locks, while its server leads the group. A Group is safe for concurrent use.
type Group interface {
	// Leading reports whether this server leads and has applied an entry of its term.
	Leading() bool
	// Term returns the newest known term.
	Term() uint64
	// Now returns cluster time in Unix milliseconds.
	Now() uint64
	// Machine returns the state machine.
	Machine() *kv.Machine
	// Confirm waits until the state machine has every entry that was committed when Confirm was called. It returns an
	// error if this server does not lead.
	Confirm(ctx context.Context) error
	// Commit proposes a request, and returns its result when it is applied here.
	Commit(ctx context.Context, r *command.Request) (kv.Result, error)
}

// Updates runs the update function of a keeper in the background. After each request, the function is called at least
// once. Several requests may share a call, and calls never overlap. Request does not wait for the call, so its caller
// may hold a lock that the update function needs. Requests before Start and after Stop are ignored. Updates is safe for
// concurrent use.
type Updates struct {
	mu      sync.Mutex
	start   func(func()) // nil until Start and after Stop
	update  func()
	running bool // a goroutine calls update
	again   bool // an update was requested since the last call of update began
}

// Start makes the first request, and accepts more requests from then on. Each request leads to a call of update. start
// must run its argument on a new goroutine. The keeper must wait for these goroutines when it closes.
func (u *Updates) Start(start func(func()), update func()) {
	u.mu.Lock()
	u.start, u.update = start, update
	u.mu.Unlock()
	u.Request()
}

// Stop makes Updates ignore later requests. It does not wait for a running update.
func (u *Updates) Stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.start = nil
}

// Request requests an update. If an update is already running, another one follows, because the running one may have
// missed the newest change.
func (u *Updates) Request() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.start == nil {
		return
	}
	u.again = true
	if !u.running {
		u.running = true
		u.start(u.run)
	}
}

// Idle reports whether no update is running.
func (u *Updates) Idle() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.running
}

func (u *Updates) run() {
	for u.take() {
		u.update()
	}
}

// take reports whether the goroutine of run must call update again, and clears the request. If take returns false, that
// goroutine must end, because the next request starts a new goroutine.
func (u *Updates) take() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.again || u.start == nil {
		u.running = false
		return false
	}
	u.again = false
	return true
}
