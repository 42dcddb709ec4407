package due_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/grouptest"
)

const callDeliver = "deliver"

// member is one server of the group with its Keeper.
type member struct {
	*grouptest.Member
	model  *model
	keeper *due.Keeper // guarded by Group.Mu
}

// open starts a server. Its wall clock is right, or up to an hour behind, or up to 20 seconds ahead.
func (s *member) open() {
	k := due.NewKeeper(due.Options{Logger: slog.New(slog.DiscardHandler), AfterFunc: s.AfterFunc})
	s.StartClocks(3_600_000, 20_000)
	s.Mu.Lock()
	s.keeper = k
	s.Mu.Unlock()
	k.Deliver(due.KindJob, s)
	k.Attach(s)
}

// Room implements due.Deliverer.
func (s *member) Room(due.Home) int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.model.room
}

// Deliver implements due.Deliverer.
func (s *member) Deliver(ctx context.Context, t *due.Tick) (due.Result, error) {
	r := s.Wait(ctx, &grouptest.Call{Kind: callDeliver, Label: t.Keys(t.Name)[0], Data: &delivery{Tick: *t}})
	answer, known := r.Value.(due.Result)
	if !known {
		answer = due.Undelivered
	}
	return answer, r.Err
}

func (m *model) server(at *grouptest.Member) *member { return m.servers[at.ID-1] }

// restart ends a server and starts it again.
func (m *model) restart(s *member) {
	m.End(s.Member)
	s.keeper.Close()
	m.Settle()
	s.open()
	m.Settle()
}

// release answers one call.
func (m *model) release(c *grouptest.Call, whole bool) {
	if c.Kind != callDeliver {
		m.Release(c, whole)
		return
	}
	d, r := c.Data.(*delivery), due.Done
	if !whole {
		r = []due.Result{due.Done, due.Done, due.Done, due.Done, due.Unknown, due.Failed, due.Failed, due.Undelivered,
			due.Undelivered, due.Cancel}[m.Rand.IntN(10)]
	}
	out := grouptest.Reply{Value: r}
	if r == due.Failed || r == due.Undelivered {
		out.Err = fault.New(fault.Internal, "test", "no luck")
	}
	d.answered, d.result = m.server(c.Member).Now(), r
	m.Note("%d ms: %s, tick %d.%d attempt %d, is answered with %d", m.Elapsed, c.Name(), d.Revision, d.Number,
		d.Attempt, r)
	m.Answer(c, out)
}

// flightOf identifies the work of which a Keeper has at most one tick under way.
type flightOf struct {
	member *grouptest.Member
	key    string // of the state
}

// delivery is one delivery of a tick.
type delivery struct {
	due.Tick
	fired    uint64 // cluster time at the server when it was handed out
	answered uint64 // cluster time at the server when it was answered; 0 = not answered
	result   due.Result
}

// proposal is what the model records about a proposal.
type proposal struct {
	now    uint64    // cluster time at the server when it was made
	flight *delivery // newest delivery of the same work at this server, if a Keeper has proposed
}

// client is one operation of a client.
type client struct {
	id     int
	what   string
	put    due.Put
	before []uint64 // revisions of work with the same name that were stored before the operation began
	done   bool
}

func (c *client) String() string { return fmt.Sprintf("client %d: %s", c.id, c.what) }
