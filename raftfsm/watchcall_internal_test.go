package raftfsm

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/state/feed"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

// guarded is a scan that records whether the lock of its openScan was held when it was closed.
type guarded struct {
	feed.Scan
	of     *openScan
	closed int
	locked bool
}

func (g *guarded) Close() {
	g.closed++
	if g.locked = !g.of.mu.TryLock(); !g.locked {
		g.of.mu.Unlock()
	}
}

func TestRemoteHistory_NoServer(t *testing.T) {
	r := &remoteHistory{sidecar: &sidecar{routes: peercalls.NewRouteTable(nil, nil, nil)}}
	_, err := r.read(t.Context(), 0, 1)
	if !fault.Is(err, fault.Unavailable) || strings.Count(err.Error(), "no server answers") != 1 {
		t.Error(err)
	}
}

// A call may be reading the scan when scanLife has passed. The scan is then closed after the call.
func TestScans_DropWaitsForCall(t *testing.T) {
	const id = 7
	one := &openScan{stop: time.AfterFunc(time.Hour, func() {})}
	scan := &guarded{of: one}
	one.scan = scan
	s := scans{open: map[uint64]*openScan{id: one}}
	s.drop(id)
	if scan.closed != 1 || !scan.locked {
		t.Errorf("closed %d times, with the lock %t", scan.closed, scan.locked)
	}
	s.open[id] = one // as for a call that had found the scan before
	if _, err := s.next(t.Context(), nil, id, "", 1); !fault.Is(err, fault.NotFound) {
		t.Errorf("a call read a closed scan: %v", err)
	}
	s.drop(id)
	if scan.closed != 1 {
		t.Errorf("closed %d times", scan.closed)
	}
}

// waitingServers answers reads, and keeps calls that wait until the caller gives up.
type waitingServers struct{ waits chan string }

func (waitingServers) LiveServers() []string { return []string{"a", "b"} }

func (waitingServers) Call(_ context.Context, _, method string, _ []byte) ([]byte, error) {
	if method == peercalls.MethodRoute {
		return peercalls.AppendRoutes(nil, []peercalls.GroupRoute{{Leader: "a", Term: 1, Reads: true}}), nil
	}
	return append([]byte{1}, make([]byte, 7)...), nil // no changes
}

func (s waitingServers) Wait(ctx context.Context, server, method string, _ []byte) ([]byte, error) {
	s.waits <- server + " " + method
	<-ctx.Done()
	return nil, fault.New(fault.Timeout, "test", "the call got no slot")
}

// Many histories are watched. The calls that wait for changes have a method and a limit of their own. Beyond the
// limit, histories are polled. A wait that gets no answer does not make a server a failed one.
func TestRemoteHistory_WaitsBlockNoReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peers := waitingServers{make(chan string, 2*maxWatchWaits)}
		stop := make(chan struct{})
		s := &sidecar{peers: peers, routes: peercalls.NewRouteTable(peers, peers, stop),
			watchWaits: make(chan struct{}, maxWatchWaits)}
		s.wg.Go(s.routes.Run)
		synctest.Wait()
		nearest := s.routes.Readers(0)[0]
		r := &remoteHistory{sidecar: s}
		var wg sync.WaitGroup
		returned := make(chan time.Duration, maxWatchWaits+1)
		begun := time.Now()
		for range maxWatchWaits + 1 {
			wg.Go(func() {
				r.wait(t.Context(), 0)
				returned <- time.Since(begun)
			})
		}
		if first := <-returned; first != watchPoll || len(peers.waits) != maxWatchWaits {
			t.Errorf("a wait beyond the limit returned after %v; %d calls wait", first, len(peers.waits))
		}
		if _, err := r.read(t.Context(), 0, 1); err != nil {
			t.Errorf("a read beside the waits: %v", err)
		}
		wg.Wait()
		for range maxWatchWaits {
			if got := <-peers.waits; got != nearest+" "+peercalls.MethodWatchWait {
				t.Fatalf("a wait called %s", got)
			}
		}
		if got := s.routes.Readers(0)[0]; got != nearest {
			t.Errorf("after the waits, %s is read, not %s", got, nearest)
		}
		close(stop)
		s.wg.Wait()
	})
}
