package transport

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/raftlog"
)

// answering is a group whose other servers have recorded nothing and answer at once.
type answering struct{ servers []raft.Server }

func (a answering) Servers() []raft.Server { return a.servers }
func (a answering) Shown() raftlog.Seen    { return raftlog.Seen{} }
func (a answering) Recall(context.Context, raft.ServerID, raft.ServerID, raftlog.Seen) (raftlog.Seen, error) {
	return raftlog.Seen{}, nil
}

// A leader adds a server that it has never met. Its first message must make the Witness query that server at
// once. Otherwise a joining server would have to wait for the next regular round.
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
