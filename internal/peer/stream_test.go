package peer_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

func noTLS() (server, client *tls.Config) { return nil, nil }

// duplex sends back what comes.
func duplex(_ context.Context, r peer.Request, rw io.ReadWriter) error {
	if _, err := rw.Write(r.Payload); err != nil {
		return err
	}
	_, err := io.Copy(rw, rw)
	return err
}

func stream(t *testing.T, n *node, server, method string, payload string) *peer.Stream {
	t.Helper()
	s, err := n.Client().Stream(within(t, 2*time.Minute), server, method, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestAStreamCarriesBytesBothWaysAtATime(t *testing.T) {
	net := newNetwork(false)
	start(t, net, "b", []peer.Method{{Name: "duplex", HandleStream: duplex}})
	a := start(t, net, "a", nil)
	s := stream(t, a, "b", "duplex", "head:")
	want := bytes.Repeat([]byte("0123456789"), 1<<20)
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write(want)
		wrote <- errors.Join(err, s.CloseWrite())
	}()
	got, err := io.ReadAll(s)
	if err != nil || !bytes.Equal(got, append([]byte("head:"), want...)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if _, err := s.Write([]byte("x")); !fault.Is(err, fault.Invalid) {
		t.Errorf("a write after the end: %v", err)
	}
	_ = s.Close()
	_ = s.Close()
	if got := a.metric(t, "rpc_requests_total", "method", "duplex", "outcome", "ok"); got != 1 {
		t.Errorf("counted %v", got)
	}
	if got := a.metric(t, "rpc_bytes_total", "method", "duplex"); got != float64(2*(len(want)+5)) {
		t.Errorf("counted %v bytes", got)
	}
}

func TestTheErrorOfAStreamComesAfterWhatWasWritten(t *testing.T) {
	net := newNetwork(false)
	start(t, net, "b", []peer.Method{{Name: "fail", HandleStream: func(_ context.Context, _ peer.Request, rw io.ReadWriter) error {
		_, _ = rw.Write([]byte("part"))
		return &fault.Error{Code: fault.Corrupt, Op: "x", Msg: "damaged", Hint: "restore", Key: "file"}
	}}})
	a := start(t, net, "a", nil)
	got, err := io.ReadAll(stream(t, a, "b", "fail", ""))
	e, _ := fault.As(err)
	if string(got) != "part" || e == nil || e.Code != fault.Corrupt || e.Hint != "restore" || e.Key != "file" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAWriterWaitsForASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		var wrote atomic.Int64
		start(t, net, "b", []peer.Method{echo("echo"), {Name: "flood", HandleStream: func(_ context.Context, _ peer.Request, rw io.ReadWriter) error {
			for {
				n, err := rw.Write(make([]byte, 1000))
				if wrote.Add(int64(n)); err != nil {
					return err
				}
			}
		}}})
		a := start(t, net, "a", nil)
		s := stream(t, a, "b", "flood", "")
		synctest.Wait()
		if n := wrote.Load(); n > peer.FirstAnswer || n < peer.FirstAnswer-1000 {
			t.Errorf("%d bytes were written to a reader that does not read", n)
		}
		if _, err := a.Client().Call(context.Background(), "b", "echo", nil); err != nil {
			t.Errorf("a call beside it: %v", err)
		}
		if _, err := io.ReadFull(s, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := wrote.Load(); n < 1<<20 || n > 1<<20+peer.FirstAnswer {
			t.Errorf("%d bytes were written to a reader of %d", n, 1<<20)
		}
		_ = s.Close()
	})
}

func TestAHandlerThatDoesNotReadHoldsBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		start(t, net, "b", []peer.Method{{Name: "deaf", HandleStream: func(ctx context.Context, _ peer.Request, _ io.ReadWriter) error {
			<-ctx.Done()
			return ctx.Err()
		}}})
		a := start(t, net, "a", nil)
		s := stream(t, a, "b", "deaf", "")
		sent := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				n, err := s.Write(make([]byte, 1000))
				if sent += n; err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		_ = s.Close()
		<-done
		if sent > peer.StreamWindow {
			t.Errorf("%d bytes were taken", sent)
		}
	})
}

func TestClosingAStreamEndsItsHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(*peer.Stream, context.CancelFunc){
			"closed":    func(s *peer.Stream, _ context.CancelFunc) { _ = s.Close() },
			"cancelled": func(_ *peer.Stream, cancel context.CancelFunc) { cancel() },
		} {
			net, ended := newNetwork(true), make(chan error, 1)
			start(t, net, "b", []peer.Method{{Name: "read", HandleStream: func(_ context.Context, _ peer.Request, rw io.ReadWriter) error {
				_, err := io.Copy(io.Discard, rw)
				ended <- err
				return err
			}}})
			a := start(t, net, "a", nil)
			ctx, cancel := context.WithCancel(context.Background())
			s, err := a.Client().Stream(ctx, "b", "read", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the handler reads
			end(s, cancel)
			if err := <-ended; !fault.Is(err, fault.Timeout) {
				t.Errorf("%s: the handler ended with %v", name, err)
			}
			synctest.Wait()
			if _, err := s.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: the stream goes on", name)
			}
			_ = s.Close()
			cancel()
		}
	})
}

func TestAStreamEndsAtItsDeadlineOnBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, ended := newNetwork(true), make(chan error, 1)
		start(t, net, "b", []peer.Method{{Name: "wait", HandleStream: func(_ context.Context, _ peer.Request, rw io.ReadWriter) error {
			_, err := rw.Read(make([]byte, 1))
			ended <- err
			return err
		}}})
		a := start(t, net, "a", nil)
		s, err := a.Client().Stream(within(t, time.Second), "b", "wait", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Read(make([]byte, 1)); err == nil {
			t.Error("the caller's end goes on")
		}
		if err := <-ended; !fault.Is(err, fault.Timeout) {
			t.Errorf("the handler's end: %v", err)
		}
	})
}

func TestStreamsAndCallsDoNotMix(t *testing.T) {
	net := newNetwork(false)
	start(t, net, "b", []peer.Method{echo("call"), {Name: "stream", HandleStream: duplex}})
	a := start(t, net, "a", nil)
	_, err := a.Client().Call(within(t, time.Minute), "b", "stream", nil)
	wantCode(t, err, fault.Unimplemented)
	_, err = io.ReadAll(stream(t, a, "b", "call", ""))
	wantCode(t, err, fault.Unimplemented)
	_, err = a.Client().Stream(within(t, time.Minute), "b", "stream", make([]byte, peer.Chunk+1))
	wantCode(t, err, fault.TooLarge)
}

func TestTheReadsOfAHandlerEndAtItsDeadlineEvenIfTheCallerSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ended := newNetwork(true), make(chan error, 1)
		b := start(t, n, "b", []peer.Method{{Name: "read", HandleStream: func(_ context.Context, _ peer.Request, rw io.ReadWriter) error {
			_, err := rw.Read(make([]byte, 1))
			ended <- err
			return err
		}}})
		c, err := n.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		handshake(t, c, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
		if _, err := c.Write(peer.OpenStreamFrame(1, "read", time.Second)); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		err = <-ended
		wantCode(t, err, fault.Timeout)
		if took := time.Since(begun); took != time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
