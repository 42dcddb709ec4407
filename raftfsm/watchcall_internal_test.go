package raftfsm

import (
	"strings"
	"testing"
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
