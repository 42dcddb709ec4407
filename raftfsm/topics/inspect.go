package topics

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

const opDescribe = "topics.Describe"

// Bounds of descriptions.
const (
	maxDescribed = 200       // topics in one answer
	maxExamined  = 1_000_000 // messages of a topic that a description looks at
	maxLooked    = 16        // messages that are read to find the oldest waiting message

	maxWaitingRead = 100_000 // parked messages of a group whose records are read; the others are only counted
)

// Description describes the part of a topic that is in one Raft group.
type Description struct {
	Topic
	Messages, Bytes uint64
	Newest          uint64   // offset of the newest message; 0 = there is none
	Full            bool     // the topic refuses messages
	Policy          Policy   // what the topic keeps
	Sources         []string // topics whose dead letters the topic has received
	Groups          []GroupDescription
	// Estimated means that the topic has maxExamined messages or more. Then Messages and Bytes may include messages
	// whose TTL has ended.
	Estimated bool
}

// GroupDescription describes a consumer group of a topic.
type GroupDescription struct {
	Name        string
	Cursor      uint64 // the group has settled the messages up to this offset, except those that wait
	Lag         uint64 // messages that are not settled
	Capped      bool   // the group has more unsettled messages than Lag
	Retried     uint64 // of Lag: messages that have failed and are delivered again
	Delayed     uint64 // of Lag: messages whose time to deliver has not come
	OldestAt    uint64 // cluster time since which the oldest message waits, delayed ones excluded; 0 = none waits
	Subscribers uint64 // subscriptions of the group at present
}

// Describe describes the topics of a store in the order of their names, up to maxDescribed. It leaves out empty topics
// (see Description.isEmpty). If only is not empty, Describe describes only the topic with that name.
//
// more is true if there are further topics. To get them, call Describe again with after set to the last name.
func (k *Keeper) Describe(ctx context.Context, store, only, after string) (list []Description, more bool, err error) {
	if strings.Contains(store+only+after, "\x00") {
		return nil, false, fault.New(fault.Invalid, opDescribe, "the name of a store or of a topic has no NUL")
	}
	m, now, err := k.view(ctx, opDescribe)
	if err != nil {
		return nil, false, err
	}
	if only != "" {
		d, err := k.describe(ctx, m, Topic{k.opts.Group, store, only}, now)
		if err != nil || d.isEmpty() {
			return nil, false, err
		}
		return []Description{d}, false, nil
	}
	prefix := Topic{Group: k.opts.Group, Store: store}.storePrefix()
	from := ""
	if after != "" {
		from = prefix + after + "\x00\xff"
	}
	for ctx.Err() == nil {
		found, _, err := m.List(kv.TopicStore, prefix, from, 1, 0)
		if err != nil || len(found) == 0 {
			return list, false, err
		}
		t, _, _, ok := split(found[0].Key)
		if !ok {
			return nil, false, errRecord("unknown key", Topic{Name: fault.Shorten(found[0].Key, 128)})
		}
		from = t.prefix() + "\xff"
		if len(list) == maxDescribed {
			return list, true, nil
		}
		d, err := k.describe(ctx, m, t, now)
		if err != nil {
			return nil, false, err
		}
		if !d.isEmpty() {
			list = append(list, d)
		}
	}
	return nil, false, fault.Wrap(ctx.Err(), opDescribe, "the topics were not described in time")
}

// view returns the state machine and the cluster time, after a majority has confirmed that this server leads.
func (k *Keeper) view(ctx context.Context, op string) (m *kv.Machine, now uint64, err error) {
	k.mu.Lock()
	err = k.lead(op)
	g, m := k.group, k.machine
	k.mu.Unlock()
	if err == nil {
		err = g.Confirm(ctx)
	}
	if err != nil {
		return nil, 0, err
	}
	return m, g.Now(), nil
}

// isEmpty reports whether a topic has nothing to show to operators. A deleted topic is empty, although some of its
// records remain.
func (d *Description) isEmpty() bool {
	return d.Messages == 0 && len(d.Groups) == 0 && len(d.Sources) == 0
}

// waiting is a GroupDescription whose messages are being counted.
type waiting struct {
	GroupDescription
	open   map[uint64]bool   // offsets up to Cursor that are neither settled nor parked
	parked map[uint64]parked // parked records by offset, up to Cursor
	looked int               // messages that were read to find the oldest waiting message
	seen   bool              // the oldest waiting message was found
}

func (k *Keeper) describe(ctx context.Context, m *kv.Machine, t Topic, now uint64) (d Description, err error) {
	d.Topic = t
	if d.Policy, err = policyOf(m, t); err != nil {
		return d, err
	}
	full, err := m.Get(kv.TopicStore, t.key(tableFull, ""), 0)
	if err != nil {
		return d, err
	}
	d.Full = full.Found
	if d.Sources, err = sourcesOf(m, t); err != nil {
		return d, err
	}
	groups, err := waitingOf(m, t)
	if err != nil {
		return d, err
	}
	if err := d.examine(ctx, m, groups, now); err != nil {
		return d, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.topics[t]
	if one != nil && d.Estimated {
		d.Messages, d.Bytes = max(d.Messages, one.counted.messages), max(d.Bytes, one.counted.bytes)
	}
	for _, w := range groups {
		if one != nil {
			if c := one.find(w.Name); c != nil {
				w.Subscribers = uint64(len(c.members))
			}
		}
		d.Groups = append(d.Groups, w.GroupDescription)
	}
	return d, nil
}

// waitingOf returns an entry for each consumer group of a topic, in the order of the group names. The messages of the
// topic are not counted yet: Lag is only the number of parked records beyond maxWaitingRead.
func waitingOf(m *kv.Machine, t Topic) (list []*waiting, err error) {
	prefix := t.key(tableGroup, "")
	for after, more := "", true; more; {
		var found []kv.Record
		if found, more, err = m.Records(kv.TopicStore, prefix, after, page, pageBytes, 0); err != nil {
			return nil, err
		}
		for i := range found {
			after = found[i].Key
			c, ok := readCursor(found[i].Value, found[i].Revision)
			if !ok {
				return nil, errRecord("a cursor", t)
			}
			w := &waiting{GroupDescription: GroupDescription{Name: after[len(prefix):], Cursor: c.upto},
				open: map[uint64]bool{}}
			for _, offset := range c.open {
				w.open[offset] = true
			}
			if w.parked, w.Lag, err = parkedOf(m, t, w.Name); err != nil {
				return nil, err
			}
			list = append(list, w)
		}
	}
	return list, nil
}

// parkedOf reads the first parked records of a group, approximately maxWaitingRead, and returns them by offset. others
// is the number of the remaining records, which are not read.
func parkedOf(m *kv.Machine, t Topic, group string) (out map[uint64]parked, others uint64, err error) {
	prefix := t.parkedPrefix(group)
	out = map[uint64]parked{}
	after, more := "", true
	for more && len(out) < maxWaitingRead {
		var found []kv.Record
		if found, more, err = m.Records(kv.TopicStore, prefix, after, page, pageBytes, 0); err != nil {
			return nil, 0, err
		}
		for i := range found {
			after = found[i].Key
			p, ok := readParked(found[i].Value)
			if !ok || len(after) != len(prefix)+8 {
				return nil, 0, errRecord("a parked message of group "+group, t)
			}
			out[offsetOf(after)] = p
		}
	}
	for more {
		var found []kv.Listed
		if found, more, err = m.List(kv.TopicStore, prefix, after, 1000, 0); err != nil {
			return nil, 0, err
		}
		if len(found) > 0 {
			after = found[len(found)-1].Key
		}
		others += uint64(len(found))
	}
	return out, others, nil
}

// sourcesOf returns the topics whose dead letters a topic has received.
func sourcesOf(m *kv.Machine, t Topic) (list []string, err error) {
	prefix := t.key(tableSource, "")
	for after, more := "", true; more; {
		var found []kv.Listed
		if found, more, err = m.List(kv.TopicStore, prefix, after, 1000, 0); err != nil {
			return nil, err
		}
		for i := range found {
			after = found[i].Key
			list = append(list, after[len(prefix):])
		}
	}
	return list, nil
}

// examine counts the messages of the topic, and the unsettled messages of its groups.
func (d *Description) examine(ctx context.Context, m *kv.Machine, groups []*waiting, now uint64) error {
	prefix := d.key(tableMessage, "")
	count := func(item *kv.Listed) error {
		offset := offsetOf(item.Key)
		d.Newest = max(d.Newest, offset)
		d.Messages++
		d.Bytes += sizeOf(item.Key, item.Size)
		for _, w := range groups {
			if err := w.count(m, d.Topic, offset, now); err != nil {
				return err
			}
		}
		return nil
	}
	examined, err := listMessages(ctx, m, prefix, "", now, count)
	if err != nil || examined < maxExamined {
		return err
	}
	d.Estimated = true
	reached := d.Newest
	for _, w := range groups {
		n, err := listMessages(ctx, m, prefix, d.messageKey(max(w.Cursor, reached)), now, func(i *kv.Listed) error {
			d.Newest = max(d.Newest, offsetOf(i.Key))
			return w.count(m, d.Topic, offsetOf(i.Key), now)
		})
		if err != nil {
			return err
		}
		w.Capped = n >= maxExamined
	}
	return nil
}

// listMessages calls f for the messages whose keys are greater than after, up to maxExamined messages. The result n is
// the number of successful calls of f.
func listMessages(ctx context.Context, m *kv.Machine, prefix, after string, now uint64,
	f func(*kv.Listed) error) (n int, err error) {
	for more := true; more && n < maxExamined; {
		if err := ctx.Err(); err != nil {
			return n, fault.Wrap(err, opDescribe, "the messages of the topic were not counted in time")
		}
		var found []kv.Listed
		if found, more, err = m.List(kv.TopicStore, prefix, after, 1000, now); err != nil {
			return n, err
		}
		for i := range found {
			after = found[i].Key
			if err := f(&found[i]); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

// count adds a message to the lag of the group if the group has not settled the message. Call count for the messages
// of a topic in the order of their offsets.
func (w *waiting) count(m *kv.Machine, t Topic, offset, now uint64) error {
	p, isParked := w.parked[offset]
	if offset <= w.Cursor && !w.open[offset] && !isParked {
		return nil
	}
	w.Lag++
	switch {
	case p.attempts > 0:
		w.Retried++
	case p.at > now:
		w.Delayed++
		return nil
	}
	if w.seen || w.looked == maxLooked {
		return nil
	}
	w.looked++
	v, err := m.Get(kv.TopicStore, t.messageKey(offset), now)
	if err != nil || !v.Found {
		return err
	}
	msg, ok := readMessage(v.Value)
	if !ok {
		return errRecord("a message", t)
	}
	if msg.deliverAt <= now { // otherwise the leader has not parked it yet
		w.OldestAt, w.seen = max(msg.at, msg.deliverAt), true
	}
	return nil
}

func appendDescriptions(b []byte, list []Description, more bool) []byte {
	b = append(b, byte(records.Bit(more)))
	b = binary.AppendUvarint(b, uint64(len(list)))
	for i := range list {
		d := &list[i]
		b = lenprefix.Append(b, d.Name)
		for _, n := range [...]uint64{d.Messages, d.Bytes, d.Newest, records.Bit(d.Full), records.Bit(d.Estimated)} {
			b = binary.AppendUvarint(b, n)
		}
		b = lenprefix.Append(b, d.Policy.encode())
		b = binary.AppendUvarint(b, uint64(len(d.Sources)))
		for _, s := range d.Sources {
			b = lenprefix.Append(b, s)
		}
		b = binary.AppendUvarint(b, uint64(len(d.Groups)))
		for j := range d.Groups {
			g := &d.Groups[j]
			b = lenprefix.Append(b, g.Name)
			for _, n := range [...]uint64{g.Cursor, g.Lag, records.Bit(g.Capped), g.Retried, g.Delayed, g.OldestAt,
				g.Subscribers} {
				b = binary.AppendUvarint(b, n)
			}
		}
	}
	return b
}

func readDescriptions(b []byte, gid uint32, store string) (list []Description, more bool, err error) {
	r := lenprefix.Reader{Rest: b}
	more = r.Byte() == 1
	for range r.Count() {
		d := Description{Topic: Topic{gid, store, r.Text()}, Messages: r.Uvarint(), Bytes: r.Uvarint(),
			Newest: r.Uvarint(), Full: r.Uvarint() == 1, Estimated: r.Uvarint() == 1}
		policy, ok := readPolicy(r.Bytes())
		d.Policy = policy
		for range r.Count() {
			d.Sources = append(d.Sources, r.Text())
		}
		for range r.Count() {
			d.Groups = append(d.Groups, GroupDescription{Name: r.Text(), Cursor: r.Uvarint(), Lag: r.Uvarint(),
				Capped: r.Uvarint() == 1, Retried: r.Uvarint(), Delayed: r.Uvarint(), OldestAt: r.Uvarint(),
				Subscribers: r.Uvarint()})
		}
		if r.Bad || !ok {
			break
		}
		list = append(list, d)
	}
	if r.Bad || len(r.Rest) > 0 {
		return nil, false, records.Truncated(Method)
	}
	return list, more, nil
}

// Admin shows and changes the topics of one component for operators. It works on any node, and is safe for concurrent
// use.
type Admin struct {
	access records.Access
	store  string
}

// NewAdmin returns the Admin of a component. store is the namespace, a slash and the name of the component.
func NewAdmin(a records.Access, store string) *Admin { return &Admin{a, store} }

// Describe describes all topics. If only is not empty, it describes only the topic with that name. A topic with parts
// in several Raft groups has one item for each part. The list is sorted by name.
func (a *Admin) Describe(ctx context.Context, only string) (all []Description, err error) {
	groups, err := a.access.Groups(ctx)
	if err != nil {
		return nil, err
	}
	for gid := range groups {
		for after, more := "", true; more; {
			c := call{what: callDescribe, join: Join{Topic: Topic{gid, a.store, only}}, after: after}
			out, _, err := a.access.Ask(ctx, gid, Method, c.append())
			if err != nil {
				return nil, err
			}
			var list []Description
			if list, more, err = readDescriptions(out, gid, a.store); err != nil {
				return nil, err
			}
			if len(list) == 0 {
				break
			}
			after = list[len(list)-1].Name
			all = append(all, list...)
		}
	}
	slices.SortStableFunc(all, func(a, b Description) int { return compare(a.Name, b.Name) })
	return all, nil
}
