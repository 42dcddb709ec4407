package topics

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/records"
)

// Methods of the calls between nodes about topics. Calls that wait for messages have their own method, so that they do
// not block other calls.
const (
	Method     = "raft.topic"
	MethodWait = "raft.topic-wait"
)

// What a call does. The numbers are part of the protocol.
const (
	callJoin   = 1 // adds a subscription to a session
	callLeave  = 2 // ends a subscription
	callPull   = 3 // waits for messages of a session
	callSettle = 4 // reports outcomes of deliveries
	callReplay = 5 // moves the cursor of a group back
	callClaim  = 6 // prepares the acknowledgement of a delivery in a transaction

	callDescribe = 7  // describes the topics of a store
	callRead     = 8  // reads messages of a topic
	callRemove   = 9  // removes records of a topic or a group
	callRedrive  = 10 // moves dead letters back
)

// maxCall bounds the settlements of one call.
const maxCall = 4096

// call is a call to the leader. Only the fields that belong to its kind are sent.
type call struct {
	what    byte
	session string
	fresh   bool // callJoin: create the session
	// join is the subscription of callJoin. Other calls use some of its fields: callLeave uses ID; most use Topic and
	// Group. callRemove sends Removal.Force in Newest, and callRedrive sends Redriving.To in Group.
	join    Join
	settles []Settle // callSettle
	offset  uint64   // callReplay, callClaim: of the message; callRead, callRedrive: begin after this offset
	attempt uint64   // callClaim
	proof   string   // callClaim; see proofOf
	since   uint64   // callReplay, callRead: cluster time; callRemove, callRedrive: Upto; 0 = not given
	wait    bool     // callRead: wait for a message if there is none
	answer  uint64   // callPull: number of the last answer that this node has received
	members []uint64 // callPull: ids of the subscriptions
	after   string   // callDescribe: name of a topic
}

func appendTopic(b []byte, t Topic) []byte {
	return lenprefix.Append(lenprefix.Append(b, t.Store), t.Name)
}

func (c *call) method() string {
	if c.what == callPull || c.what == callRead {
		return MethodWait
	}
	return Method
}

func (c *call) append() []byte {
	b := lenprefix.Append([]byte{c.what}, c.session)
	j := &c.join
	switch c.what {
	case callJoin:
		b = append(b, byte(records.Bit(c.fresh)), byte(records.Bit(j.Newest)))
		for _, n := range [...]uint64{j.ID, uint64(j.Concurrency), uint64(j.Window), //nolint:gosec // positive
			uint64(j.RetryBackoff.Milliseconds()), //nolint:gosec // positive
			uint64(j.GroupTTL.Milliseconds())} {   //nolint:gosec // positive
			b = binary.AppendUvarint(b, n)
		}
		b = lenprefix.Append(appendTopic(b, j.Topic), j.Group)
	case callLeave:
		b = binary.AppendUvarint(b, j.ID)
	case callPull:
		b = binary.AppendUvarint(binary.AppendUvarint(b, c.answer), uint64(len(c.members)))
		for _, id := range c.members {
			b = binary.AppendUvarint(b, id)
		}
	case callSettle:
		b = binary.AppendUvarint(b, uint64(len(c.settles)))
		for i := range c.settles {
			s := &c.settles[i]
			b = lenprefix.Append(appendTopic(b, s.Topic), s.Group)
			for _, n := range [...]uint64{s.Offset, s.Attempt, s.Lease} {
				b = binary.AppendUvarint(b, n)
			}
			b = append(b, byte(s.Outcome))
			b = lenprefix.Append(b, s.DeadLetter)
		}
	case callReplay:
		b = lenprefix.Append(appendTopic(b, j.Topic), j.Group)
		b = binary.AppendUvarint(binary.AppendUvarint(b, c.offset), c.since)
	case callClaim:
		b = lenprefix.Append(appendTopic(b, j.Topic), j.Group)
		b = lenprefix.Append(binary.AppendUvarint(binary.AppendUvarint(b, c.offset), c.attempt), c.proof)
	case callDescribe:
		b = lenprefix.Append(appendTopic(b, j.Topic), c.after)
	case callRead, callRemove, callRedrive:
		b = lenprefix.Append(appendTopic(b, j.Topic), j.Group)
		b = binary.AppendUvarint(binary.AppendUvarint(b, c.offset), c.since)
		b = append(b, byte(records.Bit(c.wait)), byte(records.Bit(j.Newest)))
	}
	return b
}

// readCall decodes a call to the leader of the Raft group with the given number.
func readCall(r *lenprefix.Reader, group uint32) (c call, err error) {
	c.what, c.session = r.Byte(), r.Text()
	j := &c.join
	topic := func() Topic { return Topic{Group: group, Store: r.Text(), Name: r.Text()} }
	switch c.what {
	case callJoin:
		c.fresh, j.Newest = r.Byte() == 1, r.Byte() == 1
		j.ID = r.Uvarint()
		j.Concurrency, j.Window = bounded(r), bounded(r)
		j.RetryBackoff = time.Duration(bounded(r)) * time.Millisecond
		ttl := min(r.Uvarint(), uint64(maxGroupTTL.Milliseconds())+1)
		j.GroupTTL = time.Duration(ttl) * time.Millisecond //nolint:gosec // bounded
		j.Topic = topic()
		j.Group = r.Text()
	case callLeave:
		j.ID = r.Uvarint()
	case callPull:
		c.answer = r.Uvarint()
		n := r.Count()
		if n > maxMembers {
			return c, records.Truncated(Method)
		}
		for range n {
			c.members = append(c.members, r.Uvarint())
		}
	case callSettle:
		n := r.Count()
		if n > maxCall {
			return c, records.Truncated(Method)
		}
		for range n {
			s := Settle{Topic: topic(), Group: r.Text(), Offset: r.Uvarint(), Attempt: r.Uvarint(),
				Lease: r.Uvarint(), Outcome: pubsub.Outcome(r.Byte()), DeadLetter: r.Text()}
			if r.Bad || s.Outcome > pubsub.Released {
				return c, records.Truncated(Method)
			}
			c.settles = append(c.settles, s)
		}
	case callReplay:
		j.Topic = topic()
		j.Group = r.Text()
		c.offset, c.since = r.Uvarint(), r.Uvarint()
	case callClaim:
		j.Topic = topic()
		j.Group = r.Text()
		c.offset, c.attempt, c.proof = r.Uvarint(), r.Uvarint(), r.Text()
	case callDescribe:
		j.Topic = topic()
		c.after = r.Text()
	case callRead, callRemove, callRedrive:
		j.Topic = topic()
		j.Group = r.Text()
		c.offset, c.since = r.Uvarint(), r.Uvarint()
		c.wait, j.Newest = r.Byte() == 1, r.Byte() == 1
	default:
		return c, fault.New(fault.Unimplemented, "raftfsm.Serve", "this version does not know the call about topics")
	}
	if r.Bad || len(r.Rest) > 0 {
		return c, records.Truncated(Method)
	}
	return c, nil
}

// bounded reads a number. It returns -1 for a number above 2^31-1.
func bounded(r *lenprefix.Reader) int {
	n := r.Uvarint()
	if n > 1<<31-1 {
		return -1
	}
	return int(n) //nolint:gosec // checked
}

// Stores reports whether an encoded call adds data, as a subscription and a move of dead letters do. Such a call is
// refused while the group is read-only.
func Stores(body []byte) bool {
	return len(body) > 0 && (body[0] == callJoin || body[0] == callRedrive)
}

// Serve decodes and executes a call about topics of this Raft group. It returns the encoded answer.
func (k *Keeper) Serve(ctx context.Context, r *lenprefix.Reader) (answer []byte, err error) {
	c, err := readCall(r, k.opts.Group)
	if err != nil {
		return nil, err
	}
	known := true
	switch c.what {
	case callJoin:
		known, err = k.Join(ctx, c.session, c.fresh, &c.join)
	case callLeave:
		err = k.Leave(c.session, c.join.ID)
	case callSettle:
		var a Answer
		if a.Number, err = k.Settle(ctx, c.session, c.settles); err == nil {
			return appendAnswer([]byte{1}, &a), nil
		}
	case callReplay:
		err = k.Replay(c.join.Topic, c.join.Group, c.offset, c.since)
	case callClaim:
		revision, err := k.Claim(ctx, c.join.Topic, c.join.Group, c.offset, c.attempt, c.proof)
		if err != nil {
			return nil, err
		}
		return binary.AppendUvarint(nil, revision), nil
	case callDescribe:
		list, more, err := k.Describe(ctx, c.join.Topic.Store, c.join.Topic.Name, c.after)
		if err != nil {
			return nil, err
		}
		return appendDescriptions(nil, list, more), nil
	case callRead, callRemove, callRedrive:
		return k.operate(ctx, &c)
	case callPull:
		var a Answer
		if a, known, err = k.Pull(ctx, c.session, c.answer, c.members); err == nil {
			return appendAnswer([]byte{byte(records.Bit(known))}, &a), nil
		}
	}
	if err != nil {
		return nil, err
	}
	return []byte{byte(records.Bit(known))}, nil
}

// operate executes a callRead, callRemove or callRedrive, and returns the encoded answer.
func (k *Keeper) operate(ctx context.Context, c *call) ([]byte, error) {
	t := c.join.Topic
	var p Progress
	var err error
	switch c.what {
	case callRead:
		list, next, more, err := k.Read(ctx, t, c.offset, c.since, c.wait)
		if err != nil {
			return nil, err
		}
		return appendReading(nil, list, next, more), nil
	case callRemove:
		p, err = k.Remove(ctx, &Removal{Topic: t, Group: c.join.Group, Upto: c.since, Force: c.join.Newest})
	case callRedrive:
		p, err = k.Redrive(ctx, &Redriving{Topic: t, To: c.join.Group, After: c.offset, Upto: c.since})
	}
	if err != nil {
		return nil, err
	}
	return appendProgress(nil, &p), nil
}

func appendAnswer(b []byte, a *Answer) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, a.Number), uint64(len(a.List)))
	for i := range a.List {
		h := &a.List[i]
		for _, n := range [...]uint64{h.ID, h.Offset, h.Attempt, h.Lease, records.Bit(h.Serial), h.ExpireAt} {
			b = binary.AppendUvarint(b, n)
		}
		b = lenprefix.Append(b, h.Value)
	}
	return b
}

// readAnswer decodes the answer to a callJoin, callLeave, callPull or callSettle. known is false if the leader does
// not know the session or one of its subscriptions.
func readAnswer(b []byte) (known bool, a Answer, err error) {
	r := lenprefix.Reader{Rest: b}
	if known = r.Byte() == 1; len(r.Rest) > 0 {
		a.Number = r.Uvarint()
		for range r.Count() {
			h := Handed{ID: r.Uvarint(), Offset: r.Uvarint(), Attempt: r.Uvarint(), Lease: r.Uvarint(),
				Serial:   r.Uvarint() == 1,
				ExpireAt: r.Uvarint(), Value: r.Bytes()}
			if r.Bad {
				break
			}
			a.List = append(a.List, h)
		}
	}
	if r.Bad || len(r.Rest) > 0 {
		return false, Answer{}, records.Truncated(Method)
	}
	return known, a, nil
}
