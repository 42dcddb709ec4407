package peer_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/internal/peer"
)

func TestCall_AnyEpochForNodeWithoutReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		b := start(t, net, "b", []peer.Method{echo("echo")}, identity("c", 5))
		if _, err := b.Raft(7); err != nil {
			t.Fatal(err)
		}
		side := start(t, net, "side", []peer.Method{echo("echo")}, identity("c", peer.AnyEpoch))
		if _, err := side.Client().Call(context.Background(), "b", "echo", nil); err != nil {
			t.Errorf("to a server: %v", err)
		}
		if _, err := b.Client().Call(context.Background(), "side", "echo", nil); err != nil {
			t.Errorf("from a server: %v", err)
		}
		if took, err := b.Probe(context.Background(), "side"); err != nil || took < 0 {
			t.Errorf("probe: %s, %v", took, err)
		}
		c, err := net.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(peer.Hello("raft", peer.Identity{Server: "side", Cluster: "c", Epoch: peer.AnyEpoch}, "b", 7))
		_, err = peer.ReadAnswer(c)
		wantReason(t, err, peer.ReasonNewerEpoch)
		_ = c.Close()
	})
}
