package peercalls

import (
	"strconv"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// maxLockWaits limits the calls of this node that wait for locks at one other server. Each of them may last ten
// minutes. The server must handle them all at the same time, because a call that it does not handle has no place in
// the queue of the lock. Together with the calls of actors, they must stay below the number of calls that may be in
// progress at one server (peer.Limits.InFlight), so that they never block other calls.
const maxLockWaits = Concurrency

// lockWaits counts the calls that wait for locks. It is safe for concurrent use.
type lockWaits struct {
	mu    sync.Mutex
	calls map[raft.ServerID]int
}

// begin counts one more call to a server. It returns fault.Overloaded if maxLockWaits calls wait there already.
func (w *lockWaits) begin(server raft.ServerID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls[server] >= maxLockWaits {
		return &fault.Error{Code: fault.Overloaded, Op: "locks.Wait", Msg: strconv.Itoa(maxLockWaits) +
			" callers of this node wait for locks at the leader already", Hint: "wait for locks with fewer callers"}
	}
	w.calls[server]++
	return nil
}

func (w *lockWaits) end(server raft.ServerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls[server]--; w.calls[server] == 0 {
		delete(w.calls, server)
	}
}
