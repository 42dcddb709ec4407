package due

import (
	"context"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// OpPut is the operation that errors of Put name (see fault.Error).
const OpPut = "due.Put"

const (
	opRemove = "due.Remove"
	opRun    = "due.Run"
)

// Put describes work to store.
type Put struct {
	Home
	Name      string
	Spec      Spec   // without Until and Revision
	Due       string // the first tick, see ParseMoment; empty = by the schedule, after now
	TTL       string // when the work ends, see ParseMoment; a duration begins at Due, or now; empty = no end
	Overwrite bool   // replace work with the same name

	// ID makes the state machine apply the put only once, even if the call is repeated. Zero = a repeated call may
	// store the work again if the work has ended in the meantime.
	ID command.RequestID
}

// Resolve returns the work that p stores, with its first tick. The parameter now is the current cluster time. Resolve
// returns fault.Invalid if a time or the schedule of p is not valid.
func (p *Put) Resolve(now uint64) (Work, error) {
	w := Work{Home: p.Home, Name: p.Name, Spec: p.Spec}
	s, err := parse(p.Spec.Schedule)
	if err != nil {
		return w, inField("schedule", err)
	}
	first := now
	switch {
	case p.Due != "":
		if first, err = ParseMoment(p.Due, now); err != nil {
			return w, inField("dueTime", err)
		}
	case s.repeats():
		var ok bool
		if first, ok = s.next(now, now); !ok {
			return w, inField("schedule", invalid("it has no tick"))
		}
	}
	if p.TTL != "" {
		from := now
		if p.Due != "" {
			from = first
		}
		if w.Spec.Until, err = ParseMoment(p.TTL, from); err != nil {
			return w, inField("ttl", err)
		}
		if w.Spec.Until <= now {
			return w, inField("ttl", invalid("it has ended already"))
		}
	}
	w.State.Due, w.State.At = first, first
	return w, nil
}

// inField returns fault.Invalid with the name of the field and the text of err.
func inField(name string, err error) error { return invalid(name + ": " + fault.Text(err)) }

// Put stores work and returns its revision. It must be called at the leader. It returns fault.Conflict if work with
// this name exists and p.Overwrite is false. It returns fault.Overloaded if the Home has reached the limit of stored
// work. The other errors are those of p.Resolve.
//
// If the stored work has the same Spec.Request, this call repeats an earlier one. Put then changes nothing and returns
// the revision of that work.
//
// If p.ID is set, the group remembers the result of the call under this ID. Put returns revision 0 if a concurrent
// change of the work made the call fail, or if the group no longer knows the ID. The caller must then use another ID.
func (k *Keeper) Put(ctx context.Context, p *Put) (revision uint64, err error) {
	g, err := k.leader(OpPut)
	if err != nil {
		return 0, err
	}
	sure := false // a majority has confirmed this leader, so old is up to date
	for {
		old, found, err := Read(g.Machine(), p.Home, p.Name)
		if err != nil {
			return 0, err
		}
		now := g.Now()
		expired := found && old.expired(now)
		switch {
		case found && p.Spec.Request != "" && old.Spec.Request == p.Spec.Request:
			return old.Spec.Revision, nil
		case found && !p.Overwrite && !expired:
			if !sure {
				if err := g.Confirm(ctx); err != nil {
					return 0, err
				}
				sure = true
				continue
			}
			return 0, fault.New(fault.Conflict, OpPut, "there is one with that name")
		}
		w, err := p.Resolve(now)
		if err != nil {
			return 0, err
		}
		previous := &old
		if !found {
			previous = nil
			if err := k.reserve(g, p.Home); err != nil {
				return 0, err
			}
		}
		res, err := g.Commit(ctx, &command.Request{Kind: command.KindWrite, ID: p.ID, Ops: PutOps(&w, previous)})
		if err != nil {
			return 0, err
		}
		if res.Outcome == kv.Applied {
			return res.Revisions[1], nil
		}
		if !found {
			k.freed(p.Home, 1)
		}
		if p.ID.Origin != 0 {
			return 0, nil // a further attempt with this ID would get the same result
		}
		sure = false // the work has changed since it was read
	}
}

// The results of RemoveAs. The numbers are part of the protocol.
const (
	RemovedNone = 0 // there is no such work
	RemovedWork = 1 // an attempt with this id has removed the work
	// RemovedNot means that a concurrent change of the work made the call fail. No attempt with this id has changed
	// anything, and none will. The caller must repeat the call with another id.
	RemovedNot = 2
	// RemovedUnknown means that the group does not know the id. This attempt has changed nothing, but an earlier one
	// may have removed the work.
	RemovedUnknown = 3
)

// Remove removes the work with this name, and cancels its running delivery. The result removed is false if there is no
// such work. Remove must be called at the leader.
func (k *Keeper) Remove(ctx context.Context, h Home, name string) (removed bool, err error) {
	for {
		n, err := k.RemoveAs(ctx, command.RequestID{}, h, name)
		if err != nil || n != RemovedNot {
			return n == RemovedWork, err
		}
	}
}

// RemoveAs works like Remove, but returns one of the constants RemovedNone to RemovedUnknown. Calls with the same id
// remove work only once, so a late repetition cannot remove new work with the same name. A zero id gives no such
// protection.
func (k *Keeper) RemoveAs(ctx context.Context, id command.RequestID, h Home, name string) (n uint64, err error) {
	g, err := k.leader(opRemove)
	if err != nil {
		return 0, err
	}
	for sure := false; ; sure = true {
		w, found, err := Read(g.Machine(), h, name)
		switch {
		case err != nil:
			return 0, err
		case !found && sure:
			return RemovedNone, nil
		case !found:
			if err := g.Confirm(ctx); err != nil {
				return 0, err
			}
			continue
		}
		res, err := g.Commit(ctx, &command.Request{Kind: command.KindWrite, ID: id, Ops: RemoveOps(&w)})
		switch {
		case err != nil:
			return 0, err
		case res.Outcome == kv.Stale:
			return RemovedUnknown, nil
		case res.Outcome != kv.Applied:
			return RemovedNot, nil
		}
		if !res.Replayed {
			k.removed(h, name)
		}
		return RemovedWork, nil
	}
}

// removed updates the Keeper after work was removed. It makes room for other work in the home. It also cancels the
// deliveries of the removed work, even during a pause between two deliveries.
func (k *Keeper) removed(h Home, names ...string) {
	k.freed(h, len(names))
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		key := flightKey{h, name}
		delete(k.strikes, key)
		if f := k.flights[key]; f != nil {
			f.cancel()
		}
	}
}

// RemovePrefix removes from a home all work with names that begin with prefix. It returns the number of removed items.
// It must be called at the leader. If some items cannot be decoded, RemovePrefix removes the rest and returns
// fault.Corrupt. After any other error, some of the items may already be removed.
func (k *Keeper) RemovePrefix(ctx context.Context, h Home, prefix string) (removed int, err error) {
	g, err := k.leader(opRemove)
	if err != nil {
		return 0, err
	}
	if err := g.Confirm(ctx); err != nil {
		return 0, err
	}
	var corrupt error
	for after, more := "", true; more; {
		var found []kv.Listed
		if found, more, err = g.Machine().List(kv.DueStore, h.stateKey(prefix), after, page, 0); err != nil {
			return removed, err
		}
		if len(found) == 0 {
			break
		}
		after = found[len(found)-1].Key
		n, err := k.removeListed(ctx, g, h, found)
		removed += n
		switch {
		case fault.Is(err, fault.Corrupt):
			corrupt = err
		case err != nil:
			return removed, err
		}
	}
	return removed, corrupt
}

// removeListed removes the work whose states are listed, in one request. If some of the work has changed in the
// meantime, it removes each item with a request of its own. It returns fault.Corrupt if some items cannot be decoded;
// these items stay.
func (k *Keeper) removeListed(ctx context.Context, g records.Group, h Home, states []kv.Listed) (removed int,
	err error) {
	keys := make([]string, len(states))
	for i := range states {
		keys[i] = states[i].Key
	}
	values, err := g.Machine().GetMany(kv.DueStore, keys, 0)
	if err != nil {
		return 0, err
	}
	var names []string
	var ops []command.Op
	var corrupt error
	for i, v := range values {
		name := keys[i][len(h.States()):]
		s, ok := parseState(v)
		switch {
		case !v.Found: // it has ended since it was listed
		case !ok:
			corrupt = errUndecodable(name)
		default:
			names = append(names, name)
			ops = append(ops, RemoveOps(&Work{Home: h, Name: name, State: s})...)
		}
	}
	if len(names) == 0 {
		return 0, corrupt
	}
	res, err := g.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: ops})
	switch {
	case err != nil:
		return 0, err
	case res.Outcome == kv.Applied:
		k.removed(h, names...)
		return len(names), corrupt
	}
	for _, name := range names {
		was, err := k.Remove(ctx, h, name)
		switch {
		case fault.Is(err, fault.Corrupt):
			corrupt = err
		case err != nil:
			return removed, err
		case was:
			removed++
		}
	}
	return removed, corrupt
}

// Run makes the named work due now. It returns false if there is no such work. It must be called at the leader.
func (k *Keeper) Run(ctx context.Context, h Home, name string) (found bool, err error) {
	return k.change(ctx, opRun, h, name, func(w *Work, now uint64) []command.Op {
		next := *w
		next.State.Due, next.State.At = min(w.State.Due, now), min(w.State.At, now)
		return stateOps(&next, w)
	})
}

// change reads work and commits the operations that f returns for it. If the work has changed between the read and
// the commit, change starts again. It returns false if there is no such work, or if f returns no operations.
func (k *Keeper) change(ctx context.Context, op string, h Home, name string,
	f func(w *Work, now uint64) []command.Op) (bool, error) {
	g, err := k.leader(op)
	if err != nil {
		return false, err
	}
	for sure := false; ; {
		w, found, err := Read(g.Machine(), h, name)
		if err != nil {
			return false, err
		}
		var ops []command.Op
		if found {
			ops = f(&w, g.Now())
		}
		if len(ops) == 0 {
			if sure {
				return false, nil
			}
			if err := g.Confirm(ctx); err != nil {
				return false, err
			}
			sure = true
			continue
		}
		res, err := g.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: ops})
		if err != nil {
			return false, err
		}
		if res.Outcome == kv.Applied {
			return true, nil
		}
		sure = false
	}
}

// leader returns the group if this server leads it, and fault.NotLeader otherwise. It returns fault.Unavailable before
// Attach and after Close.
func (k *Keeper) leader(op string) (records.Group, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.group == nil || k.closed {
		return nil, fault.New(fault.Unavailable, op, "this node is starting or shutting down")
	}
	if !k.group.Leading() {
		return nil, fault.New(fault.NotLeader, op, "this server does not lead the group of the work")
	}
	return k.group, nil
}
