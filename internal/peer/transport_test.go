package peer_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

// pair returns two nodes, each with a transport of the same group.
func pair(t *testing.T, n *network, setups ...setup) (a, b *node, from, to *peer.Transport) {
	t.Helper()
	a, b = start(t, n, "a", nil, setups...), start(t, n, "b", nil, setups...)
	var err error
	if from, err = a.Raft(group); err != nil {
		t.Fatal(err)
	}
	if to, err = b.Raft(group); err != nil {
		t.Fatal(err)
	}
	return a, b, from, to
}

func entries(count, size int) *raft.AppendEntriesRequest {
	r := &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 1, PrevLogTerm: 1}
	for range count {
		r.Entries = append(r.Entries, &raft.Log{Data: make([]byte, size)})
	}
	return r
}

// serve answers every request until the test ends.
func serve(t *testing.T, to *peer.Transport, answer func(raft.RPC) (any, error)) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case rpc := <-to.Consumer():
				resp, err := answer(rpc)
				rpc.Respond(resp, err)
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() { close(stop); wg.Wait() })
}

func success(raft.RPC) (any, error) { return &raft.AppendEntriesResponse{Success: true}, nil }

func appendTo(from *peer.Transport, r *raft.AppendEntriesRequest) error {
	var resp raft.AppendEntriesResponse
	err := from.AppendEntries("b", "somewhere else", r, &resp)
	if err == nil && !resp.Success {
		err = fault.New(fault.Internal, "test", "no success")
	}
	return err
}

// slow is a network connection that takes a while for each write.
type slow struct {
	net.Conn
	each time.Duration
}

func (s slow) Write(b []byte) (int, error) {
	rest(context.Background(), s.each)
	return s.Conn.Write(b)
}

func TestTransport_SlowEntriesAreNotCutWhileProgressing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		n.wrap = func(c net.Conn) net.Conn { return slow{c, 200 * time.Millisecond} }
		_, _, from, to := pair(t, n)
		serve(t, to, success)
		begun := time.Now()
		if err := appendTo(from, entries(16, 1<<20)); err != nil {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if took := time.Since(begun); took < 10*time.Second {
			t.Fatalf("the link is not slow: %s", took)
		}
	})
}

func TestTransport_UnansweredRequestIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, from, _ := pair(t, newNetwork(true))
		begun := time.Now()
		if err := appendTo(from, entries(1, 10)); err == nil || time.Since(begun) != 2500*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
	})
}

func snapshot(from *peer.Transport, size int64, data io.Reader) error {
	var resp raft.InstallSnapshotResponse
	return from.InstallSnapshot("b", "somewhere else", &raft.InstallSnapshotRequest{Term: 1, Size: size}, &resp, data)
}

// endless is a stream that stalls after a number of bytes, until it is closed.
type endless struct {
	left int
	stop chan struct{}
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		<-e.stop
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), e.left)
	e.left -= n
	return n, nil
}

func TestTransport_StalledSnapshotIsCut(t *testing.T) {
	const size = 10 << 20
	t.Run("by the sender, if no receiver takes it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, _, from, to := pair(t, newNetwork(true))
			stop := make(chan struct{})
			serve(t, to, func(rpc raft.RPC) (any, error) {
				_, _ = io.CopyN(io.Discard, rpc.Reader, size/2)
				<-stop
				return nil, nil
			})
			begun := time.Now()
			err := snapshot(from, size, bytes.NewReader(make([]byte, size)))
			wantCode(t, err, fault.Timeout)
			if took := time.Since(begun); took != 30*time.Second {
				t.Errorf("cut after %s", took)
			}
			close(stop)
		})
	})
	t.Run("by the receiver, when nothing comes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, _, from, to := pair(t, newNetwork(true))
			source, ended := &endless{left: size / 2, stop: make(chan struct{})}, make(chan error, 1)
			serve(t, to, func(rpc raft.RPC) (any, error) {
				begun := time.Now()
				n, err := io.Copy(io.Discard, rpc.Reader)
				_, _ = io.Copy(io.Discard, rpc.Reader) // raft reads on to discard the rest, and must not wait again
				if took := time.Since(begun); took != 30*time.Second || n > size/2 {
					t.Errorf("cut after %s and %d bytes", took, n)
				}
				ended <- err
				close(source.stop)
				return nil, err
			})
			if err := snapshot(from, size, source); err == nil {
				t.Error("the sender does not notice")
			}
			wantCode(t, <-ended, fault.Timeout)
		})
	})
}

func TestTransport_SnapshotRestoreMayOutlastRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, from, to := pair(t, newNetwork(true))
		serve(t, to, func(rpc raft.RPC) (any, error) {
			_, err := io.Copy(io.Discard, rpc.Reader)
			rest(context.Background(), 50*time.Second)
			return &raft.InstallSnapshotResponse{Success: true}, err
		})
		if err := snapshot(from, 1000, bytes.NewReader(make([]byte, 1000))); err != nil {
			t.Error(err)
		}
	})
}

func TestTransport_StaleConnectionsFailNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		_, b, from, to := pair(t, n)
		stop := make(chan struct{})
		hold := func(rpc raft.RPC) (any, error) { <-stop; return success(rpc) }
		for range 3 {
			serve(t, to, hold)
		}
		var wg sync.WaitGroup
		for range 3 { // three connections get into the pool
			wg.Go(func() {
				if err := appendTo(from, entries(1, 1)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(stop)
		wg.Wait()
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := b.Raft(group)
		if err != nil {
			t.Fatal(err)
		}
		serve(t, again, func(rpc raft.RPC) (any, error) {
			switch rpc.Command.(type) {
			case *raft.RequestVoteRequest:
				return &raft.RequestVoteResponse{Granted: true}, nil
			case *raft.RequestPreVoteRequest:
				return &raft.RequestPreVoteResponse{Granted: true}, nil
			}
			return nil, nil
		})
		var vote raft.RequestVoteResponse
		if err := from.RequestVote("b", "b", &raft.RequestVoteRequest{Term: 2}, &vote); err != nil || !vote.Granted {
			t.Errorf("%+v, %v", vote, err)
		}
		var pre raft.RequestPreVoteResponse
		if err := from.RequestPreVote("b", "b", &raft.RequestPreVoteRequest{Term: 2}, &pre); err != nil ||
			!pre.Granted {
			t.Errorf("%+v, %v", pre, err)
		}
	})
}

func TestTransport_SendsEntriesOncePeerIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, back := range map[string]func(a, b *node){
			"gossip tells":  func(a, _ *node) { a.Alive("b") },
			"it calls":      func(_, b *node) { _, _ = b.Client().Call(context.Background(), "a", "any", nil) },
			"it is reached": func(a, _ *node) { _, _ = a.Client().Call(context.Background(), "b", "any", nil) },
		} {
			n := newNetwork(true)
			a := start(t, n, "a", nil)
			n.place("b", "later")
			from, err := a.Raft(group)
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if err := appendTo(from, entries(1, 1)); err == nil || time.Since(begun) > 0 {
				t.Errorf("%s: the first failure is reported after %s: %v", name, time.Since(begun), err)
			}
			if err := appendTo(from, entries(1, 1)); err == nil || time.Since(begun) != 2500*time.Millisecond {
				t.Errorf("%s: the second is held for %s: %v", name, time.Since(begun), err)
			}
			beat := &raft.AppendEntriesRequest{Term: 1}
			if err := appendTo(from, beat); err == nil || time.Since(begun) != 2500*time.Millisecond {
				t.Errorf("%s: a heartbeat is held: %s, %v", name, time.Since(begun), err)
			}
			time.AfterFunc(time.Second, func() {
				b := start(t, n, "b", nil, at("later"))
				to, err := b.Raft(group)
				if err != nil {
					t.Error(err)
					return
				}
				serve(t, to, success)
				back(a, b)
			})
			begun = time.Now()
			if err := appendTo(from, entries(1, 1)); err != nil || time.Since(begun) != time.Second {
				t.Errorf("%s: sent after %s: %v", name, time.Since(begun), err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestTransport_InterruptEndsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		a := start(t, n, "a", nil, options(func(o *peer.Options) { o.Timing.Hold = time.Hour }))
		from, err := a.Raft(group)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		_ = appendTo(from, entries(1, 1))
		time.AfterFunc(time.Second, from.Interrupt)
		for range 3 {
			if err := appendTo(from, entries(1, 1)); err == nil {
				t.Error("reached no server without an error")
			}
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("held for %s", took)
		}
	})
}

func TestTransport_CloseCutsBothEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		a, b, from, to := pair(t, n)
		serve(t, to, success)
		for range 2 {
			if err := appendTo(from, entries(1, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if got := a.metric(t, "connections", "kind", "raft"); got != 1 {
			t.Fatalf("%v connections", got)
		}
		if err := from.Close(); err != nil {
			t.Error(err)
		}
		if err := from.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if x, y := a.metric(t, "connections"), b.metric(t, "connections"); x != 0 || y != 0 {
			t.Errorf("%v and %v connections are left", x, y)
		}
		if err := appendTo(from, entries(1, 1)); err == nil {
			t.Error("a closed transport works")
		}
		if err := from.TimeoutNow("b", "b", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{}); err == nil {
			t.Error("a closed transport hands leadership over")
		}
		if _, err := a.Raft(group); err != nil {
			t.Errorf("a new one for the group: %v", err)
		}
		if _, err := b.Raft(group); !fault.Is(err, fault.Invalid) {
			t.Errorf("a second one for a group: %v", err)
		}
	})
}

func TestTransport_CloseEndsPendingRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, from, to := pair(t, newNetwork(true))
		begun := time.Now()
		var failed atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() { failed.Store(appendTo(from, entries(1, 1)) != nil) })
		synctest.Wait()
		if err := from.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if !failed.Load() || time.Since(begun) > 0 {
			t.Errorf("it ended after %s", time.Since(begun))
		}
		if err := to.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestTransport_CloseEndsPendingDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		a := start(t, n, "a", nil)
		from, err := a.Raft(group)
		if err != nil {
			t.Fatal(err)
		}
		l := n.listen(t, "") // accepts no connection
		n.place("b", l.Addr().String())
		begun := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { _ = appendTo(from, entries(1, 1)) })
		synctest.Wait()
		if err := from.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if took := time.Since(begun); took > 0 {
			t.Errorf("it took %s", took)
		}
	})
}

func TestTransport_HasNoPipeline(t *testing.T) {
	net := newNetwork(false)
	a := prepare(t, net, "a", nil)
	from, err := a.Raft(group) // before Open
	if err != nil {
		t.Fatal(err)
	}
	if _, err := from.AppendEntriesPipeline("b", "b"); err != raft.ErrPipelineReplicationNotSupported {
		t.Errorf("a pipeline: %v", err)
	}
	if from.LocalAddr() != "a" || string(from.EncodePeer("b", "10.0.0.1:1")) != "b" ||
		from.DecodePeer([]byte("b")) != "b" {
		t.Error("addresses are not server ids")
	}
	wantCode(t, appendTo(from, entries(1, 1)), fault.Unavailable)
	a.open(t, net)
}
