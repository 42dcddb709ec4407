package peer_test

import (
	"context"
	"io"
	stdnet "net"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

func tunnelPair(t *testing.T) (a, b *node) {
	net := newNetwork(false)
	return start(t, net, "a", nil), start(t, net, "b", nil)
}

func TestTunnel_CarriesBytesBothWaysAndNamesItsEnds(t *testing.T) {
	a, b := tunnelPair(t)
	accepted := make(chan error, 1)
	go func() {
		c, err := b.Tunnels().Accept()
		if err != nil {
			accepted <- err
			return
		}
		defer c.Close()
		if from := peer.RemotePeer(c); from.Server != a.id || from.Proven {
			t.Errorf("the caller is %+v", from)
		}
		_, err = io.Copy(c, io.LimitReader(c, 5))
		accepted <- err
	}()
	c, err := a.Tunnel(context.Background(), b.id)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, 5)
	if _, err := io.ReadFull(c, back); err != nil || string(back) != "hello" {
		t.Fatalf("%q %v", back, err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
}

func TestTunnel_EndsIfServerIsLost(t *testing.T) {
	a, b := tunnelPair(t)
	go func() {
		if c, err := b.Tunnels().Accept(); err == nil {
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	c, err := a.Tunnel(context.Background(), b.id)
	if err != nil {
		t.Fatal(err)
	}
	a.Lost(b.id)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("the tunnel still stands")
	}
	_ = c.Close()
}

func TestTunnel_UnknownServerIsUnavailable(t *testing.T) {
	a, _ := tunnelPair(t)
	for range 2 {
		if _, err := a.Tunnel(context.Background(), "nobody"); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("%v", err)
		}
	}
}

func TestTunnel_AnyEpochForNodeWithoutReplicas(t *testing.T) {
	net := newNetwork(false)
	a := start(t, net, "a", nil, identity("c", 3))
	b := start(t, net, "b", nil, identity("c", peer.AnyEpoch))
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		c, err := pair[0].Tunnel(within(t, time.Minute), pair[1].id)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
}

// TestTunnel_BurstIsNotCutByLimitOfHandshakes opens many tunnels to one server at once, as a burst of calls does. The
// server must not take them for an attack, and a tunnel that Tunnel has returned must stay open.
func TestTunnel_BurstIsNotCutByLimitOfHandshakes(t *testing.T) {
	const burst = 500
	net := newNetwork(false)
	a := start(t, net, "a", nil)
	b := start(t, net, "b", nil, func(o *peer.Options, _ *node) { o.Limits.PendingPerSource = peer.TunnelDials })
	go func() {
		for {
			c, err := b.Tunnels().Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	errs := make(chan error, burst)
	for range burst {
		go func() {
			c, err := a.Tunnel(t.Context(), b.id)
			if err == nil {
				defer c.Close()
				_, err = io.WriteString(c, "x")
			}
			if err == nil {
				_, err = io.ReadFull(c, make([]byte, 1))
			}
			errs <- err
		}()
	}
	for range burst {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestTunnel_WaitsForASlotUntilItsContextEnds(t *testing.T) {
	net := newNetwork(false)
	reached, hang := make(chan struct{}, peer.TunnelDials), make(chan struct{})
	a := start(t, net, "a", nil, func(o *peer.Options, _ *node) {
		o.Dial = func(ctx context.Context, _ string) (conn stdnet.Conn, err error) {
			reached <- struct{}{}
			<-hang
			return nil, io.ErrClosedPipe
		}
	})
	b := start(t, net, "b", nil)
	ended := make(chan error, peer.TunnelDials)
	for range peer.TunnelDials {
		go func() {
			_, err := a.Tunnel(context.Background(), b.id)
			ended <- err
		}()
	}
	for range peer.TunnelDials {
		<-reached
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := a.Tunnel(ctx, b.id)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "32 other connections") {
		t.Errorf("with every slot taken: %v", err)
	}
	close(hang)
	for range peer.TunnelDials {
		if err := <-ended; !fault.Is(err, fault.Unavailable) {
			t.Error(err)
		}
	}
}
