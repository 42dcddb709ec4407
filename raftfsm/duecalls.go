package raftfsm

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// What MethodDue does. The numbers are part of the protocol.
const (
	duePut    = 1 // put work; answered with its revision
	dueRemove = 2 // remove work; answered with 1 if there was any
	dueRun    = 3 // make work due now; answered with 1 if there is any
	dueClear  = 4 // remove work by the prefix of its names; answered with its number
)

// dueGroup is a group as its due.Keeper uses it.
type dueGroup struct{ lockGroup }

// Confirm implements due.Group.
func (g dueGroup) Confirm(ctx context.Context) error {
	ri, err := g.ReadIndex(ctx)
	if err != nil {
		return err
	}
	return g.WaitApplied(ctx, ri.Index)
}

// dueCall is a call to the leader about due work.
type dueCall struct {
	what byte
	put  due.Put // for other calls only home and name
}

func (c *dueCall) append(b []byte) []byte {
	p := &c.put
	b = append(b, c.what, p.Kind)
	for _, text := range [...]string{p.Store, p.Prefix, p.Name, p.Spec.Schedule, p.Due, p.TTL, p.Spec.Request} {
		b = appendString(b, text)
	}
	b = append(b, boolByte(p.Overwrite), boolByte(p.Spec.Policy.Forever))
	interval, persist := uint64(p.Spec.Policy.Interval), uint64(p.Spec.Policy.Persist) //nolint:gosec // not negative
	for _, n := range [...]uint64{p.Spec.Repeats, p.Spec.Policy.Retries, interval, persist, p.Spec.Revision,
		p.ID.Origin, p.ID.Seq, p.ID.Done} {
		b = binary.AppendUvarint(b, n)
	}
	return append(b, p.Spec.Payload...)
}

func readDueCall(f *frame) (c dueCall, err error) {
	p := &c.put
	c.what, p.Kind = f.Byte(), f.Byte()
	for _, text := range [...]*string{&p.Store, &p.Prefix, &p.Name, &p.Spec.Schedule, &p.Due, &p.TTL,
		&p.Spec.Request} {
		*text = f.Text()
	}
	p.Overwrite, p.Spec.Policy.Forever = f.Byte() == 1, f.Byte() == 1
	p.Spec.Repeats, p.Spec.Policy.Retries = f.Uvarint(), f.Uvarint()
	p.Spec.Policy.Interval = time.Duration(f.Uvarint()) //nolint:gosec // as it was encoded
	p.Spec.Policy.Persist = time.Duration(f.Uvarint())  //nolint:gosec // as it was encoded
	p.Spec.Revision = f.Uvarint()
	p.ID = command.RequestID{Origin: f.Uvarint(), Seq: f.Uvarint(), Done: f.Uvarint()}
	p.Spec.Payload = f.All()
	if f.Bad || p.Name == "" && c.what != dueClear {
		return c, errFrame(MethodDue)
	}
	return c, nil
}

// serveDue answers a call about due work of a group that this server leads.
func (s *server) serveDue(ctx context.Context, gid uint32, f *frame) ([]byte, error) {
	c, err := readDueCall(f)
	if err != nil {
		return nil, err
	}
	k, p := s.due[gid], &c.put
	n, ok := uint64(0), false
	switch c.what {
	case duePut:
		if err := s.writesAllowed(gid); err != nil {
			return nil, err
		}
		n, err = k.Put(ctx, p)
	case dueRemove:
		ok, err = k.Remove(ctx, p.Home, p.Name, p.Spec.Revision)
		n = uint64(boolByte(ok))
	case dueClear:
		removed := 0
		removed, err = k.RemovePrefix(ctx, p.Home, p.Name)
		n = uint64(removed) //nolint:gosec // not negative
	case dueRun:
		ok, err = k.Run(ctx, p.Home, p.Name)
		n = uint64(boolByte(ok))
	default:
		return nil, fault.New(fault.Unimplemented, "raftfsm.Serve",
			"this version does not know the call about due work")
	}
	if err != nil {
		return nil, err
	}
	return binary.AppendUvarint(nil, n), nil
}

// DueWork is the due work of one kind in the groups of a cluster. Safe for concurrent use.
type DueWork struct{ host *Host }

// DueWork returns the due work of the cluster.
func (h *Host) DueWork() DueWork { return DueWork{h} }

// Deliver sets the deliverer for work of a kind. While this node leads a group, it passes the due work of that group
// to the deliverer. On a node without data, Deliver does nothing.
func (d DueWork) Deliver(kind byte, to due.Deliverer) {
	if s, ok := d.host.replica.(*server); ok {
		for _, k := range s.due {
			k.Deliver(kind, to)
		}
	}
}

// Put stores work and returns its revision. It returns fault.Conflict if work with this name exists and p.Overwrite is
// false. It returns fault.Invalid if the times cannot be parsed, and otherwise the errors of a strong write.
func (d DueWork) Put(ctx context.Context, p due.Put) (revision uint64, err error) {
	gid, err := d.group(ctx, p.Home)
	if err != nil {
		return 0, err
	}
	// A repeated call finds what the first one has stored. If that work has ended, the log has the id of the request.
	p.Spec.Request = datadir.RandomID()
	o := d.host.router.group(gid).origin
	for {
		if p.ID, err = o.begin(ctx); err != nil {
			return 0, err
		}
		revision, repeated, err := d.ask(ctx, &dueCall{what: duePut, put: p})
		o.end(p.ID)
		switch {
		case err != nil || revision != 0:
			return revision, err
		case repeated:
			return 0, fault.New(fault.Indeterminate, due.OpPut, "it may have been stored: the result is no longer kept")
		}
		o.drop(p.ID.Origin) // the group may not know it any more
	}
}

// RemovePrefix removes the work of a home whose names begin with prefix. After an error, some may be removed.
func (d DueWork) RemovePrefix(ctx context.Context, h due.Home, prefix string) error {
	_, _, err := d.ask(ctx, &dueCall{what: dueClear, put: due.Put{Home: h, Name: prefix}})
	return err
}

// Remove removes work. removed is false if there was none.
func (d DueWork) Remove(ctx context.Context, h due.Home, name string) (removed bool, err error) {
	n, repeated, err := d.ask(ctx, &dueCall{what: dueRemove, put: due.Put{Home: h, Name: name}})
	return n == 1 || repeated && err == nil, err
}

// Run makes the present tick of work due now. found is false if there is no such work.
func (d DueWork) Run(ctx context.Context, h due.Home, name string) (found bool, err error) {
	n, _, err := d.ask(ctx, &dueCall{what: dueRun, put: due.Put{Home: h, Name: name}})
	return n == 1, err
}

// Get returns work as of now. found is false if there is none.
func (d DueWork) Get(ctx context.Context, h due.Home, name string) (w due.Work, found bool, err error) {
	all, err := d.read(ctx, h, []string{name})
	if err != nil || len(all) == 0 {
		return due.Work{}, false, err
	}
	return all[0], true, nil
}

// List returns up to limit items of the due work of h, in byte order of their names. It returns only names that begin
// with prefix and are greater than the parameter after. more is true if further items exist. limit is at most
// maxDuePage. The names are from a linearizable read; List then reads the items.
func (d DueWork) List(ctx context.Context, h due.Home, prefix, after string, limit int) (list []due.Work, more bool,
	err error) {
	gid, err := d.group(ctx, h)
	if err != nil {
		return nil, false, err
	}
	states := h.States()
	q := query{kind: queryList, store: kv.DueStore, prefix: states + prefix, limit: min(limit, maxDuePage)}
	if after != "" {
		q.after = states + after
	}
	if _, err := d.host.router.read(ctx, gid, &state.ReadOptions{Consistency: state.Strong}, &q); err != nil {
		return nil, false, err
	}
	names := make([]string, len(q.listed))
	for i := range q.listed {
		names[i] = q.listed[i].Key[len(states):]
	}
	list, err = d.read(ctx, h, names)
	return list, q.more, err
}

const (
	maxDuePage = maxPage
	dueChunk   = 16 // work that is read at once: each may have 1 MiB, and an answer is smaller than maxAnswer
)

// Homes returns the homes of a kind that have work, in no order.
func (d DueWork) Homes(ctx context.Context, kind byte) (homes []due.Home, err error) {
	n, err := d.host.replica.waitPartitions(ctx)
	if err != nil {
		return nil, err
	}
	for gid := range n {
		for after := ""; ; {
			q := query{kind: queryList, store: kv.DueStore, limit: 1, after: after}
			if _, err := d.host.router.read(ctx, gid, &state.ReadOptions{Consistency: state.Strong}, &q); err != nil {
				return nil, err
			}
			if len(q.listed) == 0 {
				break
			}
			h, next := due.HomeOf(q.listed[0].Key)
			if h.Kind == kind {
				homes = append(homes, h)
			}
			after = next
		}
	}
	return homes, nil
}

// read reads work. It leaves out what does not exist.
func (d DueWork) read(ctx context.Context, h due.Home, names []string) (list []due.Work, err error) {
	gid, err := d.group(ctx, h)
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(names, dueChunk) {
		q := query{kind: queryMany, store: kv.DueStore}
		for _, name := range some {
			q.keys = append(q.keys, h.Keys(name)...)
		}
		if _, err := d.host.router.read(ctx, gid, &state.ReadOptions{Consistency: state.Strong}, &q); err != nil {
			return nil, err
		}
		for i, name := range some {
			w, found, err := due.Parse(h, name, q.values[2*i:2*i+2])
			if err != nil {
				return nil, err
			}
			if found {
				list = append(list, w)
			}
		}
	}
	return list, nil
}

// group returns the group of a home.
func (d DueWork) group(ctx context.Context, h due.Home) (uint32, error) {
	if _, err := d.host.router.node.wait(ctx); err != nil {
		return 0, err
	}
	n, err := d.host.replica.waitPartitions(ctx)
	if err != nil {
		return 0, err
	}
	return partitionOf(h.Store, h.Prefix+"||", n), nil
}

// ask sends a call to the leader, and retries until the leader answers or ctx ends. n is the number in the leader's
// answer. repeated is true if an earlier attempt may have been executed.
func (d DueWork) ask(ctx context.Context, c *dueCall) (n uint64, repeated bool, err error) {
	if err := d.host.node.allowed(); err != nil {
		return 0, false, err
	}
	gid, err := d.group(ctx, c.put.Home)
	if err != nil {
		return 0, false, err
	}
	return d.host.router.askNumber(ctx, gid, MethodDue, c.append(message(formFirst, gid)))
}

var _ due.Group = dueGroup{lockGroup{(*group.Group)(nil)}}
