package raftfsm

import (
	"context"
	"encoding/binary"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// What MethodActor does. The numbers are part of the protocol.
const (
	actorRegister = 1 // begins the session of a host, or describes it anew; answered with its revision
	actorRenew    = 2 // renews the session of a host
	actorLeave    = 3 // ends the session of a host
	actorActivate = 4 // makes a host the owner of an actor; answered with the owner
	actorLocate   = 5 // answered with the host of an actor
	actorRelease  = 6 // removes activations
	actorHosts    = 7 // answered with the hosts of a scope
	actorTransfer = 8 // makes a host the owner of actors that their owner gives up
)

// actorGroup is a group as its Keeper uses it.
type actorGroup struct{ *group.Group }

// Commit implements actors.Group.
func (g actorGroup) Commit(ctx context.Context, r *command.Request) (kv.Result, raftlog.Position, error) {
	a, err := g.ProposeRequest(ctx, r, group.Committed)
	return a.Result, a.Position, err
}

// Confirm implements actors.Group.
func (g actorGroup) Confirm(ctx context.Context) (raftlog.Position, error) {
	ri, err := g.ReadIndex(ctx)
	return ri.Position, err
}

// serveActor answers a call about the directory of a group that this server leads.
func (s *server) serveActor(ctx context.Context, gid uint32, f *frame) ([]byte, error) {
	k := s.actors[gid]
	switch what := f.Byte(); what {
	case actorRegister:
		h := actors.ReadHost(&f.Reader)
		if f.Bad {
			return nil, errFrame(MethodActor)
		}
		revision, err := k.Register(ctx, h)
		return binary.AppendUvarint(nil, revision), err
	case actorRenew:
		host, count := f.Text(), f.Uvarint()
		if f.Bad {
			return nil, errFrame(MethodActor)
		}
		return nil, k.Renew(ctx, host, int(min(count, 1<<31))) //nolint:gosec // bounded
	case actorLeave:
		host := f.Text()
		if f.Bad {
			return nil, errFrame(MethodActor)
		}
		return nil, k.Leave(ctx, host)
	case actorRelease, actorTransfer:
		to := ""
		if what == actorTransfer {
			to = f.Text()
		}
		owned := make([]actors.Owned, 0, f.Count())
		for range cap(owned) {
			owned = append(owned, actors.Owned{Actor: readActor(f), Epoch: f.Uvarint()})
		}
		switch {
		case f.Bad:
			return nil, errFrame(MethodActor)
		case what == actorTransfer:
			return nil, k.Transfer(ctx, owned, to)
		}
		return nil, k.Release(ctx, owned)
	case actorActivate, actorLocate:
		host, a := f.Text(), readActor(f)
		if f.Bad {
			return nil, errFrame(MethodActor)
		}
		return servePlace(ctx, k, what, host, a)
	case actorHosts:
		scope := f.Text()
		if f.Bad {
			return nil, errFrame(MethodActor)
		}
		return serveHosts(k, scope)
	}
	return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "this version does not know the call about an actor")
}

func servePlace(ctx context.Context, k *actors.Keeper, what byte, host string, a actors.Actor) ([]byte, error) {
	if what == actorLocate {
		h, err := k.Locate(ctx, a, host)
		return appendHost(nil, &h), err
	}
	p, err := k.Activate(ctx, host, a)
	return appendPosition(binary.AppendUvarint(appendHost(nil, &p.Owner), p.Epoch), p.Position), err
}

func serveHosts(k *actors.Keeper, scope string) ([]byte, error) {
	hosts, counts, err := k.Hosts(scope)
	b := binary.AppendUvarint(nil, uint64(len(hosts)))
	for i := range hosts {
		b = binary.AppendUvarint(appendHost(b, &hosts[i]), uint64(counts[i])) //nolint:gosec // not negative
	}
	return b, err
}

func appendActor(b []byte, a *actors.Actor) []byte {
	return appendString(appendString(appendString(b, a.Scope), a.Type), a.ID)
}

func readActor(f *frame) actors.Actor {
	return actors.Actor{Scope: f.Text(), Type: f.Text(), ID: f.Text()}
}

func appendHost(b []byte, h *actors.Host) []byte {
	return binary.AppendUvarint(h.Append(b), h.Revision)
}

func readHost(f *frame) actors.Host {
	h := actors.ReadHost(&f.Reader)
	h.Revision = f.Uvarint()
	return h
}

// askActor sends a call to the leader of a group, and retries until the leader answers or ctx ends. A retry is safe
// for every call: the leader answers it with the result of the first attempt, or executes it again without harm.
func (r *router) askActor(ctx context.Context, gid uint32, b []byte) (*frame, error) {
	for {
		out, err := r.replica.ask(ctx, gid, MethodActor, b)
		if err == nil {
			return newFrame(out), nil
		}
		if !r.retry.again(ctx, r.replica, gid, err) {
			if ctx.Err() != nil && fault.Is(err, fault.NotLeader) {
				err = noQuorum("raftfsm.actor", r.replica, gid, err)
			}
			return nil, err
		}
	}
}
