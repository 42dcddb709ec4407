package actors

import (
	"context"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// Placed is the result of Keeper.Activate.
type Placed struct {
	Owner    Host
	Epoch    uint64
	Position raftlog.Position // at or after the entry of the activation
}

// Activate makes a host the owner of an actor, unless the actor already has an owner whose session has not ended. It
// returns the owner. The parameter host is the id of the host's session. Activate returns fault.NotFound if this
// session has ended, and fault.Unavailable if the host accepts no more actors.
func (k *Keeper) Activate(ctx context.Context, host string, a Actor) (Placed, error) {
	k.mu.Lock()
	m, err := k.enterLocked(opActivate)
	var s *session
	var h Host
	if err == nil {
		if s = k.sessions[host]; s == nil || s.ending {
			err = errEnded(opActivate)
		} else {
			h = s.Host
		}
	}
	k.mu.Unlock()
	if err != nil {
		return Placed{}, err
	}
	now, owner, err := k.owner(m, a)
	switch {
	case err != nil:
		return Placed{}, err
	case owner.ID != "":
		pos, err := k.group.Confirm(ctx)
		return Placed{owner, now.Epoch, pos}, err
	case h.Draining:
		return Placed{}, fault.New(fault.Unavailable, opActivate, "the host takes no further actors")
	}
	res, pos, err := k.commit(ctx, activate(a, &h, now))
	if err != nil {
		return Placed{}, err
	}
	if res.Outcome != kv.Applied {
		return Placed{}, errAgain(opActivate, nil)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.actors++
	return Placed{h, res.Revisions[0], pos}, nil
}

// owner returns the activation record of an actor, and the host that the record contains. The host is zero if there is
// no record, or if the session of the host has ended.
func (k *Keeper) owner(m *kv.Machine, a Actor) (Activation, Host, error) {
	v, err := m.Get(kv.LockStore, a.Key(), 0)
	if err != nil {
		return Activation{}, Host{}, err
	}
	now, found, err := ParseActivation(v)
	if err != nil || !found {
		return Activation{}, Host{}, err
	}
	h, _, err := readHost(m, now.Host)
	if h.Revision == 0 {
		h = Host{}
	}
	return now, h, err
}

// Locate returns the owner of an actor. If the actor has no owner, Locate returns the host that should activate it.
//
// Locate selects the host with the fewest actors among the hosts that have the actor's type and accept more actors. The
// parameter prefer is the id of a node: if several hosts have equally few actors, one on this node is selected, if
// possible. Locate returns fault.NotFound if no host can take the actor.
//
// The answer may be out of date: only a host knows whether it still owns an actor.
func (k *Keeper) Locate(_ context.Context, a Actor, prefer string) (Host, error) {
	k.mu.Lock()
	m, err := k.enterLocked(opLocate)
	k.mu.Unlock()
	if err != nil {
		return Host{}, err
	}
	if _, owner, err := k.owner(m, a); err != nil || owner.ID != "" {
		return owner, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var best *session
	for _, s := range k.sessions {
		if s.ending || !s.hosts(a.Scope, a.Type) {
			continue
		}
		switch {
		case best == nil, s.actors < best.actors:
			best = s
		case s.actors > best.actors:
		case (s.Node == prefer) != (best.Node == prefer):
			if s.Node == prefer {
				best = s
			}
		case s.ID < best.ID:
			best = s
		}
	}
	if best == nil {
		return Host{}, fault.New(fault.NotFound, opLocate, "no node hosts actors of type "+a.Type)
	}
	best.actors++
	return best.Host, nil
}

// Hosts returns the hosts of a scope that have a session, and how many actors each of them has. If scope is empty, it
// returns the hosts of all scopes.
func (k *Keeper) Hosts(scope string) (hosts []Host, actors []int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := k.enterLocked(opLocate); err != nil {
		return nil, nil, err
	}
	for _, s := range k.sessions {
		if scope == "" || s.Scope == scope {
			hosts, actors = append(hosts, s.Host), append(actors, s.actors)
		}
	}
	return hosts, actors, nil
}
