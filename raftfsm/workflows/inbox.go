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
	seq   uint64       // number of its record; 0 = the event is not in the log yet
	key   uint64       // idempotency key; 0 = none
	ops   []command.Op // operations for the first entry that stores or consumes the event
	used  bool         // the entry that is being made removes the event from the inbox
	reply func(error)  // called when the event is in the log or was refused; nil = no caller waits
}

func (a *arrival) answer(err error) {
	if a.reply != nil {
		a.reply(err)
		a.reply = nil
	}
}

// inbox has the events of an instance that no turn has consumed. There may be 100,000 of them, which is too many to
// look at in each request. Therefore the fields after list summarize all events.
type inbox struct {
	list []*arrival // the events that are not in the log come last
	// weight is the sum of the bytes and the cost of all events.
	weight int
	cost   int                  // weight of an event besides its bytes, so that one entry can remove all keys
	pause  *protos.HistoryEvent // the last suspension or resumption; nil = none
	end    *arrival             // the first termination; nil = none
	endAll *arrival             // the first termination that also ends the children; nil = none
}

// set replaces all events by those in list. r is the instance.
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

// full reports whether the inbox refuses further events from outside, see fromOutside.
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

// batch returns how many events the next turn gets. The limits are maxTurnEvents events and maxTurnBytes bytes, but the
// first event always fits.
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

// repeats reports whether an event would suspend a suspended instance, or resume an instance that is not suspended.
// status is the present status of the instance. The events of the inbox are also taken into account.
func (b *inbox) repeats(e *protos.HistoryEvent, status int32) bool {
	return turn.Repeats(e, turn.Pauses(status == statusSuspended, b.pause))
}

// termination returns an event of the inbox that has the same effect as the given termination. It returns nil if there
// is no such event, or if the given event is not a termination.
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
