package actorhost

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/internal/peer"
	directory "github.com/quorate/quorate/raftfsm/actors"
)

const (
	// methodHandOver is the call between nodes by which a host gives actors to another one.
	methodHandOver = "actors.handover"
	// handed is how many actors one methodHandOver call moves at most.
	handed = 500

	// rebalances is the maximum number of rounds in which RebalanceActors moves actors. The pause between two rounds is
	// rebalancePause, which is longer than the interval at which a host renews its session.
	rebalances     = 5
	rebalancePause = 300 * time.Millisecond

	opMove      = "actors.Move"
	opRebalance = "actors.Rebalance"
)

// Admin implements the part of the admin API about actors.
type Admin struct {
	Host   *Host
	Logger *slog.Logger
}

// ListActors implements admin.Actors.
func (a Admin) ListActors(ctx context.Context, limit int) ([]schema.ActorsStatus, error) {
	return a.Host.Status(ctx, limit)
}

// MoveActor implements admin.Actors.
func (a Admin) MoveActor(ctx context.Context, r schema.ActorMove) error {
	d, err := a.Host.directoryOf(ctx, r.Type)
	if err != nil {
		return err
	}
	hosts, err := d.Hosts(ctx)
	if err != nil {
		return err
	}
	to := slices.IndexFunc(hosts, func(h directory.HostLoad) bool {
		return h.Node == r.Node && !h.Draining && slices.Contains(h.Types, r.Type)
	})
	if to < 0 {
		return &fault.Error{Code: fault.NotFound, Op: opMove, Msg: "node " + r.Node + " does not host actors of type " +
			r.Type, Hint: "actors list shows the hosts"}
	}
	owner, err := d.Locate(ctx, r.Type, r.ID, r.Node)
	switch {
	case err != nil:
		return err
	case owner.ID == hosts[to].ID:
		return &fault.Error{Code: fault.Conflict, Op: opMove, Msg: "the actor is on node " + r.Node + " or not active"}
	}
	n, err := a.Host.handOver(ctx, owner.Server, hosts[to].ID, hosts[to].App, []api.Actor{{Type: r.Type, ID: r.ID}})
	switch {
	case err != nil:
		return err
	case n.Busy > 0:
		return &fault.Error{Code: fault.Conflict, Op: opMove, Msg: "the actor stays on node " + owner.Node +
			": its running call has not ended within 5 s", Hint: "move it again when the call has ended"}
	case n.Moved == 0:
		return &fault.Error{Code: fault.Conflict, Op: opMove, Msg: "the actor was deactivated or moved in the meantime"}
	}
	a.Logger.Info("an actor was moved by an operator", "type", r.Type, "actor", r.ID, "from", owner.Node, "to", r.Node)
	return nil
}

// RebalanceActors implements admin.Actors. It spreads the actors of a type evenly over their hosts, in at most
// rebalances rounds. One round may not be enough, because a host cannot give away an actor that it has just received.
// The host learns of the actor only when it renews its session.
func (a Admin) RebalanceActors(ctx context.Context, kind string) (all schema.ActorsMoved, err error) {
	d, err := a.Host.directoryOf(ctx, kind)
	if err != nil {
		return all, err
	}
	for attempt := 1; ; attempt++ {
		wanted, n, err := a.rebalance(ctx, d, kind)
		all.Moved, all.Busy = all.Moved+n.Moved, n.Busy
		if err != nil {
			return all, err
		}
		if n.Busy > 0 || wanted == n.Moved || attempt == rebalances {
			break
		}
		select {
		case <-ctx.Done():
			return all, fault.Wrap(ctx.Err(), opRebalance, "the actors are not yet spread evenly")
		case <-time.After(rebalancePause):
		}
	}
	a.Logger.Info("actors were rebalanced by an operator", "type", kind, "moved", all.Moved, "busy", all.Busy)
	return all, nil
}

// rebalance moves actors of a type so that they are spread evenly over their hosts. It returns how many actors had to
// move, how many of them have moved, and how many were too busy to move.
func (a Admin) rebalance(ctx context.Context, d *directory.Directory,
	kind string) (wanted int, all schema.ActorsMoved, err error) {
	hosts, err := d.Hosts(ctx)
	if err != nil {
		return 0, all, err
	}
	hosts = slices.DeleteFunc(hosts, func(h directory.HostLoad) bool {
		return h.Draining || !slices.Contains(h.Types, kind)
	})
	placed := map[string][]api.Actor{} // by session of the host
	if err := d.List(ctx, func(p directory.PlacedActor) bool {
		if p.Type == kind {
			placed[p.Host] = append(placed[p.Host], api.Actor{Type: kind, ID: p.ID})
		}
		return true
	}); err != nil {
		return 0, all, err
	}
	var moving sync.WaitGroup // the calls run concurrently, because each waits for running calls of actors
	var mu sync.Mutex         // guards all and err
	for _, m := range moves(hosts, placed) {
		wanted += len(m.actors)
		for some := range slices.Chunk(m.actors, handed) {
			moving.Go(func() {
				n, e := a.Host.handOver(ctx, m.from.Server, m.to.ID, m.to.App, some)
				mu.Lock()
				defer mu.Unlock()
				all.Moved, all.Busy, err = all.Moved+n.Moved, all.Busy+n.Busy, cmp.Or(err, e)
			})
		}
	}
	moving.Wait()
	return wanted, all, err
}

// move describes a transfer of actors from one host to another.
type move struct {
	from, to *directory.HostLoad
	actors   []api.Actor
}

// moves returns moves that spread the actors evenly: the numbers of actors on any two hosts then differ by at most one.
// As few actors as possible move. The map placed has the actors of each host, by host id.
func moves(hosts []directory.HostLoad, placed map[string][]api.Actor) (out []move) {
	if len(hosts) == 0 {
		return nil
	}
	all := 0
	for i := range hosts {
		all += len(placed[hosts[i].ID])
	}
	// The hosts with the most actors keep the remainder, so that fewer actors move.
	order := make([]*directory.HostLoad, len(hosts))
	for i := range hosts {
		order[i] = &hosts[i]
	}
	slices.SortStableFunc(order, func(a, b *directory.HostLoad) int { return len(placed[b.ID]) - len(placed[a.ID]) })
	share, rest := all/len(hosts), all%len(hosts)
	want := func(i int) int {
		if i < rest {
			return share + 1
		}
		return share
	}
	for from, to := 0, len(order)-1; from < to; {
		surplus := len(placed[order[from].ID]) - want(from)
		lack := want(to) - len(placed[order[to].ID])
		switch {
		case surplus <= 0:
			from++
		case lack <= 0:
			to--
		default:
			n := min(surplus, lack)
			src, dst := placed[order[from].ID], placed[order[to].ID]
			moving := src[len(src)-n:]
			out = append(out, move{order[from], order[to], moving})
			placed[order[from].ID], placed[order[to].ID] = src[:len(src)-n], append(dst, moving...)
		}
	}
	return out
}

// directoryOf returns the directory for an actor type in the namespace of this node. It returns fault.NotFound if no
// application hosts the type.
func (h *Host) directoryOf(ctx context.Context, kind string) (*directory.Directory, error) {
	c, err := h.connection()
	if err != nil {
		return nil, err
	}
	t, err := h.directories.find(ctx, c, knownKey{h.options.Namespace, kind})
	if err != nil {
		return nil, err
	}
	return c.actors(h.options.Namespace, t), nil
}

// handing is the payload of methodHandOver.
type handing struct {
	App    string      `json:"app"`
	To     string      `json:"to"` // session of the new host
	Actors []api.Actor `json:"actors"`
}

// handOver moves actors of an application to another host. The actors are on the node with the given server id, and
// target is the session id of the new host.
func (h *Host) handOver(ctx context.Context, server, target, app string,
	all []api.Actor) (n schema.ActorsMoved, err error) {
	c, err := h.connection()
	if err != nil {
		return n, err
	}
	if server == c.server {
		n.Moved, n.Busy, err = h.HandOver(ctx, app, all, target)
		return n, err
	}
	text, err := json.Marshal(handing{app, target, all})
	if err != nil {
		return n, fault.Wrap(err, opMove, "the request cannot be encoded")
	}
	out, err := h.options.Port.Client().Call(ctx, server, methodHandOver, text)
	if err != nil {
		return n, err
	}
	r := lenprefix.Reader{Rest: out}
	n.Moved = int(min(r.Uvarint(), handed)) //nolint:gosec // bounded
	n.Busy = int(min(r.Uvarint(), handed))  //nolint:gosec // bounded
	return n, nil
}

// HandOverMethod returns the peer method for moving actors. When another node calls the method, this node transfers the
// requested actors to another host.
func (h *Host) HandOverMethod() peer.Method {
	return peer.Method{Name: methodHandOver, Concurrency: 8,
		Handle: func(ctx context.Context, r peer.Request) ([]byte, error) {
			var in handing
			if err := json.Unmarshal(r.Payload, &in); err != nil {
				return nil, fault.New(fault.Invalid, opMove, "the request of another node cannot be decoded")
			}
			moved, busy, err := h.HandOver(ctx, in.App, in.Actors, in.To)
			if err != nil {
				return nil, err
			}
			out := binary.AppendUvarint(nil, uint64(moved))     //nolint:gosec // not negative
			return binary.AppendUvarint(out, uint64(busy)), nil //nolint:gosec // not negative
		}}
}

var _ actors.Carrier = (*Host)(nil)
