package raftfsm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/actors"
)

// actorWrite saves one key of actor "1" as an activation.
func actorWrite(t testing.TB, h *raftfsm.Host, value string, a actors.Activated, revision uint64) error {
	t.Helper()
	_, err := h.Store("", "s").Transact(within(t, time.Minute), state.TransactRequest{
		Operations: []state.Operation{{Write: state.Write{Key: state.ActorKey("app", "T", "1", "k"),
			Value: []byte(value)}}},
		Actor: &state.ActorEpoch{App: "app", Type: "T", ID: "1", Epoch: a.Epoch, Host: a.Owner.ID, Revision: revision}})
	return err
}

func TestActors_NewOwnerReadsAndFormerOwnerCannotWrite(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	nodes := c.running()
	side, _ := c.sidecar("side")
	nodes = append(nodes, side)
	ctx := within(t, time.Minute)
	first, last := nodes[0].Actors("", "s", "app"), side.Actors("", "s", "app")
	revision, err := first.Register(ctx, actors.Host{ID: "a", Node: "n1", Server: "s1", Types: []string{"T"}})
	must(t, err)
	old, err := first.Activate(ctx, "a", "T", "1")
	must(t, err)
	must(t, actorWrite(t, nodes[0], "1", old, revision))

	must(t, first.Leave(ctx, "a"))
	if err := actorWrite(t, nodes[0], "2", old, revision); !fault.Is(err, fault.ActorMoved) {
		t.Errorf("a write of the former owner: %v", err)
	}
	if _, err := first.Renew(ctx, "a", 1, true); !fault.Is(err, fault.NotFound) {
		t.Errorf("a renewal of an ended session: %v", err)
	}
	if _, err := last.Locate(ctx, "T", "1", ""); !fault.Is(err, fault.NotFound) {
		t.Errorf("an actor without a host is located: %v", err)
	}
	next, err := last.Register(ctx, actors.Host{ID: "b", Node: "n2", Server: "s2", Types: []string{"T"}})
	must(t, err)
	_, err = last.Renew(ctx, "b", 0, true)
	must(t, err)
	now, err := last.Activate(ctx, "b", "T", "1")
	must(t, err)
	if now.Epoch <= old.Epoch || now.Owner.ID != "b" {
		t.Fatalf("after %+v came %+v", old, now)
	}
	// Every replica that has applied the activation has applied the writes of earlier ones.
	for i, n := range nodes {
		eventually(t, func() error { // a replica that is far behind marks its answer as stale
			item, err := n.Store("", "s").Get(ctx, state.GetRequest{Key: state.ActorKey("app", "T", "1", "k"),
				ReadOptions: state.ReadOptions{Consistency: state.Eventual, Session: now.Session}})
			must(t, err)
			if string(item.Value) != "1" {
				err = fmt.Errorf("node %d reads %q", i, item.Value)
				if item.Level != state.Stale {
					t.Error(err)
				}
			}
			return err
		})
	}
	must(t, actorWrite(t, side, "3", now, next))
	if h, err := first.Locate(ctx, "T", "1", "n1"); err != nil || h.ID != "b" || h.Server != "s2" {
		t.Errorf("located at %+v, %v", h, err)
	}
	hosts, err := first.Hosts(ctx)
	if err != nil || len(hosts) != 1 || hosts[0].ID != "b" {
		t.Errorf("hosts: %+v, %v", hosts, err)
	}
	var listed []actors.PlacedActor
	must(t, first.List(ctx, func(p actors.PlacedActor) bool {
		listed = append(listed, p)
		return true
	}))
	if len(listed) != 1 || listed[0] != (actors.PlacedActor{Type: "T", ID: "1", Host: "b", Epoch: now.Epoch}) {
		t.Errorf("listed %+v", listed)
	}
	third, err := last.Register(ctx, actors.Host{ID: "c", Node: "n3", Server: "s3", Types: []string{"T"}})
	must(t, err)
	given := []actors.Released{{Type: "T", ID: "1", Epoch: now.Epoch}}
	if err := first.Transfer(ctx, given, "nosuch", false); !fault.Is(err, fault.NotFound) {
		t.Errorf("a transfer to a host without session: %v", err)
	}
	must(t, first.Transfer(ctx, given, "c", false))
	if err := actorWrite(t, side, "4", now, next); !fault.Is(err, fault.ActorMoved) {
		t.Errorf("a write of the host that gave the actor away: %v", err)
	}
	before := now
	now, err = last.Activate(ctx, "c", "T", "1")
	must(t, err)
	if now.Epoch <= before.Epoch || now.Owner.ID != "c" {
		t.Fatalf("the transfer of %+v ended in %+v", before, now)
	}
	must(t, actorWrite(t, side, "5", now, third))
	must(t, first.Release(ctx, []actors.Released{{Type: "T", ID: "1", Epoch: now.Epoch}}))
	if err := actorWrite(t, side, "6", now, third); !fault.Is(err, fault.ActorMoved) {
		t.Errorf("a write after the release: %v", err)
	}
}
