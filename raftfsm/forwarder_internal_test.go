package raftfsm

import (
	"context"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
)

// slowPeer tells how many proposals a call carries, and answers when it is told to.
type slowPeer struct {
	sizes chan int
	end   chan struct{}
}

func (p *slowPeer) Call(_ context.Context, _, _ string, message []byte) ([]byte, error) {
	f := newFrame(message)
	_, _, _ = f.Uvarint(), f.Uvarint(), f.Uvarint() // form, group, acknowledgement
	p.sizes <- int(f.Uvarint())                     //nolint:gosec // a few
	<-p.end
	return nil, fault.New(fault.Unavailable, "test", "nobody is there")
}

// lonely is a forwarder to a leader that never answers before end.
type lonely struct {
	*forwarder
	t        *testing.T
	key      laneKey
	peer     *slowPeer
	outcomes chan error
	under    int
}

func newLonely(t *testing.T) *lonely {
	peer := &slowPeer{sizes: make(chan int, 16), end: make(chan struct{})}
	f := newForwarder(&Host{opts: Options{Peers: peer}, metrics: newMetrics(prometheus.NewRegistry())})
	f.await = func(ctx context.Context, _ uint32, _ raft.ServerID) (context.Context, func()) { return ctx, func() {} }
	return &lonely{forwarder: f, t: t, key: laneKey{to: "leader", group: 0, ack: group.Committed}, peer: peer, outcomes: make(chan error, 16)}
}

// propose expects the sizes of the calls that it leads to.
func (l *lonely) propose(size int, calls ...int) *forwarded {
	l.t.Helper()
	one := &forwarded{data: make([]byte, size), outcome: make(chan forwardOutcome, 1)}
	go func() {
		select {
		case o := <-one.outcome:
			l.outcomes <- o.err
		case <-l.t.Context().Done(): // it was given up
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

// end lets all calls fail, and waits for the outcome of everything but what was given up.
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

func TestACallWaitsForAsManyProposalsAsAreUnderWay(t *testing.T) {
	f := newLonely(t)
	f.propose(9, 1)
	f.propose(9, 1) // one more, as one is under way
	f.propose(9)
	f.propose(9, 2) // two more, as two are
	for range 3 {
		f.propose(9)
	}
	f.propose(9, 4)
	for range 5 {
		f.propose(9) // there may be no fifth call
	}
	if l := f.lane(); len(f.peer.sizes) != 0 || len(l.queue) != 5 || l.flying != 8 || l.running != forwardWindow {
		t.Fatalf("%d further calls, %d proposals wait, %d are in %d calls", len(f.peer.sizes), len(l.queue), l.flying, l.running)
	}
	// Calls end one after the other: those that wait are enough only beside few others.
	f.end(0)
	if got := <-f.peer.sizes; got != 5 {
		t.Errorf("what waited went in a call of %d", got)
	}
	f.close()
	if len(f.lanes) != 0 {
		t.Errorf("a lane without proposals is kept: %+v", f.lanes)
	}
}

func TestProposalsWorthACallByTheirBytesDoNotWait(t *testing.T) {
	f := newLonely(t)
	f.propose(9, 1)
	f.propose(9, 1)
	f.propose(forwardBytes, 1)
	f.end(0)
	f.close()
}

func TestAProposalThatIsGivenUpLeavesNothingBehind(t *testing.T) {
	f := newLonely(t)
	f.propose(9, 1)
	f.propose(9, 1)
	f.propose(77).state.Store(forwardGone)
	f.propose(9, 1) // two wait, one of them for nothing
	if l := f.lane(); l.bytes != 0 || len(l.queue) != 0 || l.flying != 3 {
		t.Errorf("%d bytes of %d proposals wait, %d are under way", l.bytes, len(l.queue), l.flying)
	}
	f.end(1)
	f.close()
}
