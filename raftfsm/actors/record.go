package actors

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Durations of the session of a host.
const (
	// RenewEvery is the interval at which a host renews its session.
	RenewEvery = 200 * time.Millisecond
	// Lease is how long a host may serve after it has sent a renewal, provided that the leader answers the renewal.
	Lease = 800 * time.Millisecond
	// Patience is how long the leader waits for a renewal before it ends the session.
	Patience = 1200 * time.Millisecond
	// Takeover is how long a new leader waits for the first renewal of a session. It is longer than any lease from an
	// earlier leader. Such a lease begins before the election of the new leader, because a leader answers a renewal
	// only after a majority has confirmed its term. It ends at most 880 ms after the election if clocks differ in speed
	// by at most 10 %.
	Takeover = time.Second
)

// First bytes of the keys of the records. Package locks uses other bytes in the same store.
const (
	sessionRecord     = "h" // session of a host; removed when the session ends
	descriptionRecord = "y" // description of a host
	activationRecord  = "a" // activation of an actor
	endedRecord       = "g" // mark of a host whose session has ended and whose activations may still have records
)

// The prefixes of the keys of all sessions and all activations.
const (
	Sessions    = sessionRecord
	Activations = activationRecord
)

// SessionKey returns the key of the session record of a host.
func SessionKey(host string) string { return sessionRecord + host }

// DescriptionKey returns the key of the description of a host.
func DescriptionKey(host string) string { return descriptionRecord + host }

// Actor identifies an actor. Scope identifies the store and the application. The actors of one scope are stored
// together.
type Actor struct{ Scope, Type, ID string }

// Key returns the key of the activation record.
func (a Actor) Key() string { return activationRecord + a.Scope + "\x00" + a.Type + "\x00" + a.ID }

// ParseKey returns the actor for a key that Actor.Key has returned. ok is false for any other key. The parts of a
// scope may contain NUL; types and ids may not.
func ParseKey(key string) (a Actor, ok bool) {
	if len(key) == 0 || key[:1] != activationRecord {
		return a, false
	}
	rest, at := key[1:], [2]int{}
	for i, n := len(rest)-1, 1; i >= 0 && n >= 0; i-- {
		if rest[i] == 0 {
			at[n] = i
			n--
			ok = n < 0
		}
	}
	if !ok {
		return a, false
	}
	return Actor{Scope: rest[:at[0]], Type: rest[at[0]+1 : at[1]], ID: rest[at[1]+1:]}, true
}

// Host is one application on one node, in its role as a host of actors.
type Host struct {
	ID       string // id of the session; never used again
	Scope    string
	Node     string // id of the node
	Server   string // id of the node on the peer port
	App      string // id of the application
	Types    []string
	Draining bool   // the host gets no further actors
	Revision uint64 // of the session record; 0 = not known
}

// hosts reports whether the host takes further actors of a scope and a type.
func (h *Host) hosts(scope, kind string) bool {
	if h.Scope != scope || h.Draining {
		return false
	}
	return slices.Contains(h.Types, kind)
}

// shares reports whether both hosts have at least one actor type in common.
func (h *Host) shares(o *Host) bool {
	for _, t := range h.Types {
		if slices.Contains(o.Types, t) {
			return true
		}
	}
	return false
}

func text(b []byte, s string) []byte { return append(binary.AppendUvarint(b, uint64(len(s))), s...) }

// Append appends the encoded host to b. The encoding does not contain the revision.
func (h *Host) Append(b []byte) []byte { return h.appendDescription(h.appendSession(text(b, h.ID))) }

// ReadHost decodes a host that Host.Append has encoded.
func ReadHost(r *lenprefix.Reader) Host {
	h := Host{ID: r.Text()}
	h.readSession(r)
	h.readDescription(r)
	return h
}

func (h *Host) appendSession(b []byte) []byte {
	return text(text(text(text(b, h.Scope), h.Node), h.Server), h.App)
}

func (h *Host) readSession(r *lenprefix.Reader) {
	h.Scope, h.Node, h.Server, h.App = r.Text(), r.Text(), r.Text(), r.Text()
}

func (h *Host) appendDescription(b []byte) []byte {
	b = binary.AppendUvarint(appendFlag(b, h.Draining), uint64(len(h.Types)))
	for _, t := range h.Types {
		b = text(b, t)
	}
	return b
}

func (h *Host) readDescription(r *lenprefix.Reader) {
	h.Draining, h.Types = r.Byte() == 1, nil
	for range r.Count() {
		h.Types = append(h.Types, r.Text())
	}
}

// ParseHost decodes the session record and the description of the host with the given id. It returns false if the
// session of the host has ended.
func ParseHost(id string, session, description kv.Value) (h Host, found bool, err error) {
	if !session.Found || !description.Found {
		return h, false, nil
	}
	h.ID, h.Revision = id, session.Revision
	r, d := lenprefix.Reader{Rest: session.Value}, lenprefix.Reader{Rest: description.Value}
	h.readSession(&r)
	h.readDescription(&d)
	if r.Bad || d.Bad || len(r.Rest)+len(d.Rest) > 0 {
		return h, false, errRecord("host")
	}
	return h, true, nil
}

// Activation is the record of an actor that a host owns.
type Activation struct {
	Host  string // id of the host
	Epoch uint64
}

// ParseActivation decodes an activation record. It returns false if there is no record.
func ParseActivation(v kv.Value) (a Activation, found bool, err error) {
	if !v.Found {
		return a, false, nil
	}
	r := lenprefix.Reader{Rest: v.Value}
	a.Host, a.Epoch = r.Text(), v.Revision
	if r.Bad || len(r.Rest) > 0 {
		return a, false, errRecord("activation")
	}
	return a, true, nil
}

func errRecord(what string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "actors.Parse", Msg: "the directory of actors has a record of an " +
		what + " that cannot be decoded", Hint: "run the newest version on every server"}
}

// Check returns operations that a write of actor state must contain. These operations make the write fail if the
// activation of the actor has another epoch, or if the host's session with the given revision has ended.
func Check(a Actor, epoch uint64, host string, revision uint64) []command.Op {
	return []command.Op{
		{Kind: command.OpCheck, Cond: command.CondRevision, Revision: epoch, Store: kv.LockStore, Key: a.Key()},
		{Kind: command.OpCheck, Cond: command.CondRevision, Revision: revision, Store: kv.LockStore,
			Key: SessionKey(host)},
	}
}

func set(key string, value []byte, cond command.Cond, revision uint64) command.Op {
	return command.Op{Kind: command.OpSet, Cond: cond, Revision: revision, Store: kv.LockStore, Key: key, Value: value}
}

func remove(key string, cond command.Cond, revision uint64) command.Op {
	return command.Op{Kind: command.OpDelete, Cond: cond, Revision: revision, Store: kv.LockStore, Key: key}
}

func check(key string, cond command.Cond, revision uint64) command.Op {
	return command.Op{Kind: command.OpCheck, Cond: cond, Revision: revision, Store: kv.LockStore, Key: key}
}

// register returns the request that begins the session of h. The revision of the session is the first revision in
// the result of the request.
func register(h *Host) *command.Request {
	return &command.Request{Kind: command.KindWrite, Ops: []command.Op{
		set(SessionKey(h.ID), h.appendSession(nil), command.CondAbsent, 0),
		set(DescriptionKey(h.ID), h.appendDescription(nil), command.CondNone, 0),
		check(endedRecord+h.ID, command.CondAbsent, 0),
	}}
}

// describe returns the request that replaces the description of h.
func describe(h *Host) *command.Request {
	return &command.Request{Kind: command.KindWrite, Ops: []command.Op{
		set(DescriptionKey(h.ID), h.appendDescription(nil), command.CondNone, 0),
		check(SessionKey(h.ID), command.CondRevision, h.Revision),
	}}
}

// end returns the request that ends the session of h. The request replaces the session record by a record with the
// prefix endedRecord. That record makes the leader remove the activations of the host. A later request removes the
// record (see swept).
func end(h *Host) *command.Request {
	return &command.Request{Kind: command.KindWrite, Ops: []command.Op{
		remove(SessionKey(h.ID), command.CondRevision, h.Revision),
		remove(DescriptionKey(h.ID), command.CondNone, 0),
		set(endedRecord+h.ID, nil, command.CondNone, 0),
		check(SessionKey(h.ID), command.CondRevision, h.Revision),
	}}
}

// swept returns the request that removes the record that end has left.
func swept(host string) *command.Request {
	return &command.Request{Kind: command.KindWrite,
		Ops: []command.Op{remove(endedRecord+host, command.CondNone, 0)}}
}

// activate returns the request that makes h the owner of an actor. current is the actor's present activation, or zero
// if there is none. If the request is applied, the new epoch is the first revision in its result.
//
// The state machine refuses the request if the activation is no longer current, if the session of h has ended, or if
// the session of current.Host has not ended.
func activate(a Actor, h *Host, current Activation) *command.Request {
	r := &command.Request{Kind: command.KindWrite, Ops: []command.Op{
		set(a.Key(), text(nil, h.ID), command.CondAbsent, 0),
		check(SessionKey(h.ID), command.CondRevision, h.Revision),
	}}
	if current.Epoch != 0 {
		r.Ops[0].Cond, r.Ops[0].Revision = command.CondRevision, current.Epoch
		r.Ops = append(r.Ops, check(SessionKey(current.Host), command.CondAbsent, 0))
	}
	return r
}

// Owned is an actor and the epoch of its activation.
type Owned struct {
	Actor
	Epoch uint64
}

// transfer returns the request that makes h the owner of actors that another host gives up.
func transfer(owned []Owned, h *Host) *command.Request {
	r := &command.Request{Kind: command.KindWrite, Ops: make([]command.Op, 0, len(owned)+1)}
	for i := range owned {
		r.Ops = append(r.Ops, set(owned[i].Key(), text(nil, h.ID), command.CondRevision, owned[i].Epoch))
	}
	r.Ops = append(r.Ops, check(SessionKey(h.ID), command.CondRevision, h.Revision))
	return r
}

// release returns the request that removes activations.
func release(owned []Owned) *command.Request {
	r := &command.Request{Kind: command.KindWrite, Ops: make([]command.Op, len(owned))}
	for i := range owned {
		r.Ops[i] = remove(owned[i].Key(), command.CondRevision, owned[i].Epoch)
	}
	return r
}
