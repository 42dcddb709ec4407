package due

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/records"
)

// Method is the name of the call between nodes about due work.
const Method = "raft.due"

// What a call does. The numbers are part of the protocol.
const (
	callPut    = 1 // put work; answered with its revision
	callRemove = 2 // remove work; answered with the result of RemoveAs
	callRun    = 3 // make work due now; answered with 1 if the work exists, otherwise 0
	callClear  = 4 // remove work by the prefix of its names; answered with the number of removed items
)

// Call is a call to the leader about due work.
type Call struct {
	what byte
	put  Put // callRemove: only Home, Name and ID; callRun and callClear: only Home and Name
}

func (c *Call) append(b []byte) []byte {
	p := &c.put
	b = append(b, c.what, p.Kind)
	for _, text := range [...]string{p.Store, p.Prefix, p.Name, p.Spec.Schedule, p.Due, p.TTL, p.Spec.Request} {
		b = lenprefix.Append(b, text)
	}
	b = append(b, byte(records.Bit(p.Overwrite)), byte(records.Bit(p.Spec.Policy.Forever)))
	interval, persist := uint64(p.Spec.Policy.Interval), uint64(p.Spec.Policy.Persist) //nolint:gosec // not negative
	for _, n := range [...]uint64{p.Spec.Repeats, p.Spec.Policy.Retries, interval, persist,
		p.ID.Origin, p.ID.Seq, p.ID.Done} {
		b = binary.AppendUvarint(b, n)
	}
	return append(b, p.Spec.Payload...)
}

// Stores reports whether the call stores work. Such a call is refused while the group is read-only.
func (c *Call) Stores() bool { return c.what == callPut }

// ReadCall decodes a call.
func ReadCall(r *lenprefix.Reader) (c Call, err error) {
	p := &c.put
	c.what, p.Kind = r.Byte(), r.Byte()
	for _, text := range [...]*string{&p.Store, &p.Prefix, &p.Name, &p.Spec.Schedule, &p.Due, &p.TTL,
		&p.Spec.Request} {
		*text = r.Text()
	}
	p.Overwrite, p.Spec.Policy.Forever = r.Byte() == 1, r.Byte() == 1
	p.Spec.Repeats, p.Spec.Policy.Retries = r.Uvarint(), r.Uvarint()
	p.Spec.Policy.Interval = time.Duration(r.Uvarint()) //nolint:gosec // as it was encoded
	p.Spec.Policy.Persist = time.Duration(r.Uvarint())  //nolint:gosec // as it was encoded
	p.ID = command.RequestID{Origin: r.Uvarint(), Seq: r.Uvarint(), Done: r.Uvarint()}
	p.Spec.Payload = r.All()
	if r.Bad || p.Name == "" && c.what != callClear {
		return c, records.Truncated(Method)
	}
	return c, nil
}

// Serve executes a call about due work of this group, and returns the encoded answer. It returns fault.NotLeader if
// this server does not lead the group.
func (k *Keeper) Serve(ctx context.Context, c *Call) (answer []byte, err error) {
	p := &c.put
	n, ok := uint64(0), false
	switch c.what {
	case callPut:
		n, err = k.Put(ctx, p)
	case callRemove:
		n, err = k.RemoveAs(ctx, p.ID, p.Home, p.Name)
	case callClear:
		removed := 0
		removed, err = k.RemovePrefix(ctx, p.Home, p.Name)
		n = uint64(removed) //nolint:gosec // not negative
	case callRun:
		ok, err = k.Run(ctx, p.Home, p.Name)
		n = records.Bit(ok)
	default:
		return nil, fault.New(fault.Unimplemented, "raftfsm.Serve",
			"this version does not know the call about due work")
	}
	if err != nil {
		return nil, err
	}
	return records.Number(n), nil
}
