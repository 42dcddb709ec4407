package workflows

import (
	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/raftfsm/command"
)

// arrival is an event that no turn has consumed.
type arrival struct {
	event *protos.HistoryEvent
	raw   []byte
	seq   uint64       // number of its record; 0 = not in the log yet
	key   uint64       // idempotency key; 0 = none
	ops   []command.Op // that belong to the entry that stores it, or the turn that consumes it
	used  bool         // the present entry removes it from the inbox
	reply func(error)  // called once it is in the log; nil = nothing waits
}

func (a *arrival) answer(err error) {
	if a.reply != nil {
		a.reply(err)
		a.reply = nil
	}
}

// inbox is the inbox of an instance. It knows what a request needs to know of all events, because there may be 100,000
// of them: a request never looks at each.
type inbox struct {
	list []*arrival // those that are not in the log are the last ones
	// weight is that of all events. The key of an event counts several times, so that one entry can remove all keys.
	weight int
	cost   int                  // of an event, besides its bytes
	pause  *protos.HistoryEvent // the last suspension or resumption; nil = none
	end    *arrival             // the first termination; nil = none
	endAll *arrival             // the first one of the children, too; nil = none
}

// set replaces all events.
func (b *inbox) set(list []*arrival, r *Ref) {
	*b = inbox{cost: 4 * (len(r.App) + len(r.ID) + opCost)}
	for _, a := range list {
		b.note(a)
	}
	b.list = list
}

// add adds an event.
func (b *inbox) add(a *arrival) {
	b.note(a)
	b.list = append(b.list, a)
}

func (b *inbox) note(a *arrival) {
	b.weight += len(a.raw) + b.cost
	if a.event.GetExecutionSuspended() != nil || a.event.GetExecutionResumed() != nil {
		b.pause = a.event
	}
	if t := a.event.GetExecutionTerminated(); t != nil {
		if b.end == nil {
			b.end = a
		}
		if b.endAll == nil && t.GetRecurse() {
			b.endAll = a
		}
	}
}

// full reports whether the inbox takes no more events that may be refused.
func (b *inbox) full() bool { return len(b.list) >= maxInbox || b.weight > maxInboxBytes }

// fresh returns the events that are not in the log.
func (b *inbox) fresh() []*arrival {
	first := len(b.list)
	for first > 0 && b.list[first-1].seq == 0 {
		first--
	}
	return b.list[first:]
}

// unsaved reports whether an event is not in the log.
func (b *inbox) unsaved() bool { return len(b.list) > 0 && b.list[len(b.list)-1].seq == 0 }

// batch returns how many events the next turn gets: a worker and an entry of the log can take so many.
func (b *inbox) batch() int {
	size := 0
	for n, a := range b.list {
		if size += len(a.raw); n > 0 && (size > maxTurnBytes || n >= maxTurnEvents) {
			return n
		}
	}
	return len(b.list)
}

// next returns the bytes of the events that the next turn gets.
func (b *inbox) next() (size int) {
	for _, a := range b.list[:b.batch()] {
		size += len(a.raw)
	}
	return size
}

// repeats reports whether an event would suspend an instance that will be suspended, or resume one that will not.
func (b *inbox) repeats(e *protos.HistoryEvent, status int32) bool {
	return turn.Repeats(e, turn.Pauses(status == statusSuspended, b.pause))
}

// termination returns an event that has the effect of the termination e; nil = none.
func (b *inbox) termination(e *protos.HistoryEvent) *arrival {
	switch t := e.GetExecutionTerminated(); {
	case t == nil:
		return nil
	case t.GetRecurse():
		return b.endAll
	}
	return b.end
}

// eventsOf returns the events of arrivals.
func eventsOf(list []*arrival) []*protos.HistoryEvent {
	events := make([]*protos.HistoryEvent, len(list))
	for n, a := range list {
		events[n] = a.event
	}
	return events
}
