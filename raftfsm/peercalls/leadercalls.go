package peercalls

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// leaderCalls tracks the calls to leaders that are in flight. A call to a former leader may hang. When this node learns
// of a new leader, leaderCalls cancels such calls, and the callers retry at the new leader. A retry is safe for these
// reasons:
//
//   - A read index changes nothing.
//   - A proposal has a request id, so it is applied only once.
//   - Registering an origin twice does no harm.
//   - records.Access.Ask reports to its caller whether an earlier attempt of the call may have been executed.
type leaderCalls struct {
	leaders Leaders

	mu   sync.Mutex
	open map[*leaderCall]struct{} // guarded by mu
}

type leaderCall struct {
	group uint32
	to    raft.ServerID
	since time.Time
	end   context.CancelCauseFunc
}

// errMoved is the cancellation cause of a call whose group has another leader by now.
var errMoved = errors.New("another server leads the group now")

func newLeaderCalls(l Leaders) *leaderCalls {
	return &leaderCalls{leaders: l, open: map[*leaderCall]struct{}{}}
}

// begin returns a context for a call to the server that this node considers the leader of a group. The context ends
// when this node learns of another leader. The caller must call the function done when the call has ended.
func (l *leaderCalls) begin(ctx context.Context, gid uint32, leader raft.ServerID) (_ context.Context, done func()) {
	ctx, end := context.WithCancelCause(ctx)
	c := &leaderCall{group: gid, to: leader, since: time.Now(), end: end}
	l.add(c)
	c.moved(l.leaders.Leader(gid)) // the leader may have changed before the call was added
	return ctx, func() {
		l.remove(c)
		end(nil)
	}
}

func (l *leaderCalls) add(c *leaderCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
}

func (l *leaderCalls) remove(c *leaderCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

// moved cancels the calls for a group that were sent to servers other than the new leader. If leader is empty, no
// leader is known, and moved cancels no call.
func (l *leaderCalls) moved(gid uint32, leader raft.ServerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if c.group == gid {
			c.moved(leader)
		}
	}
}

func (c *leaderCall) moved(leader raft.ServerID) {
	if leader != "" && leader != c.to {
		c.end(errMoved)
	}
}

// waiting returns the groups with a call that has been in flight for at least the given duration.
func (l *leaderCalls) waiting(least time.Duration) map[uint32]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	groups := map[uint32]bool{}
	for c := range l.open {
		if time.Since(c.since) >= least {
			groups[c.group] = true
		}
	}
	return groups
}

// endedBy translates the error err of a call with the context ctx. If the call was cancelled because the leader has
// changed, endedBy returns one of these errors:
//
//   - fault.NotLeader if the call was not sent, so that the caller retries at the new leader.
//   - fault.Indeterminate if the call may have been executed.
//
// Otherwise endedBy returns err unchanged.
func endedBy(ctx context.Context, op string, err error) error {
	if err == nil || !errors.Is(context.Cause(ctx), errMoved) {
		return err
	}
	switch fault.CodeOf(err) {
	case fault.Timeout:
		return &fault.Error{Code: fault.NotLeader, Op: op, Msg: "the leader changed before the call was sent",
			Err: errMoved}
	case fault.Indeterminate:
		return &fault.Error{Code: fault.Indeterminate, Op: op,
			Msg: "another server was elected before the leader answered; the write may have been applied", Err: err}
	}
	return err
}
