package workflows

import (
	"errors"
	"testing"
	"time"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// A new leader cannot read its records at first. The leader reads them again after a pause, although no call comes. So
// a timer fires.
func TestKeeper_ReadsAgainAfterFailedRead(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		n, lead := m.worker()
		m.start("timer")
		m.client(lead, false)
		m.answerAll()
		m.work(n, lead)
		m.answerAll()
		next := m.Members[1]
		next.Apply(int(m.Last())) //nolint:gosec // a few
		repair := next.BreakReads()
		m.Elect(next)
		m.Depose(m.Members[0])
		m.Pass(uint64(retryPause.Milliseconds())) // the second read fails, too
		repair()
		before := m.Last()
		for range 70 { // the clock of the server may be wrong by a minute
			m.Pass(uint64(time.Second.Milliseconds()))
			m.answerAll()
		}
		if m.Last() == before {
			t.Error("the timer has not fired")
		}
	})
	check(t, "a read that fails", broken, trace)
}

// A record cannot be decoded. The leader does not read again, because that would end the streams of its nodes.
func TestKeeper_DamagedRecordEndsNoStreams(t *testing.T) {
	broken, trace := play(t, 1, func(m *model) {
		m.Propose("damage", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{
			{Kind: command.OpSet, Store: kv.WorkflowStore, Key: "?", Value: []byte("?")}}})
		m.Elect(m.Members[1])
		k := m.server(m.Leader).keeper
		for range 3 {
			m.worker()
			k.mu.Lock()
			streams := len(k.sessions)
			k.mu.Unlock()
			if streams == 0 {
				t.Error("the node has no stream")
			}
			m.Pass(uint64(retryPause.Milliseconds()))
		}
		m.Propose("repair", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{
			{Kind: command.OpDelete, Store: kv.WorkflowStore, Key: "?"}}})
	})
	check(t, "a damaged record", broken, trace)
}

// A read has failed, and the Keeper is to read again after a pause.
func TestClose_StopsTheTimerOfTheNextRead(t *testing.T) {
	running := 0
	k := NewKeeper(Options{AfterFunc: func(time.Duration, func()) func() bool {
		running++
		return func() bool { running--; return true }
	}})
	fail := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.repeatAfter(errors.New("a read has failed"))
	}
	fail()
	if running != 1 {
		t.Fatalf("%d timers", running)
	}
	k.Close()
	fail()
	if running != 0 {
		t.Errorf("%d timers run after Close", running)
	}
}
