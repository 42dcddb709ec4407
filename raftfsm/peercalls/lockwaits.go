package peercalls

import (
	"strconv"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// maxLockWaits is the maximum number of calls of this node that wait for locks at one other server. Such a call may
// last ten minutes. The limit leaves room for calls that wait for topics and workflows, because Peers.Wait has one
// limit for all waiting calls.
const maxLockWaits = 256

// lockWaits counts the calls that wait for locks. It is safe for concurrent use.
type lockWaits struct {
	mu    sync.Mutex
	calls map[raft.ServerID]int
}

// begin counts a call that waits for a lock at the given server. It returns fault.Overloaded if maxLockWaits calls of
// this node already wait at that server.
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
