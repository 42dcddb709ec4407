package peercalls

import (
	"strconv"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// maxLockWaits limits how many calls of this node wait for locks at one other server at the same time. Such a call may
// last ten minutes. Without this limit, such calls could use up the limit that Peers.Wait has for all waiting calls.
// Calls that wait for topics and workflows would then get no place.
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
