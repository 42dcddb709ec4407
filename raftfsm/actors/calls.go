package actors

import (
	"context"
	"encoding/binary"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/records"
)

// Method is the call between nodes about the directory of actors.
const Method = "raft.actor"

// What Method does. The numbers are part of the protocol.
const (
	callRegister = 1 // begins the session of a host, or describes it anew; answered with its revision
	callRenew    = 2 // renews the session of a host
	callLeave    = 3 // ends the session of a host
	callActivate = 4 // makes a host the owner of an actor; answered with the owner
	callLocate   = 5 // answered with the host of an actor
	callRelease  = 6 // removes activations
	callHosts    = 7 // answered with the hosts of a scope
	callTransfer = 8 // makes a host the owner of actors that their owner gives up
)

// Serve answers a call about the actor directory of a group that this server leads. Any node may send the call, also
// this one.
func (k *Keeper) Serve(ctx context.Context, r *lenprefix.Reader) ([]byte, error) {
	switch what := r.Byte(); what {
	case callRegister:
		h := ReadHost(r)
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		revision, err := k.Register(ctx, h)
		return binary.AppendUvarint(nil, revision), err
	case callRenew:
		host, count := r.Text(), r.Uvarint()
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		return nil, k.Renew(ctx, host, int(min(count, 1<<31))) //nolint:gosec // bounded
	case callLeave:
		host := r.Text()
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		return nil, k.Leave(ctx, host)
	case callRelease, callTransfer:
		to := ""
		if what == callTransfer {
			to = r.Text()
		}
		owned := make([]Owned, 0, r.Count())
		for range cap(owned) {
			owned = append(owned, Owned{Actor: readActor(r), Epoch: r.Uvarint()})
		}
		switch {
		case r.Bad:
			return nil, records.Truncated(Method)
		case what == callTransfer:
			return nil, k.Transfer(ctx, owned, to)
		}
		return nil, k.Release(ctx, owned)
	case callActivate, callLocate:
		host, a := r.Text(), readActor(r)
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		return servePlace(ctx, k, what, host, a)
	case callHosts:
		scope := r.Text()
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		return serveHosts(k, scope)
	}
	return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "this version does not know the call about an actor")
}

func servePlace(ctx context.Context, k *Keeper, what byte, host string, a Actor) ([]byte, error) {
	if what == callLocate {
		h, err := k.Locate(ctx, a, host)
		return encodeHost(nil, &h), err
	}
	p, err := k.Activate(ctx, host, a)
	return appendPosition(binary.AppendUvarint(encodeHost(nil, &p.Owner), p.Epoch), p.Position), err
}

func serveHosts(k *Keeper, scope string) ([]byte, error) {
	hosts, counts, err := k.Hosts(scope)
	b := binary.AppendUvarint(nil, uint64(len(hosts)))
	for i := range hosts {
		b = binary.AppendUvarint(encodeHost(b, &hosts[i]), uint64(counts[i])) //nolint:gosec // not negative
	}
	return b, err
}

func appendActor(b []byte, a *Actor) []byte {
	return lenprefix.Append(lenprefix.Append(lenprefix.Append(b, a.Scope), a.Type), a.ID)
}

func readActor(r *lenprefix.Reader) Actor {
	return Actor{Scope: r.Text(), Type: r.Text(), ID: r.Text()}
}

func encodeHost(b []byte, h *Host) []byte {
	return binary.AppendUvarint(h.Append(b), h.Revision)
}

func decodeHost(r *lenprefix.Reader) Host {
	h := ReadHost(r)
	h.Revision = r.Uvarint()
	return h
}

func appendPosition(b []byte, p raftlog.Position) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, p.Term), p.Index)
}

func readPosition(r *lenprefix.Reader) raftlog.Position {
	return raftlog.Position{Term: r.Uvarint(), Index: r.Uvarint()}
}
