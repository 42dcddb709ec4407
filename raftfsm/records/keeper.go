package records

import (
	"context"
	"sync"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Group is what a keeper of records uses of its Raft group. A keeper works while its server leads the group. Group is
// safe for concurrent use.
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

// Updates runs the update function of a keeper in the background, whenever an update was requested. After the last
// request, the function is called at least once more. It is never called twice at the same time. Request does not
// wait for an update, so the caller may hold a lock that the update needs. Before Start and after Stop, requests are
// ignored. Updates is safe for concurrent use.
type Updates struct {
	mu      sync.Mutex
	start   func(func()) // nil until Start and after Stop
	update  func()
	running bool // a goroutine calls update
	again   bool // an update was requested since the last call of update began
}

// Start sets the function update, which executes requests, and makes the first request itself. The function start must
// run its argument on a new goroutine. The keeper must wait for this goroutine when the keeper closes.
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

// Request requests an update that begins after this call. An update that is already running does not count.
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

// take reports whether another update was requested, and clears the request. If the result is false, the goroutine
// must end, because the next request starts a new one.
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
