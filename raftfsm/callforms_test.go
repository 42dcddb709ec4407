package raftfsm_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

// oldLeader simulates a server of a version without the second form of proposals. Such a server refuses that
// form without doing anything.
type oldLeader struct {
	peercalls.Peers
	refused, took atomic.Int64
}

func (p *oldLeader) Call(ctx context.Context, server, method string, payload []byte) ([]byte, error) {
	if method == peercalls.MethodPropose {
		if payload[0] != 1 {
			p.refused.Add(1)
			return nil, fault.New(fault.Invalid, "raftfsm.Serve",
				"a forwarded request cannot be read; nothing was done")
		}
		p.took.Add(1)
	}
	return p.Peers.Call(ctx, server, method, payload)
}

func TestPropose_LeaderKnowsOnlyFirstForm(t *testing.T) {
	t.Parallel()
	var wires []*oldLeader
	c := startCluster(t, 2, func(o *raftfsm.Options) {
		wires = append(wires, &oldLeader{Peers: o.Peers})
		o.Peers = wires[len(wires)-1]
	})
	follower := c.others(c.leader())[0]
	s := follower.Store("default", "orders")
	for _, v := range []string{"1", "2", "3"} {
		set(t, s, "k", v, state.Strong)
	}
	if got := get(t, s, "k", state.Strong); string(got.Value) != "3" {
		t.Errorf("k is %q", got.Value)
	}
	var refused, took int64
	for _, w := range wires {
		refused, took = refused+w.refused.Load(), took+w.took.Load()
	}
	if refused == 0 || took == 0 {
		t.Errorf("the leader refused %d proposals and accepted %d", refused, took)
	}
}

func TestServe_NewerFormIsRefused(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	for _, method := range peercalls.Methods() {
		_, err := h.Serve(t.Context(), method, []byte{peercalls.ForwardVersion + 1, 0}) // one above the newest form
		if !fault.Is(err, fault.Unimplemented) {
			t.Errorf("%s: %v", method, err)
		}
		for _, w := range []string{method, "form 3", "understands up to ", "nothing was done",
			"upgrade the older"} {
			if !strings.Contains(fault.Text(err), w) {
				t.Errorf("%q does not contain %q", fault.Text(err), w)
			}
		}
	}
}

// Only a leader that has queried the servers of its group may raise the format.
func TestServe_FormatEntryOfAnotherNodeIsRefused(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	request, err := command.AppendRequest(nil, &command.Request{Kind: command.KindFormat, Limit: 2})
	must(t, err)
	_, err = h.Serve(t.Context(), peercalls.MethodPropose, append([]byte{1, 0, 0, 0}, request...))
	if !fault.Is(err, fault.Invalid) || h.Groups()[0].Level() != command.First {
		t.Errorf("%v; the format is %d", err, h.Groups()[0].Level())
	}
}

func TestServe_RefusesUnreadableCalls(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	for _, payload := range [][]byte{nil, {1}, {2, 0}, {1, 9}, {1, 0}, {1, 0, 0x80}} {
		for _, method := range append(peercalls.Methods(), "raft.nosuch") {
			if (method == peercalls.MethodProgress || method == peercalls.MethodRoute) && len(payload) > 1 &&
				payload[0] == 1 && payload[1] == 0 {
				continue // complete calls, because they carry only the group
			}
			if _, err := h.Serve(t.Context(), method, payload); err == nil {
				t.Errorf("%s with %v was served", method, payload)
			}
		}
	}
}
