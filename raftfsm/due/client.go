package due

import (
	"context"
	"crypto/rand"
	"slices"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Client uses the due work of a cluster from one node. It is safe for concurrent use.
type Client struct {
	access  records.Access
	keepers []*Keeper // of the groups of this node
}

// NewClient returns a client that sends its calls through the given Access. keepers are the Keepers of the groups of
// this node; a node without data has none.
func NewClient(a records.Access, keepers []*Keeper) Client { return Client{a, keepers} }

// Deliver sets the Deliverer of this node for one kind of due work. When this node leads a group, it passes the due
// work of that group to the Deliverer. On a node without data, Deliver does nothing.
func (d Client) Deliver(kind byte, to Deliverer) {
	for _, k := range d.keepers {
		k.Deliver(kind, to)
	}
}

// Put stores work and returns its revision. It returns fault.Conflict if work with this name exists and p.Overwrite
// is false. It returns fault.Invalid if a time or the schedule of p is not valid, and fault.Overloaded if the Home
// has reached the limit of stored work. It also returns the errors of a strong write.
func (d Client) Put(ctx context.Context, p Put) (revision uint64, err error) {
	gid, err := d.group(ctx, p.Home)
	if err != nil {
		return 0, err
	}
	// Spec.Request lets a repeated call find the work that the first call has stored. If that work has ended already,
	// the id of the request prevents that the repeated call stores it again.
	p.Spec.Request = rand.Text()
	err = d.access.WithID(ctx, gid, func(id command.RequestID) (known bool, err error) {
		p.ID = id
		var repeated bool
		revision, repeated, err = d.ask(ctx, &Call{what: callPut, put: p})
		switch {
		case err != nil || revision != 0:
			return true, err
		case repeated:
			return true, fault.New(fault.Indeterminate, OpPut,
				"it may have been stored: the result is no longer kept")
		}
		return false, nil
	})
	return revision, err
}

// RemovePrefix removes from a home all work with names that begin with prefix. If some items cannot be decoded,
// RemovePrefix removes the rest and returns fault.Corrupt. After any other error, some of the items may already be
// removed.
func (d Client) RemovePrefix(ctx context.Context, h Home, prefix string) error {
	_, _, err := d.ask(ctx, &Call{what: callClear, put: Put{Home: h, Name: prefix}})
	return err
}

// Remove removes the work with this name. The result removed is false if there was no such work.
//
// Remove repeats its call if it gets no answer. If the repeated call does not find the work, Remove assumes that an
// earlier attempt has removed it, and returns true. It returns fault.Indeterminate if the group no longer keeps the
// result of the earlier attempt.
func (d Client) Remove(ctx context.Context, h Home, name string) (removed bool, err error) {
	gid, err := d.group(ctx, h)
	if err != nil {
		return false, err
	}
	err = d.access.WithID(ctx, gid, func(id command.RequestID) (known bool, err error) {
		n, repeated, err := d.ask(ctx, &Call{what: callRemove, put: Put{Home: h, Name: name, ID: id}})
		switch {
		case err != nil:
			return true, err
		case n == RemovedUnknown && repeated:
			return true, fault.New(fault.Indeterminate, opRemove,
				"it may have been removed: the result is no longer kept")
		}
		removed = n == RemovedWork || n == RemovedNone && repeated
		return n == RemovedWork || n == RemovedNone, nil
	})
	return removed, err
}

// Run makes the named work due now. It returns false if there is no such work.
func (d Client) Run(ctx context.Context, h Home, name string) (found bool, err error) {
	n, _, err := d.ask(ctx, &Call{what: callRun, put: Put{Home: h, Name: name}})
	return n == 1, err
}

// Get reads the work with this name. The read is linearizable. The result found is false if there is no such work.
func (d Client) Get(ctx context.Context, h Home, name string) (w Work, found bool, err error) {
	all, _, err := d.read(ctx, h, []string{name})
	if err != nil || len(all) == 0 {
		return Work{}, false, err
	}
	return all[0], true, nil
}

// List returns the due work of h whose name begins with prefix, in byte order of names. The parameter after is the name
// after which the list begins. The result hasMore is true if further work exists.
//
// List returns at most limit items, and never more than records.MaxPage. It stops earlier when the payloads reach
// listBytes in total. The list of names is linearizable, but the items are read afterwards.
func (d Client) List(ctx context.Context, h Home, prefix, after string, limit int) (list []Work, hasMore bool,
	err error) {
	gid, err := d.group(ctx, h)
	if err != nil {
		return nil, false, err
	}
	states := h.States()
	page := records.Page{Prefix: states + prefix, Limit: min(limit, records.MaxPage)}
	if after != "" {
		page.After = states + after
	}
	names, hasMore, err := d.access.List(ctx, gid, kv.DueStore, page)
	if err != nil {
		return nil, false, err
	}
	for i := range names {
		names[i] = names[i][len(states):]
	}
	list, whole, err := d.read(ctx, h, names)
	return list, hasMore || !whole, err
}

const (
	dueChunk  = 16      // work that is read at once: each may have 1 MiB, and the size of an answer is limited
	listBytes = 4 << 20 // bytes of payloads after which a list ends
)

// Homes returns the homes of a kind that have work, in no particular order.
func (d Client) Homes(ctx context.Context, kind byte) (homes []Home, err error) {
	n, err := d.access.Groups(ctx)
	if err != nil {
		return nil, err
	}
	for gid := range n {
		for after := ""; ; {
			keys, _, err := d.access.List(ctx, gid, kv.DueStore, records.Page{After: after, Limit: 1})
			if err != nil {
				return nil, err
			}
			if len(keys) == 0 {
				break
			}
			h, next := HomeOf(keys[0])
			if h.Kind == kind {
				homes = append(homes, h)
			}
			after = next
		}
	}
	return homes, nil
}

// read reads the work with the given names, and leaves out work that does not exist. It reads in chunks of dueChunk
// names, and stops when the payloads have at least listBytes bytes in total. The result whole is false if read has
// stopped before the last name.
func (d Client) read(ctx context.Context, h Home, names []string) (list []Work, whole bool, err error) {
	gid, err := d.group(ctx, h)
	if err != nil {
		return nil, false, err
	}
	size, done := 0, 0
	for some := range slices.Chunk(names, dueChunk) {
		var keys []string
		for _, name := range some {
			keys = append(keys, h.Keys(name)...)
		}
		values, err := d.access.Values(ctx, gid, kv.DueStore, keys)
		if err != nil {
			return nil, false, err
		}
		for i, name := range some {
			w, found, err := Parse(h, name, values[2*i:2*i+2])
			if err != nil {
				return nil, false, err
			}
			if found {
				list = append(list, w)
				size += len(w.Spec.Payload)
			}
		}
		if done += len(some); size >= listBytes {
			break
		}
	}
	return list, done == len(names), nil
}

// group returns the group of a home.
func (d Client) group(ctx context.Context, h Home) (uint32, error) {
	return d.access.Locate(ctx, h.Store, h.Prefix+state.Separator)
}

// ask sends a call to the leader, and retries until the leader answers or ctx ends. The result n is the number in
// the leader's answer. Its meaning depends on the kind of call. The result repeated is true if the leader may have
// executed an earlier attempt.
func (d Client) ask(ctx context.Context, c *Call) (n uint64, repeated bool, err error) {
	gid, err := d.group(ctx, c.put.Home)
	if err != nil {
		return 0, false, err
	}
	return records.AskNumber(ctx, d.access, gid, Method, c.append(nil))
}
