package actors

import (
	"context"
	"encoding/binary"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Directory is a client for the actor records of one application, which show the host that owns each actor. The records
// are in the same Raft group as the keys of the application, so a write can check the owner of an actor. A Directory is
// safe for concurrent use.
type Directory struct {
	access records.Access
	scope  string
	store  string
	app    string
}

// NewDirectory returns the directory of the actors that the application app hosts. The parameter store is the id of the
// state store that holds the state of these actors.
func NewDirectory(a records.Access, store, app string) *Directory {
	return &Directory{access: a, scope: ScopeOf(store, app), store: store, app: app}
}

// ScopeOf returns the Scope of the actors of an application.
func ScopeOf(store, app string) string { return store + "\x00" + app }

func (d *Directory) actor(kind, id string) Actor {
	return Actor{Scope: d.scope, Type: kind, ID: id}
}

// group returns the group of the directory.
func (d *Directory) group(ctx context.Context) (uint32, error) {
	return d.access.Locate(ctx, d.store, d.app+state.Separator)
}

// ask sends a call to the leader of the group, and retries it. The parameter what is the kind of the call, and rest
// appends its arguments. ask returns the answer and the id of the group. A retry is safe for every call: the leader
// returns the result of the first attempt, or executes the call again without harm.
func (d *Directory) ask(ctx context.Context, what byte, rest func([]byte) []byte) (*lenprefix.Reader, uint32, error) {
	gid, err := d.group(ctx)
	if err != nil {
		return nil, 0, err
	}
	out, _, err := d.access.Ask(ctx, gid, Method, rest([]byte{what}))
	return &lenprefix.Reader{Rest: out}, gid, err
}

// Register begins the session of a host and returns the revision of the session. If the session exists, Register only
// updates its actor types and its draining state. If h has the revision of a session that has ended, Register returns
// fault.NotFound.
func (d *Directory) Register(ctx context.Context, h Host) (revision uint64, err error) {
	h.Scope, h.App = d.scope, d.app
	f, _, err := d.ask(ctx, callRegister, func(b []byte) []byte { return encodeHost(b, &h) })
	if err != nil {
		return 0, err
	}
	if revision = f.Uvarint(); f.Bad {
		return 0, records.Truncated(Method)
	}
	return revision, nil
}

// Renew renews the session of a host. count is the number of actors on the host. canGive is true if some of them can be
// transferred to other hosts at this time. Renew returns fault.NotFound if the session has ended.
func (d *Directory) Renew(ctx context.Context, host string, count int, canGive bool) (Advice, error) {
	f, _, err := d.ask(ctx, callRenew, func(b []byte) []byte {
		b = binary.AppendUvarint(lenprefix.Append(b, host), uint64(max(count, 0))) //nolint:gosec // not negative
		return appendFlag(b, canGive)
	})
	if err != nil {
		return Advice{}, err
	}
	p := readAdvice(f)
	if f.Bad {
		return Advice{}, records.Truncated(Method)
	}
	return p, nil
}

// Leave ends the session of a host.
func (d *Directory) Leave(ctx context.Context, host string) error {
	_, _, err := d.ask(ctx, callLeave, func(b []byte) []byte { return lenprefix.Append(b, host) })
	return err
}

// Activated is the result of Directory.Activate.
type Activated struct {
	Owner   Host
	Epoch   uint64
	Session string // session token with which reads see all writes of earlier owners
}

// Activate makes a host the owner of an actor, unless the actor already has an owner, and returns the owner. The
// parameter host is the id of the host's session.
//
// Activate returns fault.NotFound if the session has ended, and fault.Unavailable if the host still accepts no more
// actors when ctx ends.
func (d *Directory) Activate(ctx context.Context, host, kind, id string) (Activated, error) {
	a := d.actor(kind, id)
	f, gid, err := d.ask(ctx, callActivate, func(b []byte) []byte { return appendActor(lenprefix.Append(b, host), &a) })
	if err != nil {
		return Activated{}, err
	}
	out := Activated{Owner: decodeHost(f), Epoch: f.Uvarint()}
	pos := readPosition(f)
	if f.Bad {
		return Activated{}, records.Truncated(Method)
	}
	out.Session = d.access.Token(gid, pos)
	return out, nil
}

// Locate returns the owner of an actor. If the actor has no owner, Locate returns the host that should activate it. The
// parameter prefer is a node id: if several hosts have equally few actors, one on this node is selected, if possible
// (see Keeper.Locate). The answer may be out of date. Locate returns fault.NotFound if no host accepts actors of this
// type.
func (d *Directory) Locate(ctx context.Context, kind, id, prefer string) (Host, error) {
	a := d.actor(kind, id)
	f, _, err := d.ask(ctx, callLocate, func(b []byte) []byte { return appendActor(lenprefix.Append(b, prefer), &a) })
	if err != nil {
		return Host{}, err
	}
	h := decodeHost(f)
	if f.Bad {
		return h, records.Truncated(Method)
	}
	return h, nil
}

// Released identifies an activation that its host releases or transfers to another host.
type Released struct {
	Type, ID string
	Epoch    uint64
}

// Release removes the given activations. It skips an activation if the actor's record has another epoch.
func (d *Directory) Release(ctx context.Context, released []Released) error {
	_, _, err := d.ask(ctx, callRelease, func(b []byte) []byte { return d.appendReleased(b, released) })
	return err
}

func (d *Directory) appendReleased(b []byte, released []Released) []byte {
	b = binary.AppendUvarint(b, uint64(len(released)))
	for i := range released {
		a := d.actor(released[i].Type, released[i].ID)
		b = binary.AppendUvarint(appendActor(b, &a), released[i].Epoch)
	}
	return b
}

// Transfer makes a host the owner of actors that their present owner gives up. newOwner is the id of the host's
// session. Transfer skips an actor if its record has another epoch than its element of released.
//
// Transfer returns fault.NotFound if the session has ended, or if the host accepts no more actors. keep is true if an
// operator moves the actors (see Keeper.Transfer).
func (d *Directory) Transfer(ctx context.Context, released []Released, newOwner string, keep bool) error {
	_, _, err := d.ask(ctx, callTransfer, func(b []byte) []byte {
		return d.appendReleased(appendFlag(lenprefix.Append(b, newOwner), keep), released)
	})
	return err
}

// HostLoad is a host that has a session, with the number of its actors.
type HostLoad struct {
	Host
	Count int // number of actors
}

// Hosts returns the hosts of the application that have a session, and the number of actors of each.
func (d *Directory) Hosts(ctx context.Context) ([]HostLoad, error) {
	f, _, err := d.ask(ctx, callHosts, func(b []byte) []byte { return lenprefix.Append(b, d.scope) })
	if err != nil {
		return nil, err
	}
	out := make([]HostLoad, 0, f.Count())
	for range cap(out) {
		out = append(out, HostLoad{Host: decodeHost(f), Count: int(f.Uvarint())}) //nolint:gosec // from a keeper
	}
	if f.Bad {
		return nil, records.Truncated(Method)
	}
	return out, nil
}

// PlacedActor is an actor that a host owns.
type PlacedActor struct {
	Type, ID, Host string
	Epoch          uint64
}

// List calls visit for each actor of the application, ordered by type and id, until visit returns false.
func (d *Directory) List(ctx context.Context, visit func(PlacedActor) bool) error {
	gid, err := d.group(ctx)
	if err != nil {
		return err
	}
	p := records.Page{Prefix: Activations + d.scope + "\x00", Limit: records.MaxPage}
	for more := true; more; {
		var keys []string
		if keys, more, err = d.access.List(ctx, gid, kv.LockStore, p); err != nil {
			return err
		}
		if len(keys) == 0 {
			return nil
		}
		p.After = keys[len(keys)-1]
		values, err := d.access.Values(ctx, gid, kv.LockStore, keys)
		if err != nil {
			return err
		}
		for i := range values {
			a, there, err := ParseActivation(values[i])
			if err != nil {
				return err
			}
			actor, ok := ParseKey(keys[i])
			if ok && there && !visit(PlacedActor{actor.Type, actor.ID, a.Host, a.Epoch}) {
				return nil
			}
		}
	}
	return nil
}
