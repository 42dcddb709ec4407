package peercalls

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
)

// slowPeer reports how many proposals a call carries, and answers when the test allows it.
type slowPeer struct {
	sizes chan int
	end   chan struct{}
}

func (p *slowPeer) Wait(ctx context.Context, server, method string, message []byte) ([]byte, error) {
	return p.Call(ctx, server, method, message)
}

func (p *slowPeer) Call(_ context.Context, _, _ string, message []byte) ([]byte, error) {
	f := NewFrame(message)
	_, _, _ = f.Uvarint(), f.Uvarint(), f.Uvarint() // form, group, acknowledgement
	p.sizes <- int(f.Uvarint())                     //nolint:gosec // a few
	<-p.end
	return nil, fault.New(fault.Unavailable, "test", "the server is down")
}

// noLeader knows no leader of any group.
type noLeader struct{}

func (noLeader) Leader(uint32) raft.ServerID { return "" }

// lonely is a forwarder to a leader that does not answer before end.
type lonely struct {
	*forwarder
	t        *testing.T
	key      laneKey
	peer     *slowPeer
	outcomes chan error
	under    int // number of proposals made
}

func newLonely(t *testing.T) *lonely {
	peer := &slowPeer{sizes: make(chan int, 16), end: make(chan struct{})}
	f := newForwarder(peer, uncounted{}, newLeaderCalls(noLeader{}))
	return &lonely{forwarder: f, t: t, key: laneKey{to: "leader", group: 0, ack: group.Committed}, peer: peer,
		outcomes: make(chan error, 16)}
}

// propose adds a proposal of size bytes. It then expects calls with the given numbers of proposals.
func (l *lonely) propose(size int, calls ...int) *forwarded {
	l.t.Helper()
	one := &forwarded{data: make([]byte, size), outcome: make(chan forwardOutcome, 1)}
	go func() {
		select {
		case o := <-one.outcome:
			l.outcomes <- o.err
		case <-l.t.Context().Done(): // the test has ended
		}
	}()
	l.under++
	l.enqueue(l.key, one)
	for _, want := range calls {
		if got := <-l.peer.sizes; got != want {
			l.t.Fatalf("a call carries %d proposals, not %d", got, want)
		}
	}
	return one
}

// end lets all calls fail, and waits for the outcome of every proposal that was not given up.
func (l *lonely) end(givenUp int) {
	l.t.Helper()
	close(l.peer.end)
	for range l.under - givenUp {
		if err := <-l.outcomes; !fault.Is(err, fault.Unavailable) {
			l.t.Errorf("%v", err)
		}
	}
}

func (l *lonely) lane() lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.lanes[l.key]
}

func TestForwarder_CallWaitsForAsManyProposalsAsAreInFlight(t *testing.T) {
	f := newLonely(t)
	f.propose(9, 1)
	f.propose(9, 1) // one more proposal, because one is in flight
	f.propose(9)
	f.propose(9, 2) // two more proposals, because two are in flight
	for range 3 {
		f.propose(9)
	}
	f.propose(9, 4)
	for range 5 {
		f.propose(9) // no fifth call is allowed
	}
	if l := f.lane(); len(f.peer.sizes) != 0 || len(l.queue) != 5 || l.inFlight != 8 || l.running != forwardWindow {
		t.Fatalf("%d further calls, %d proposals wait, %d are in %d calls", len(f.peer.sizes), len(l.queue),
			l.inFlight, l.running)
	}
	// Calls end one after the other. The waiting proposals are enough for a call once few others are in flight.
	f.end(0)
	if got := <-f.peer.sizes; got != 5 {
		t.Errorf("the waiting proposals were sent in a call of %d", got)
	}
	f.close()
	if len(f.lanes) != 0 {
		t.Errorf("a lane without proposals is kept: %+v", f.lanes)
	}
}

func TestForwarder_FullBytesDoNotWait(t *testing.T) {
	f := newLonely(t)
	f.propose(9, 1)
	f.propose(9, 1)
	f.propose(forwardBytes, 1)
	f.end(0)
	f.close()
}

func TestForwarder_CancelledProposalIsRemoved(t *testing.T) {
	f := newLonely(t)
	f.propose(9, 1)
	f.propose(9, 1)
	f.propose(77).state.Store(forwardGone)
	f.propose(9, 1) // two proposals wait, one of which was given up
	if l := f.lane(); l.bytes != 0 || len(l.queue) != 0 || l.inFlight != 3 {
		t.Errorf("%d bytes of %d proposals wait, %d are in flight", l.bytes, len(l.queue), l.inFlight)
	}
	f.end(1)
	f.close()
}

// unreached is a server to which no connection can be made.
type unreached struct{}

func (p unreached) Wait(ctx context.Context, server, method string, message []byte) ([]byte, error) {
	return p.Call(ctx, server, method, message)
}

func (unreached) Call(ctx context.Context, _, _ string, _ []byte) ([]byte, error) {
	<-ctx.Done()
	<-time.After(time.Millisecond) // virtual time, so that the callers see the end of their contexts first
	return nil, fault.New(fault.Timeout, "test", "the server was not reached in time")
}

func TestForwarder_UnsentProposalTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForwarder(unreached{}, uncounted{}, newLeaderCalls(noLeader{}))
		key := laneKey{to: "leader", ack: group.Committed}
		propose := func(ctx context.Context, timeout time.Duration) <-chan error {
			outcome := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				_, err := f.propose(ctx, key, make([]byte, 9), true)
				outcome <- err
			}()
			synctest.Wait()
			return outcome
		}
		gone, leave := context.WithCancel(t.Context())
		alone := propose(t.Context(), time.Second)
		cancelled := propose(gone, time.Hour)
		first := propose(t.Context(), time.Minute) // waits for the next one, which has a later deadline
		last := propose(t.Context(), time.Hour)
		leave()
		for _, c := range []struct {
			name    string
			outcome <-chan error
			want    fault.Code
		}{
			{"alone in its call", alone, fault.Timeout},
			{"given up before the deadline", cancelled, fault.Indeterminate},
			{"in a call that goes on", first, fault.Indeterminate},
			{"last in its call", last, fault.Timeout},
		} {
			if err := <-c.outcome; !fault.Is(err, c.want) {
				t.Errorf("%s: %v, want %s", c.name, err, c.want)
			}
		}
		f.close()
	})
}

// uncounted is an Observer that counts nothing.
type uncounted struct{}

func (uncounted) Forwarded(string, error) {}
func (uncounted) ForwardedBatch(int)      {}
