package transport

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// answering is a group whose other servers have recorded nothing and answer at once.
type answering struct{ servers []raft.Server }

func (a answering) Servers() []raft.Server { return a.servers }
func (a answering) Shown() raftlog.Seen    { return raftlog.Seen{} }
func (a answering) Recall(context.Context, raft.ServerID, raft.ServerID, raftlog.Seen) (raftlog.Seen, error) {
	return raftlog.Seen{}, nil
}

// A leader adds a server that it has never met. The first message to the new server must make the Witness query that
// server at once. Otherwise a joining server would have to wait for the next regular round.
func TestWitness_QueriesAtOnceBeforeFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := answering{servers: []raft.Server{{ID: "a", Suffrage: raft.Voter}}}
		w := NewWitness(WitnessConfig{
			Ask: group, Self: "a", Timeout: time.Second, Every: time.Hour, Members: group,
		}, &SeenTable{})
		stop := make(chan struct{})
		go w.Run(t.Context(), stop)
		synctest.Wait() // there is no server to query yet
		begun := time.Now()
		if w.Passes("b") == nil {
			t.Fatal("a message passes before the other server has answered")
		}
		synctest.Wait()
		if err := w.Passes("b"); err != nil || time.Since(begun) > time.Second {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		close(stop)
	})
}

// lossy is a server that records every report, and whose first answers are lost.
type lossy struct {
	answering
	table SeenTable
	lose  int
}

func (l *lossy) Shown() raftlog.Seen { return raftlog.Seen{Term: 3, Vote: 3, Committed: 9} }

func (l *lossy) Recall(_ context.Context, _, self raft.ServerID, now raftlog.Seen) (raftlog.Seen, error) {
	before := l.table.Note(self, now)
	if l.lose--; l.lose >= 0 {
		return raftlog.Seen{}, fault.New(fault.Indeterminate, "test", "the answer was lost")
	}
	return before, nil
}

// failing records a fatal error.
type failing struct{ err error }

func (f *failing) Fatal(err error) { f.err = err }

// The group has continued since this server opened it. If an answer to a query of this server is lost, the query is
// repeated. The second answer must not contain what this incarnation itself has reported. Otherwise the server would
// take its own data for an older copy.
func TestWitness_LostAnswerDoesNotCountAsEarlierData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := &lossy{answering: answering{servers: []raft.Server{{ID: "a", Suffrage: raft.Voter},
			{ID: "b", Suffrage: raft.Voter}}}, lose: 3}
		process := &failing{}
		w := NewWitness(WitnessConfig{Ask: other, Self: "a", Timeout: time.Second, Every: time.Hour, Members: other,
			Process: process}, new(SeenTable))
		stop := make(chan struct{})
		go w.Run(t.Context(), stop)
		defer close(stop)
		<-time.After(time.Minute)
		if process.err != nil {
			t.Errorf("an intact server was refused: %v", process.err)
		}
		if err := w.Passes("b"); err != nil {
			t.Errorf("after the answer: %v", err)
		}
		if got := other.table.Note("a", raftlog.Seen{}); got != other.Shown() {
			t.Errorf("the other server has recorded %+v, want %+v", got, other.Shown())
		}
	})
}
