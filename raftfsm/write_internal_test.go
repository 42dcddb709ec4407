package raftfsm

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// twoLeaders is a replica with a deposed leader of term 1, which accepts the first proposal, and the leader of term 2,
// which gets the others.
type twoLeaders struct {
	replica
	asked []group.Ack
}

func (t *twoLeaders) partitions() uint32 { return 1 }

func (t *twoLeaders) propose(_ context.Context, _ uint32, _ group.Encoded, ack group.Ack, _ bool) (group.Answer,
	error) {
	t.asked = append(t.asked, ack)
	if len(t.asked) == 1 {
		return group.Answer{Position: raftlog.Position{Term: 1, Index: 10}}, nil
	}
	return group.Answer{Position: raftlog.Position{Term: 2, Index: 12}, Result: kv.Result{Outcome: kv.Applied}}, nil
}

// An eventual write that a deposed leader accepts has a position below one that its session has already seen. If the
// write is lost, no position of the session shows this. So the write must be repeated, and wait for its commit.
func TestSend_RepeatsEventualWriteOfADeposedLeader(t *testing.T) {
	for name, c := range map[string]struct {
		session, node uint64 // the newest terms that they have seen
		want          []group.Ack
	}{
		"the session has seen the later term": {2, 1, []group.Ack{group.Durable, group.Committed}},
		"the node has seen the later term":    {0, 2, []group.Ack{group.Durable, group.Committed}},
		"no later term was seen":              {1, 1, []group.Ack{group.Durable}},
	} {
		leaders := &twoLeaders{}
		r := newRouter(&membership{self: datadir.Identity{Server: "n1.00"}}, leaders,
			newMetrics(prometheus.NewRegistry()), make(chan struct{}))
		r.noteSeen(at(0, c.node, 11, true))
		a, sure, err := r.send(t.Context(), 0, &command.Request{Kind: command.KindWrite,
			Ops: []command.Op{{Kind: command.OpDelete, Store: "s", Key: "k"}}}, group.Durable, c.session)
		if err != nil || len(leaders.asked) != len(c.want) || sure != (len(c.want) == 1) {
			t.Errorf("%s: proposals %v, sure %v, %v", name, leaders.asked, sure, err)
			continue
		}
		for i, ack := range c.want {
			if leaders.asked[i] != ack {
				t.Errorf("%s: proposals %v, want %v", name, leaders.asked, c.want)
			}
		}
		if last := uint64(len(c.want)); a.Term != last {
			t.Errorf("%s: the answer has term %d, want %d", name, a.Term, last)
		}
	}
}
