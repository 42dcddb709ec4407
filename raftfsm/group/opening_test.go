package group

import (
	"sync"
	"testing"

	"github.com/hashicorp/raft"
)

// earlyTransport delivers heartbeats as soon as a handler is set, like a network when a node returns to a
// running cluster.
type earlyTransport struct {
	*raft.InmemTransport
	stop chan struct{}
	wg   sync.WaitGroup
}

func (e *earlyTransport) SetHeartbeatHandler(h func(raft.RPC)) {
	e.wg.Go(func() {
		for {
			rpc, answer := heartbeat(3, "leader")
			h(rpc)
			select {
			case <-answer:
			case <-e.stop:
				return
			}
		}
	})
}

func TestOpen_HeartbeatsBeforeRaftRuns(t *testing.T) {
	_, inmem := raft.NewInmemTransport("a")
	e := &earlyTransport{InmemTransport: inmem, stop: make(chan struct{})}
	o := alone(t, t.TempDir())
	o.Transport, o.Bootstrap = e, false
	g := openGroup(t, o)
	until(t, "the heartbeats had no effect", func() bool { return g.Leader() == "leader" && g.Term() == 3 })
	close(e.stop)
	closeGroup(t, g)
	e.wg.Wait()
}
