package topics

import (
	"testing"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

// damage stores a parked record of group g that cannot be decoded, or removes it.
func (l *lab) damage(kind command.OpKind) {
	op := command.Op{Kind: kind, Store: kv.TopicStore, Key: orders.parkedKey("g", 1<<40)}
	if kind == command.OpSet {
		op.Value = []byte("?")
	}
	l.Propose("damage", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{op}})
}

// The outcome of a flush is not known, and the group cannot be read again. The messages that the node has are not
// handed out a second time meanwhile.
func TestKeeper_FailedReloadKeepsLeases(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		sent := l.publishTo(orders, pubsub.Message{}, pubsub.Message{}, pubsub.Message{})
		a, _ := l.next("node", 0)
		if len(a.List) != 3 {
			t.Fatalf("%d messages", len(a.List))
		}
		l.settles("node", orders, "g", sent[0])
		l.damage(command.OpSet)
		l.Answer(l.Calls()[0], grouptest.Reply{Err: fault.New(fault.Indeterminate, "test", "no answer")})
		l.answer()
		l.Pass(uint64(retryPause.Milliseconds()))
		l.answer() // the group is read, which fails
		last := l.publishTo(orders, pubsub.Message{})
		if a, _ = l.next("node", a.Number); len(a.List) != 1 || a.List[0].Offset != last[0] {
			t.Errorf("handed out: %v, want %v", a.List, last)
		}
		l.damage(command.OpDelete)
		l.Pass(uint64(retryPause.Milliseconds()))
		l.answer()
		if a, _ = l.next("node", a.Number); len(a.List) != 0 {
			t.Errorf("handed out after the group was read: %v", a.List)
		}
	})
}
