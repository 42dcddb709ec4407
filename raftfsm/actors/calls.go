package actors

import (
	"context"
	"encoding/binary"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/records"
)

// Method is the name of the call between nodes about the directory of actors.
const Method = "raft.actor"

// The kinds of calls of Method. The numbers are part of the protocol.
const (
	callRegister = 1 // begins the session of a host, or replaces its description; answered with the revision
	callRenew    = 2 // renews the session of a host; answered with advice
	callLeave    = 3 // ends the session of a host
	callActivate = 4 // makes a host the owner of an actor; answered with the owner
	callLocate   = 5 // answered with the host of an actor
	callRelease  = 6 // removes activations
	callHosts    = 7 // answered with the hosts of a scope
	callTransfer = 8 // makes a host the owner of actors that their owner gives up
)

// Serve executes the encoded call in r and returns the encoded answer. The call is about the actor directory of this
// group. Any node may send it. Serve returns fault.NotLeader if this server does not lead the group.
func (k *Keeper) Serve(ctx context.Context, r *lenprefix.Reader) ([]byte, error) {
	switch what := r.Byte(); what {
	case callRegister:
		h := decodeHost(r)
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		revision, err := k.Register(ctx, h)
		return binary.AppendUvarint(nil, revision), err
	case callRenew:
		host, count, gives := r.Text(), r.Uvarint(), r.Byte() == 1
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		p, err := k.Renew(ctx, host, int(min(count, 1<<31)), gives) //nolint:gosec // bounded
		return appendAdvice(nil, &p), err
	case callLeave:
		host := r.Text()
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		return nil, k.Leave(ctx, host)
	case callRelease, callTransfer:
		to, keep := "", false
		if what == callTransfer {
			to, keep = r.Text(), r.Byte() == 1
		}
		owned := make([]Owned, 0, r.Count())
		for range cap(owned) {
			owned = append(owned, Owned{Actor: readActor(r), Epoch: r.Uvarint()})
		}
		switch {
		case r.Bad:
			return nil, records.Truncated(Method)
		case what == callTransfer:
			return nil, k.Transfer(ctx, owned, to, keep)
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

func appendAdvice(b []byte, p *Advice) []byte {
	b = binary.AppendUvarint(b, uint64(len(p.Take)))
	for i := range p.Take {
		b = appendActor(b, &p.Take[i])
	}
	if b = binary.AppendUvarint(b, uint64(max(p.Give, 0))); p.Give > 0 { //nolint:gosec // not negative
		b = encodeHost(b, &p.To)
	}
	return b
}

func readAdvice(r *lenprefix.Reader) (p Advice) {
	p.Take = make([]Actor, 0, r.Count())
	for range cap(p.Take) {
		p.Take = append(p.Take, readActor(r))
	}
	if p.Give = int(min(r.Uvarint(), giveMost)); p.Give > 0 { //nolint:gosec // bounded
		p.To = decodeHost(r)
	}
	return p
}

// appendFlag appends a byte that is 1 if set is true.
func appendFlag(b []byte, set bool) []byte {
	if set {
		return append(b, 1)
	}
	return append(b, 0)
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
