package locks

import (
	"context"
	"strings"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Held is a lock that has an owner.
type Held struct {
	Component  string // of the lock store
	StateStore string // store whose writes can carry the token
	Namespace  string
	Prefix     string // of the keys that the lock protects, such as the id of the application; may be empty
	Resource   string
	Owner      string
	Token      uint64
	Expiry     time.Duration // from the acquisition or the last renewal on

	name string
	gid  uint32
}

// List returns every lock that has an owner, ordered by group and name. It reads in pages. Each page is a linearizable
// read, but different pages may show different moments.
func List(ctx context.Context, a records.Access) ([]Held, error) {
	n, err := a.Groups(ctx)
	if err != nil {
		return nil, err
	}
	var out []Held
	for gid := range n {
		p := records.Page{Prefix: Owners, Limit: page / 2} // each lock has two records
		for more := true; more; {
			var owners []string
			if owners, more, err = a.List(ctx, gid, kv.LockStore, p); err != nil || len(owners) == 0 {
				break
			}
			p.After = owners[len(owners)-1]
			if out, err = appendHeld(ctx, out, a, gid, owners); err != nil {
				break
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// appendHeld reads locks with one call and appends them to out. owners contains the keys of the owner records of these
// locks.
func appendHeld(ctx context.Context, out []Held, a records.Access, gid uint32, owners []string) ([]Held, error) {
	keys := make([]string, 0, 2*len(owners))
	for _, key := range owners {
		keys = append(keys, Keys(key[len(Owners):])...)
	}
	values, err := a.Values(ctx, gid, kv.LockStore, keys)
	if err != nil {
		return nil, err
	}
	for i, key := range owners {
		l, found, err := Parse(values[2*i : 2*i+2])
		if err != nil {
			return nil, err
		}
		if found {
			out = append(out, heldOf(&l, key[len(Owners):], gid))
		}
	}
	return out, nil
}

func heldOf(l *Lock, name string, gid uint32) Held {
	space, rest, _ := strings.Cut(name, "\x00")
	out := Held{Owner: l.Owner, Token: l.Token, Expiry: l.Expiry, name: name, gid: gid}
	out.Namespace, out.StateStore, _ = strings.Cut(space, "/")
	out.Prefix, rest, _ = strings.Cut(rest, lockMark)
	out.Component, out.Resource, _ = strings.Cut(rest, state.Separator)
	return out
}

// Left returns how long the lock l stays valid if it is not renewed, or 0 if it has ended. l must come from List. The
// leader of the lock's group measures this time. It starts to measure when it learns of the acquisition or renewal.
func Left(ctx context.Context, a records.Access, l *Held) (time.Duration, error) {
	p := place{a, l.name, l.gid}
	ms, _, err := p.ask(ctx, &call{what: callRemains, token: l.Token})
	ms = min(ms, uint64(lock.MaxExpiry/time.Millisecond))
	return time.Duration(ms) * time.Millisecond, err //nolint:gosec // bounded
}

// End ends the lock l on behalf of an operator, whoever owns it. l must come from List; otherwise End returns
// fault.Invalid. released is false if l has ended since List returned it, even if the lock was granted again. End
// returns fault.Indeterminate if the answer of the leader was lost and the lock may have ended.
func End(ctx context.Context, a records.Access, l *Held) (released bool, err error) {
	if l.name == "" {
		return false, fault.New(fault.Invalid, "locks.End", "the lock does not come from a list of locks")
	}
	p := place{a, l.name, l.gid}
	outcome, err := p.unlock(ctx, &lock.Release{Owner: l.Owner, Token: l.Token})
	return err == nil && outcome == kv.Applied, err
}
