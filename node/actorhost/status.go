package actorhost

import (
	"context"
	"encoding/json"
	"sort"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	directory "github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/due"
)

// Status describes the actors of all applications in the namespace of this node. The result has one element for each
// application and store. Each element lists at most limit active actors and at most limit reminders. Status reads the
// parts one after the other, so the result may mix states of different moments.
func (h *Host) Status(ctx context.Context, limit int) ([]schema.ActorsStatus, error) {
	c, err := h.connection()
	if err != nil {
		return nil, err
	}
	prefix := typeNote(h.options.Namespace, "")
	names, err := c.store.NoteNames(ctx, prefix)
	if err != nil {
		return nil, err
	}
	types := map[typeRecord][]string{}
	for _, name := range names {
		n, err := c.store.Note(ctx, name)
		if err != nil {
			return nil, err
		}
		var t typeRecord
		if err := json.Unmarshal(n.Value, &t); err != nil {
			continue // Find reports the error
		}
		t.Unhosted = 0
		types[t] = append(types[t], name[len(prefix):])
	}
	out := make([]schema.ActorsStatus, 0, len(types))
	for t, names := range types {
		one := schema.ActorsStatus{App: t.App, Store: t.Store, Types: names}
		if err := describe(ctx, c.actors(h.options.Namespace, t), &one, limit); err != nil {
			return nil, err
		}
		if err := h.addReminders(ctx, c, &one, limit); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	sort.Slice(out, func(i, k int) bool {
		return out[i].App < out[k].App || out[i].App == out[k].App && out[i].Store < out[k].Store
	})
	return out, nil
}

// describe adds the hosts and at most limit active actors of a directory to out.
func describe(ctx context.Context, d *directory.Directory, out *schema.ActorsStatus, limit int) error {
	hosts, err := d.Hosts(ctx)
	if err != nil {
		return err
	}
	nodes := map[string]string{} // by session
	for i := range hosts {
		one := &hosts[i]
		nodes[one.ID] = one.Node
		out.Hosts = append(out.Hosts, schema.ActorHostStatus{Node: one.Node, Types: one.Types, Draining: one.Draining,
			Actors: one.Count})
	}
	sort.Slice(out.Hosts, func(i, k int) bool { return out.Hosts[i].Node < out.Hosts[k].Node })
	return d.List(ctx, func(a directory.PlacedActor) bool {
		if len(out.Actors) == limit {
			out.More = true
			return false
		}
		out.Actors = append(out.Actors, schema.ActorStatus{Type: a.Type, ID: a.ID, Node: nodes[a.Host], Epoch: a.Epoch})
		return true
	})
}

// addReminders adds at most limit pending reminders of the application to out.
func (h *Host) addReminders(ctx context.Context, c *connection, out *schema.ActorsStatus, limit int) error {
	if limit == 0 {
		return nil
	}
	namespace := h.options.Namespace
	list, more, err := c.store.DueWork().List(ctx,
		due.Home{Kind: due.KindReminder, Store: namespace + "/" + out.Store, Prefix: out.App}, "", "", limit)
	if err != nil {
		return err
	}
	out.MoreReminders = more
	at := func(ms uint64) time.Time {
		return time.UnixMilli(int64(ms)).UTC() //nolint:gosec // before the year 10000
	}
	for i := range list {
		w := &list[i]
		r, err := reminderOf(w.Name, w.Spec.Payload)
		if err != nil {
			return err
		}
		out.Reminders = append(out.Reminders, schema.ActorReminder{Type: r.Actor.Type, ID: r.Actor.ID,
			JobStatus: schema.JobStatus{App: out.App, Namespace: namespace, Name: r.Name, Schedule: r.Period,
				Due: at(w.State.Due), Next: at(w.State.At), Ticks: w.State.Ticks, Attempts: w.State.Attempt,
				Error: w.State.Error}})
	}
	return nil
}
