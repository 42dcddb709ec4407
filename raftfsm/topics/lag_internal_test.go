package topics

import (
	"testing"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// lag measures the lag of group g in topic orders.
func (l *lab) lag() measured {
	l.T.Helper()
	all := l.measure()
	if len(all[orders]) != 1 {
		l.T.Fatalf("%v is measured", all)
	}
	return all[orders][0]
}

// moveTo stores that group g has settled every message up to an offset.
func (l *lab) moveTo(upto uint64) {
	l.Propose("move", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet,
		Store: kv.TopicStore, Key: orders.key(tableGroup, "g"), Value: (&cursor{upto: upto}).encode()}}})
	l.answer()
}

// A group settles messages, and retention removes them, all between two measurements.
func TestMeasure_SettledMessagesAreRemoved(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		const count, page = 3*exactBelow + 500, 5000
		var offsets []uint64
		for len(offsets) < count {
			offsets = append(offsets, l.publishTo(orders, make([]pubsub.Message, min(page, count-len(offsets)))...)...)
		}
		l.moveTo(offsets[0] - 1)
		check := func(want uint64) {
			t.Helper()
			if have := l.lag(); have.lag != want || have.partial {
				t.Errorf("the lag is %d, partial: %t; want %d", have.lag, have.partial, want)
			}
		}
		check(count)
		settled := 0
		for _, n := range []int{1, 3000, exactBelow - 1, exactBelow + 1} {
			var ops []command.Op
			for _, offset := range offsets[settled : settled+n] {
				ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore,
					Key: orders.messageKey(offset)})
			}
			settled += n
			l.moveTo(offsets[settled-1])
			l.Propose("trim", nil, &command.Request{Kind: command.KindWrite, Ops: ops})
			check(uint64(count - settled))
		}
		more := l.publishTo(orders, make([]pubsub.Message, 10)...)
		check(uint64(count - settled + len(more)))
		l.moveTo(more[7])
		check(2)
	})
}
