package raftfsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

func TestMarkRemoved_ReachesEveryReplicaAndSurvivesRestore(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	lead := c.leader()
	set(t, lead.Store("", "s"), "app0||k", "v", state.Strong)
	before := save(t, lead)
	side, _ := c.sidecar("side")
	mark := func(server string) {
		t.Helper()
		for g := range uint32(2) {
			var seen uint64
			eventually(t, func() (err error) { // the replica may be behind the group's leader
				if seen, err = lead.Removals(g); err != nil {
					return err
				}
				return side.MarkRemoved(t.Context(), g, server, seen) // any node can do this
			})
			for _, stale := range []uint64{0, seen, seen + 1} {
				if err := side.MarkRemoved(t.Context(), g, "n7.a", stale); !fault.Is(err, fault.Conflict) {
					t.Errorf("marked after another server was marked: %v", err)
				}
			}
		}
	}
	marked := func(want ...string) {
		t.Helper()
		for _, h := range c.running() {
			eventually(t, func() error {
				for g := range uint32(2) {
					if got := h.RemovedServers(g); !slices.Equal(got, want) {
						return fmt.Errorf("%s, group %d: %v, want %v", h.Identity().Node, g, got, want)
					}
				}
				return nil
			})
		}
	}
	mark("n9.a")
	mark("n9.a")
	marked("n9.a")
	after := save(t, lead)
	if bytes.Contains(after, []byte("n9.a")) {
		t.Error("a backup contains the removed servers")
	}
	restore(t, lead, before)
	marked("n9.a")
	mark("n8.a")
	restore(t, lead, after)
	marked("n8.a", "n9.a")
	eventually(t, func() error { // the server may have to learn again that the configuration is committed
		if s := lead.Standing(0, "n9.a"); s.Member || !s.Settled || !s.Removed {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if s := lead.Standing(0, lead.Identity().Server); !s.Member || s.Removed {
		t.Errorf("%+v", s)
	}
}

// Leaders decide about the removal from their groups one by one, and each may refuse.
func TestHasLeft_ServerIsRemovedFromEveryGroup(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, func(o *raftfsm.Options) { o.Partitions = 2 })
	h := c.leader()
	const server = "n9.a"
	for i := range h.Groups() {
		eventually(t, func() error { return h.Groups()[i].AddNonvoter(t.Context(), server, 0) })
	}
	for _, step := range []struct {
		name string
		run  func() error
		want bool
	}{
		{"member of both", func() error { return nil }, false},
		{"marked in group 0", func() error { return h.MarkRemoved(t.Context(), 0, server, 0) }, false},
		{"removed from group 0", func() error { return h.Groups()[0].Remove(t.Context(), server, 0) }, false},
		{"marked in group 1", func() error { return h.MarkRemoved(t.Context(), 1, server, 0) }, false},
		{"removed from group 1", func() error { return h.Groups()[1].Remove(t.Context(), server, 0) }, true},
	} {
		must(t, step.run())
		if got := h.HasLeft(server); got != step.want {
			t.Errorf("%s: it has left is %v", step.name, got)
		}
	}
	for _, other := range []string{h.Identity().Server, "n8.a", ""} {
		if h.HasLeft(other) {
			t.Errorf("server %q has left", other)
		}
	}
}

func TestRetire_ServerServesNothingAfterRestart(t *testing.T) {
	o := options(t, t.TempDir())
	h := open(t, o)
	wrote := set(t, h.Store("", "s"), "app||k", "v", state.Strong)
	must(t, h.Retire())
	must(t, h.Retire())
	for range 2 {
		s := h.Store("", "s")
		if _, err := s.Get(t.Context(), state.GetRequest{Key: "app||k"}); err == nil {
			t.Error("a retired server answered a read")
		}
		if _, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "app||k",
			Value: []byte("1")}}}); err == nil {
			t.Error("a retired server accepted a write")
		}
		if _, err := h.Serve(t.Context(), peercalls.MethodRoute, []byte{1, 0}); err == nil {
			t.Error("a retired server answered another server")
		}
		if h.Removed() == nil || h.Ready(0) == nil {
			t.Error("Removed of a retired server returned nil")
		}
		closeHost(t, h)
		o.Registerer = prometheus.NewRegistry()
		h = open(t, o)
		if got, err := h.VerifySession(t.Context(), "", wrote.Session); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a retired server verified a session: %q, %v", got, err)
		}
		if _, err := h.Removals(0); !fault.Is(err, fault.Invalid) {
			t.Errorf("Removals of a retired server: %v", err)
		}
		if got := h.Standing(0, h.Identity().Server); got != (raftfsm.Standing{}) {
			t.Errorf("Standing of a retired server: %+v", got)
		}
	}
}

// called records which servers are called, and returns an error for each call.
type called chan string

// Wait implements peercalls.Peers.
func (c called) Wait(ctx context.Context, server, method string, payload []byte) ([]byte, error) {
	return c.Call(ctx, server, method, payload)
}

// Call implements peercalls.Peers.
func (c called) Call(_ context.Context, server, _ string, _ []byte) ([]byte, error) {
	c <- server
	return nil, errors.New("no answer")
}

// FindLeader must not call its own server, because a server that calls itself is reported as a copied data directory.
func TestFindLeader_CallsOnlyOthers(t *testing.T) {
	t.Parallel()
	peers := make(called, 3)
	o := options(t, t.TempDir())
	o.Peers = peers
	h := open(t, o)
	if got := h.FindLeader(t.Context(), 0, []string{"a", h.Identity().Server, "b"}); got != "" {
		t.Errorf("the leader is %q", got)
	}
	if n := len(peers); n != 2 {
		t.Errorf("called %d servers, want 2", n)
	}
	for range len(peers) {
		if server := <-peers; server == h.Identity().Server {
			t.Error("the server called itself")
		}
	}
}
