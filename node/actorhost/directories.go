package actorhost

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/fault"
	directory "github.com/quorate/quorate/raftfsm/actors"
)

// knownFor is how long a node caches the record of an actor type.
const knownFor = 10 * time.Second

// typeRecord says which application hosts an actor type. It is stored as a note, which is a small named record in the
// replicated data.
type typeRecord struct {
	App   string `json:"app"`
	Store string `json:"store"` // of the directory

	// Unhosted is the Unix time of the first attempt of another application to claim the type while no node hosted it.
	// 0 = there was no such attempt, or a later attempt has found a host of the type.
	Unhosted int64 `json:"unhosted,omitempty"`
}

// freeAfter is how long an actor type must be without a host before another application may claim it.
const freeAfter = 10 * time.Minute

// wanted returns the record to store when another application tries to claim the actor type of t at the time now. The
// parameter hosted is true if some node hosts the type now.
//
// Usually the result is t, with an updated field Unhosted. The result is claim, the record of the other application, if
// attempts have found no host for at least freeAfter.
func (t typeRecord) wanted(claim typeRecord, hosted bool, now time.Time) typeRecord {
	switch {
	case hosted:
		t.Unhosted = 0
	case t.Unhosted == 0:
		t.Unhosted = now.Unix()
	case now.Sub(time.Unix(t.Unhosted, 0)) >= freeAfter:
		return claim
	}
	return t
}

// directories implements actors.Directories.
type directories struct {
	host  *Host
	mu    sync.Mutex
	known map[knownKey]knownType
}

type knownKey struct{ namespace, kind string }

type knownType struct {
	typeRecord
	at time.Time
}

// typeNote returns the name of the note that has the typeRecord of an actor type.
func typeNote(namespace, kind string) string { return "actortype/" + namespace + "/" + kind }

// Claim implements actors.Directories.
func (d *directories) Claim(ctx context.Context, app, kind string) (actors.Directory, error) {
	o := &d.host.options
	store, err := o.StoreOf(app)
	if err != nil {
		return nil, err
	}
	c, err := d.host.connection()
	if err != nil {
		return nil, err
	}
	want := typeRecord{App: app, Store: store}
	for {
		now, revision, err := d.read(ctx, c, knownKey{o.Namespace, kind})
		next := want
		switch {
		case err != nil:
			return nil, err
		case now == want:
			d.remember(knownKey{o.Namespace, kind}, want)
			return c.directory(o.Namespace, want), nil
		case revision != 0 && now.App != app:
			hosted, err := hosted(ctx, c.actors(o.Namespace, now), kind)
			if err != nil {
				return nil, err
			}
			if next = now.wanted(want, hosted, time.Now()); next == now {
				return nil, &fault.Error{Code: fault.Conflict, Op: "actors.Claim", Key: kind,
					Msg: "actors of type " + kind + " are hosted by the application " + now.App,
					Hint: "give one of the two types another name, or stop that application: the type is free when " +
						"no node has hosted it for ten minutes"}
			}
		case revision != 0 && now.Store != store:
			return nil, &fault.Error{Code: fault.Conflict, Op: "actors.Claim", Key: kind,
				Msg:  "the state of actors of type " + kind + " is in the store " + now.Store + " and not in " + store,
				Hint: "mark the same store with actorStateStore on every node"}
		}
		text, err := json.Marshal(next)
		if err != nil {
			return nil, err
		}
		_, err = c.store.SetNote(ctx, typeNote(o.Namespace, kind), text, revision)
		if err != nil && !fault.Is(err, fault.Conflict) {
			return nil, err
		}
	}
}

// hosted reports whether any node hosts an actor type, according to the directory of the application that owns the
// type.
func hosted(ctx context.Context, d *directory.Directory, kind string) (bool, error) {
	hosts, err := d.Hosts(ctx)
	return slices.ContainsFunc(hosts, func(h directory.HostLoad) bool { return slices.Contains(h.Types, kind) }), err
}

func (d *directories) read(ctx context.Context, c *connection, key knownKey) (t typeRecord, revision uint64,
	err error) {
	n, err := c.store.Note(ctx, typeNote(key.namespace, key.kind))
	if err != nil || n.Revision == 0 {
		return t, 0, err
	}
	if err := json.Unmarshal(n.Value, &t); err != nil {
		return t, 0, &fault.Error{Code: fault.Corrupt, Op: "actors.Find", Msg: "the record of actor type " + key.kind +
			" cannot be read"}
	}
	return t, n.Revision, nil
}

// Find implements actors.Directories.
func (d *directories) Find(ctx context.Context, namespace, kind string) (api.App, actors.Directory, error) {
	c, err := d.host.connection()
	if err != nil {
		return api.App{}, nil, err
	}
	namespace = cmp.Or(namespace, d.host.options.Namespace)
	t, err := d.find(ctx, c, knownKey{namespace, kind})
	if err != nil {
		return api.App{}, nil, err
	}
	return api.App{ID: t.App, Namespace: invoke.CanonicalNamespace(namespace)}, c.directory(namespace, t), nil
}

// find returns the record of an actor type. The record may be out of date by up to knownFor. If no application hosts
// the type, find returns fault.NotFound.
func (d *directories) find(ctx context.Context, c *connection, key knownKey) (typeRecord, error) {
	d.mu.Lock()
	k, known := d.known[key]
	d.mu.Unlock()
	if !known || time.Since(k.at) > knownFor {
		t, revision, err := d.read(ctx, c, key)
		if err != nil {
			return t, err
		}
		if revision == 0 {
			return t, fault.New(fault.NotFound, "actors.Find", "no application hosts actors of type "+key.kind)
		}
		return d.remember(key, t), nil
	}
	return k.typeRecord, nil
}

// remember caches the current record of an actor type for later calls of find, and returns the record.
func (d *directories) remember(key knownKey, t typeRecord) typeRecord {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[key] = knownType{t, time.Now()}
	return t
}

// actors returns the directory of the application that hosts a type.
func (c *connection) actors(namespace string, t typeRecord) *directory.Directory {
	return c.store.Actors(namespace, t.Store, t.App)
}

func (c *connection) directory(namespace string, t typeRecord) actors.Directory {
	return &oneDirectory{c.actors(namespace, t), c}
}

// oneDirectory implements actors.Directory.
type oneDirectory struct {
	*directory.Directory
	at *connection
}

func ownerOf(h *directory.Host) actors.Owner {
	return actors.Owner{Session: h.ID, Node: h.Node, Server: h.Server}
}

// Register implements actors.Directory.
func (d *oneDirectory) Register(ctx context.Context, r actors.Registration) (uint64, error) {
	return d.Directory.Register(ctx, directory.Host{ID: r.Session, Revision: r.Revision, Node: d.at.node,
		Server: d.at.server, Types: r.Types, Draining: r.Draining})
}

// Activate implements actors.Directory.
func (d *oneDirectory) Activate(ctx context.Context, session, kind, id string) (actors.Activation, error) {
	a, err := d.Directory.Activate(ctx, session, kind, id)
	return actors.Activation{Owner: ownerOf(&a.Owner), Epoch: a.Epoch, Token: a.Session}, err
}

// Locate implements actors.Directory.
func (d *oneDirectory) Locate(ctx context.Context, kind, id string) (actors.Owner, error) {
	h, err := d.Directory.Locate(ctx, kind, id, d.at.node)
	return ownerOf(&h), err
}

// Renew implements actors.Directory.
func (d *oneDirectory) Renew(ctx context.Context, session string, count int, gives bool) (actors.Advice, error) {
	p, err := d.Directory.Renew(ctx, session, count, gives)
	out := actors.Advice{Give: p.Give, To: p.To.ID, Types: p.To.Types}
	for _, a := range p.Take {
		out.Take = append(out.Take, api.Actor{Type: a.Type, ID: a.ID})
	}
	return out, err
}

// Release implements actors.Directory.
func (d *oneDirectory) Release(ctx context.Context, released []actors.Released) error {
	return d.Directory.Release(ctx, releasedOf(released))
}

// Transfer implements actors.Directory.
func (d *oneDirectory) Transfer(ctx context.Context, released []actors.Released, to actors.Target) error {
	return d.Directory.Transfer(ctx, releasedOf(released), to.Session, to.Keep)
}

func releasedOf(released []actors.Released) []directory.Released {
	out := make([]directory.Released, len(released))
	for i, r := range released {
		out[i] = directory.Released(r)
	}
	return out
}
