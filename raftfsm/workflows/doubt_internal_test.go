package workflows

import (
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

// answerAll answers the waiting calls, until no call waits any more.
func (m *model) answerAll() {
	for calls := m.Calls(); len(calls) > 0; calls = m.Calls() {
		m.Release(calls[0], true)
	}
}

// proposal returns the first proposal that waits. It answers the calls before that.
func (m *model) proposal() *grouptest.Call {
	m.T.Helper()
	for calls := m.Calls(); len(calls) > 0; calls = m.Calls() {
		if calls[0].Kind == grouptest.Commit {
			return calls[0]
		}
		m.Release(calls[0], true)
	}
	m.T.Fatal("nothing is proposed")
	return nil
}

// worker lets the first node join the leader and wait for work.
func (m *model) worker() (*node, *server) {
	n, lead := m.nodes[0], m.server(m.Leader)
	m.act(n, lead)
	m.answerAll()
	m.act(n, lead)
	return n, lead
}

// The entry that creates an instance is lost. The client starts the instance again just before the leader decides that
// the entry is lost. A worker gets the first turn, so the start event waits for the answer of the worker. The entry of
// the decision stores the start event, so that a new leader knows it.
func TestDoubt_CreationHasItsFirstEvent(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		_, lead := m.worker()
		m.start("chain")
		m.client(lead, false)
		m.Pass(uint64(foldPause.Milliseconds()))
		m.Answer(m.proposal(), grouptest.Reply{Err: fault.New(fault.Timeout, "test", "lost")})
		m.answerAll()
		m.Pass(uint64(retryPause.Milliseconds()) - 1)
		m.client(lead, false)
		m.Pass(1)
		m.Release(m.proposal(), true)
		m.Elect(m.Members[1])
	})
	check(t, "a creation that was lost", broken, trace)
}

// The outcome of an entry is unknown, and the leader is deposed before it can find out. The caller learns that the
// entry may have been applied.
func TestDoubt_UnknownOutcomeOfADeposedLeader(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		_, lead := m.worker()
		r := m.start("chain")
		m.client(lead, false)
		m.Pass(uint64(foldPause.Milliseconds()))
		m.Answer(m.proposal(), grouptest.Reply{Err: fault.New(fault.Indeterminate, "test", "leadership was lost")})
		for calls := m.Calls(); len(calls) > 0; calls = m.Calls() {
			m.Answer(calls[0], grouptest.Reply{Err: fault.New(fault.NotLeader, "test", "this server does not lead")})
		}
		m.Mu.Lock()
		defer m.Mu.Unlock()
		if err := m.starts[r].err; !fault.Is(err, fault.Indeterminate) {
			t.Errorf("the start is answered with: %v", err)
		}
	})
	check(t, "an unknown outcome", broken, trace)
}

// The entry that creates an instance with a timer is applied after its caller has given up. The timer fires before the
// leader knows the instance. The timer stays in the log until the leader knows the instance.
func TestDoubt_TimerOfAnUnknownInstanceStays(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		n, lead := m.worker()
		r := m.start("timer")
		m.client(lead, false)
		m.work(n, lead)
		entry := m.proposal()
		m.Answer(entry, grouptest.Reply{Err: fault.New(fault.Indeterminate, "test", "not applied in time")})
		m.Release(m.Calls()[0], true) // the leader does not find the entry
		with := func(f func(k *Keeper)) {
			lead.keeper.mu.Lock()
			f(lead.keeper)
			lead.keeper.mu.Unlock()
			m.Settle()
		}
		with(func(k *Keeper) { k.look(r) }) // the instance does not exist yet
		m.Propose("late", nil, entry.Request)
		with(func(k *Keeper) { k.timers.again(k, r.place()) })
		for range 70 { // the clock of the server may be wrong by a minute
			m.Pass(1000)
			for _, c := range m.Calls() {
				if c.Kind == grouptest.Commit { // the caller of the start has gone
					m.Release(c, true)
				}
			}
		}
	})
	check(t, "a timer of an instance that was created late", broken, trace)
}

// A timer of an earlier generation fires while a worker has the turn of its instance, and an event arrives. The record
// of the timer is removed, and the worker keeps the turn.
func TestDoubt_OldTimerLeavesTheTurn(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		_, lead := m.worker()
		r := m.start("event")
		m.client(lead, false)
		m.Pass(uint64(foldPause.Milliseconds()))
		m.answerAll()
		k := lead.keeper
		k.mu.Lock()
		i := k.instances[r]
		number, key := i.out.number, i.dueKey(1, dueTimer, 7)
		k.mu.Unlock()
		old := dueRecord{generation: i.head.generation - 1, execution: i.head.creation}
		revision := m.Propose("old timer", nil, &command.Request{Kind: command.KindWrite,
			Ops: ops(set(key, old.encode()))}).Revisions[0]
		removed := make(chan error, 1)
		k.mu.Lock()
		done := func(err error) { removed <- err }
		k.push(r, step{do: func(c *change) { c.due(key, revision, dueTimer, &old, done) }})
		k.push(r, step{do: func(c *change) {
			e := turn.Raised("other", nil, time.Time{})
			c.arrive(&arrival{event: e, raw: encodeEvent(e)})
			c.needed = true
		}})
		k.mu.Unlock()
		m.Settle()
		for calls := m.Calls(); len(calls) > 0; calls = m.Calls() {
			first := calls[0]
			for _, c := range calls { // the entry of the instance comes first
				if c.Request != nil && c.Request.Ops[0].Kind == command.OpSet {
					first = c
				}
			}
			m.Release(first, true)
		}
		if err := <-removed; err != nil {
			t.Error(err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if i.out == nil || i.out.number != number {
			t.Error("the turn was taken from the worker")
		}
	})
	check(t, "a timer of an earlier generation", broken, trace)
}

// An event arrives just before a purge, and neither is stored. Both callers learn this.
func TestDoubt_PurgeThatIsNotStored(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		_, lead := m.worker()
		r := m.start("event")
		m.client(lead, false)
		m.Pass(uint64(foldPause.Milliseconds()))
		m.answerAll()
		k, raised, purged := lead.keeper, make(chan error, 1), make(chan error, 1)
		k.mu.Lock()
		k.push(r, step{do: func(c *change) {
			c.event(turn.Raised("other", nil, time.Time{}), 1, func(err error) { raised <- err })
		}})
		k.push(r, step{do: func(c *change) {
			if err := c.purge(); err != nil {
				t.Error(err)
			}
			c.replies = append(c.replies, func(err error) { purged <- err })
		}})
		k.mu.Unlock()
		m.Settle()
		m.Answer(m.proposal(), grouptest.Reply{Err: fault.New(fault.NotLeader, "test", "this server does not lead")})
		m.answerAll()
		for what, answer := range map[string]chan error{"event": raised, "purge": purged} {
			if err := <-answer; !fault.Is(err, fault.NotLeader) {
				t.Errorf("the %s is answered with: %v", what, err)
			}
		}
	})
	check(t, "a purge that is not stored", broken, trace)
}

// An activity is scheduled, and a purge comes before the activity is stored. The log then has no activity of the
// instance.
func TestDoubt_PurgeBehindActivityLeavesNothing(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		_, lead := m.worker()
		k, r := lead.keeper, Ref{modelApp, "purged"}
		started, purged := make(chan error, 1), make(chan error, 1)
		go func() {
			e := turn.Start(&protos.CreateInstanceRequest{InstanceId: r.ID, Name: "event"}, "x", time.Time{})
			started <- k.start(grouptest.WithClient(m.T.Context(), "test"), r, &creation{event: e})
		}()
		await := func(done chan error) {
			for range 100 {
				m.Settle()
				m.answerAll()
				m.Pass(uint64(foldPause.Milliseconds()))
				select {
				case err := <-done:
					if err != nil {
						t.Error(err)
					}
					return
				default:
				}
			}
			t.Error("the call has not returned")
		}
		await(started)
		k.mu.Lock()
		k.push(r, step{do: func(c *change) { c.addTask(c.birth(), &turn.Task{ID: 9, Event: &protos.HistoryEvent{}}) }})
		k.push(r, step{do: func(c *change) { c.tryPurge(true, func(err error) { purged <- err }) }})
		k.mu.Unlock()
		await(purged)
		left, _, err := m.Tip.Records(kv.WorkflowStore, r.key(tableTask, ""), "", 1, pageBytes, 0)
		if err != nil || len(left) > 0 {
			t.Errorf("activities are left: %v, %v", left, err)
		}
	})
	check(t, "a purge behind an activity", broken, trace)
}

// The entry that starts children is applied after its proposal has returned an unknown outcome. The parent is
// terminated before the leader learns that the entry was applied. The children get their messages in order: the start
// first.
func TestDoubt_MessagesKeepTheirOrder(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		n, lead := m.worker()
		r := m.start("child")
		m.client(lead, false)
		m.work(n, lead)
		entry := m.proposal()
		m.Answer(entry, grouptest.Reply{Err: fault.New(fault.Indeterminate, "test", "not applied in time")})
		m.Release(m.Calls()[0], true) // the leader does not find the entry
		m.Propose("late", nil, entry.Request)
		lead.CatchUp()
		k := lead.keeper
		k.mu.Lock()
		k.push(r, step{do: func(c *change) {
			c.event(turn.Terminated(nil, true, time.Time{}), 1, func(error) {})
		}})
		k.mu.Unlock()
		m.Settle()
		m.act(n, lead)
		for range 2 { // the first answer is repeated
			m.work(n, lead)
			m.answerAll()
		}
		if h, _, err := readHeadOf(m.Tip, r); err != nil || !terminal(h.status) {
			t.Errorf("the parent has the status %d, %v", h.status, err)
		}
		for range 40 {
			m.Pass(200)
			m.answerAll()
		}
		for id := range int32(2) {
			h, found, err := readHeadOf(m.Tip, Ref{modelApp, turn.ChildID(r.ID, id)})
			if err != nil || !found || !terminal(h.status) {
				t.Errorf("child %d: found %t, status %d, %v", id, found, h.status, err)
			}
		}
		m.Mu.Lock()
		defer m.Mu.Unlock()
		delete(m.starts, r) // the terminated instance has no result
	})
	check(t, "a parent that is terminated after an unknown outcome", broken, trace)
}
