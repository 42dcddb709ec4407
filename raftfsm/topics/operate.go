package topics

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"mime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Names of operations, for errors.
const (
	opRead    = "topics.Read"
	opRemove  = "topics.Remove"
	opRedrive = "topics.Redrive"
	opReplay  = "topics.Replay"
)

// Newest is a value for Start.After. With this value, Read returns only messages that are published after the call.
const Newest = math.MaxUint64

// Bounds of one call.
const (
	readPage    = 256 // messages that one call reads
	removePage  = 512 // records that one log entry removes
	removeTurns = 8   // log entries that one call of Remove proposes
)

// readers are the calls of Read that wait for messages of a topic.
type readers struct {
	wake    chan struct{} // closed when there is a message, or this server does not lead any more
	waiting int
}

// Read returns stored messages of a topic, in the order of their offsets. If since is not 0, Read begins with the first
// message that was published at that cluster time or later. Otherwise it begins with the first message whose offset is
// greater than after. If there is no message and wait is true, Read waits up to pullPatience for one.
//
// To continue, call Read again with after set to next. If more is true, further messages are already stored.
func (k *Keeper) Read(ctx context.Context, t Topic, after, since uint64, wait bool) (list []Handed, next uint64,
	more bool, err error) {
	if err := checkNames(opRead, t.Name, ""); err != nil {
		return nil, 0, false, err
	}
	deadline := make(chan struct{})
	stop := k.opts.AfterFunc(pullPatience, func() { close(deadline) })
	defer stop()
	for {
		wake := k.await(t)
		list, next, more, err = k.readNow(ctx, t, after, since)
		if err != nil || len(list) > 0 || !wait {
			k.enough(t, wake)
			return list, next, more, err
		}
		after, since = next, 0
		select {
		case <-wake:
		case <-deadline:
			k.enough(t, wake)
			return nil, next, false, nil
		case <-ctx.Done():
			k.enough(t, wake)
			return nil, 0, false, fault.Wrap(ctx.Err(), opRead, "no message came in time")
		}
	}
}

// await begins to wait for a message of a topic. It returns a channel that is closed when a message arrives or when
// this server stops leading. A caller that stops waiting before the channel is closed must call enough.
func (k *Keeper) await(t Topic) chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.readers[t]
	if r == nil {
		r = &readers{wake: make(chan struct{})}
		k.readers[t] = r
	}
	r.waiting++
	return r.wake
}

// enough ends a wait that await has begun. wake is the result of await.
func (k *Keeper) enough(t Topic, wake chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.readers[t]; r != nil && r.wake == wake {
		if r.waiting--; r.waiting == 0 {
			delete(k.readers, t)
		}
	}
}

// wakeReaders ends the waits for messages of a topic. The caller holds k.mu.
func (k *Keeper) wakeReaders(t Topic) {
	if r := k.readers[t]; r != nil {
		close(r.wake)
		delete(k.readers, t)
	}
}

func (k *Keeper) readNow(ctx context.Context, t Topic, after, since uint64) (list []Handed, next uint64, more bool,
	err error) {
	m, now, err := k.view(ctx, opRead)
	if err != nil {
		return nil, 0, false, err
	}
	switch {
	case since > 0:
		first, err := firstSince(m, t, since)
		if err != nil {
			return nil, 0, false, err
		}
		after = first - 1
	case after == Newest:
		return nil, m.Revision(), false, nil
	}
	found, more, err := m.Records(kv.TopicStore, t.key(tableMessage, ""), t.messageKey(after), readPage, maxPullBytes,
		now)
	if err != nil {
		return nil, 0, false, err
	}
	next = after
	for i := range found {
		next = offsetOf(found[i].Key)
		list = append(list, Handed{Offset: next, Value: found[i].Value, ExpireAt: found[i].ExpireAt})
	}
	return list, next, more, nil
}

// Removal is a request to remove a topic or a consumer group.
type Removal struct {
	Topic Topic
	Group string // the consumer group to remove; empty = the topic with all groups
	Upto  uint64 // offset up to which messages are removed; 0 = up to the newest message; see Progress.Upto
	Force bool   // remove also if there are subscribers
}

// Progress is what one call of Remove or Redrive has done.
type Progress struct {
	Done    uint64            // records that were removed, or messages that were moved
	Skipped uint64            // messages that stay where they are; see Redrive
	To      map[string]uint64 // numbers of moved messages, by the topic to which they were moved
	Next    uint64            // offset after which the next call continues
	Upto    uint64            // value of Upto for the next call
	More    bool              // another call is needed
}

// Remove removes a topic or a consumer group, in at most removeTurns log entries. If Progress.More is true, a further
// call is needed. If an entry fails after others were applied, Remove returns the progress and no error. Remove returns
// fault.Conflict if there are subscribers, unless r.Force is true.
//
// Remove deletes the messages before the records of groups, so that a group that is created again in the meantime does
// not get the removed messages.
//
// Remove keeps the policy of the topic. Otherwise a topic that is used again at once could have the default policy for
// a minute, because each publisher stores the policy at most once a minute.
func (k *Keeper) Remove(ctx context.Context, r *Removal) (p Progress, err error) {
	if err := checkNames(opRemove, r.Topic.Name, r.Group); err != nil {
		return p, err
	}
	m, _, err := k.view(ctx, opRemove)
	if err != nil {
		return p, err
	}
	if p.Upto = r.Upto; p.Upto == 0 {
		p.Upto = m.Revision()
	}
	if err := k.unused(r); err != nil {
		return p, err
	}
	tables := []string{r.Topic.key(tableMessage, ""), r.Topic.key(tableGroup, ""), r.Topic.key(tableParked, ""),
		r.Topic.key(tableID, ""), r.Topic.key(tableFull, ""), r.Topic.key(tableCount, ""),
		r.Topic.key(tableSource, "")}
	if r.Group != "" {
		tables = []string{r.Topic.key(tableGroup, r.Group), r.Topic.parkedPrefix(r.Group)}
	}
	for range removeTurns {
		n, more, err := k.removeSome(m, r, tables, p.Upto)
		if err != nil && p.Done > 0 {
			break // the next call continues, or returns the error
		}
		if err != nil || !more {
			return p, err
		}
		p.Done += n
	}
	p.More = true
	return p, nil
}

// removeSome removes some of the records that r selects, with one log entry, and returns their number. The result more
// is false if no records are left.
func (k *Keeper) removeSome(m *kv.Machine, r *Removal, tables []string, upto uint64) (n uint64, more bool, err error) {
	ops, err := removal(m, r, tables, upto)
	if err != nil || len(ops) == 0 {
		k.removed(r.Topic)
		k.ended(r)
		return 0, false, err
	}
	g, err := k.leading(opRemove)
	if err != nil {
		return 0, false, err
	}
	res, err := k.commit(g, ops)
	if err != nil || res.Outcome != kv.Applied { // not applied: a subscriber has created a group again
		return 0, true, err
	}
	for i := range ops {
		if ops[i].Kind == command.OpDelete {
			n++
		}
	}
	return n, true, nil
}

// leading returns the Raft group, or an error if this server does not lead it.
func (k *Keeper) leading(op string) (records.Group, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.group, k.lead(op)
}

// unused returns fault.Conflict if a group that is to be removed has subscribers, unless r.Force is true.
func (k *Keeper) unused(r *Removal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.topics[r.Topic]
	if r.Force || one == nil {
		return nil
	}
	for _, c := range one.consumers {
		if n := len(c.members); n > 0 && (r.Group == "" || r.Group == c.group) {
			return &fault.Error{Code: fault.Conflict, Op: opRemove, Key: r.Topic.Name,
				Msg: "topic " + r.Topic.Name + " is in use: consumer group " + c.group + " has subscribers (" +
					strconv.Itoa(n) + ")", Hint: "stop the subscribers, or use --force"}
		}
	}
	return nil
}

// removal returns operations that remove up to removePage records of a topic or a group. tables contains key prefixes,
// in the order in which their records are removed. The operations remove records with one prefix only. Messages with
// offsets above upto stay.
//
// The record of a group is removed before its parked records, so that the group parks no further message. The request
// that removes the parked records fails if the group exists again.
func removal(m *kv.Machine, r *Removal, tables []string, upto uint64) (ops []command.Op, err error) {
	message, group := r.Topic.key(tableMessage, ""), r.Topic.key(tableGroup, r.Group)
	checked := ""
	for _, prefix := range tables {
		found, _, err := m.List(kv.TopicStore, prefix, "", removePage, 0)
		if err != nil {
			return nil, err
		}
		for i := range found {
			key := found[i].Key
			if prefix == message && offsetOf(key) > upto {
				break // published after the removal began
			}
			if r.Group != "" && prefix == group && key != group {
				continue // another group, whose name begins with r.Group
			}
			if of, ok := r.Topic.groupOfParked(key); ok && of != checked {
				checked = of
				ops = append(ops, command.Op{Kind: command.OpCheck, Cond: command.CondAbsent, Store: kv.TopicStore,
					Key: r.Topic.key(tableGroup, of)})
			}
			ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore, Key: key})
		}
		if len(ops) > 0 {
			return ops, nil
		}
	}
	return nil, nil
}

// removed updates the leader's memory after records of the topic t were removed. The next sweep counts the messages of
// t again. The leader also forgets which topics have sent dead letters to t.
func (k *Keeper) removed(t Topic) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, other := range k.topics {
		delete(other.letters, t.Name)
	}
	if one := k.topics[t]; one != nil && k.machine != nil {
		one.stale, one.dirty, one.touched, one.purged = true, true, true, true
		k.sweepIn(sweepPause)
	}
}

// ended makes the leader read the removed groups again, so that it notices their removal. If such a group has
// subscribers, their nodes then join again, which creates the group.
func (k *Keeper) ended(r *Removal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.topics[r.Topic]
	if one == nil || k.closed || k.machine == nil {
		return
	}
	g := k.group
	for _, c := range one.consumers {
		if (r.Group == "" || r.Group == c.group) && !c.gone {
			k.again(g, c)
		}
	}
}

// Redriving is a request to move dead letters back.
type Redriving struct {
	Topic Topic
	To    string // topic to which the messages move; empty = the original topic of each message
	After uint64 // offset after which messages are moved
	Upto  uint64 // offset up to which messages are moved; 0 = up to the newest message; see Progress.Upto
}

// Redrive moves one page of messages from the dead-letter topic r.Topic to the topic r.To. If r.To is empty, each
// message moves back to its original topic. A message stays if its original topic is unknown or is r.Topic itself. If
// Progress.More is true, a further call is needed.
//
// The same log entry adds a message to its new topic and removes it from the dead-letter topic. So no message is lost
// or moved twice, even if Redrive is repeated.
//
// Redrive returns fault.Overloaded if a target topic is full, and fault.Invalid if r.To is r.Topic.
func (k *Keeper) Redrive(ctx context.Context, r *Redriving) (p Progress, err error) {
	for _, name := range []string{r.Topic.Name, cmp.Or(r.To, "-")} {
		if err := checkNames(opRedrive, name, ""); err != nil {
			return p, err
		}
	}
	if r.To == r.Topic.Name {
		return p, fault.New(fault.Invalid, opRedrive, "the messages are in topic "+r.To+" already")
	}
	for {
		m, now, err := k.view(ctx, opRedrive)
		if err != nil {
			return p, err
		}
		if p.Upto = r.Upto; p.Upto == 0 {
			p.Upto = m.Revision() // messages that fail again in the meantime stay
		}
		sources, err := sourcesOf(m, r.Topic)
		if err != nil {
			return p, err
		}
		found, more, err := m.Records(kv.TopicStore, r.Topic.key(tableMessage, ""), r.Topic.messageKey(r.After), page,
			pageBytes, now)
		if err != nil {
			return p, err
		}
		p.Done, p.Skipped, p.To, p.Next, p.More = 0, 0, map[string]uint64{}, r.After, more
		ops := r.move(&p, found, sources, now)
		if len(ops) == 0 {
			k.removed(r.Topic)
			return p, nil
		}
		g, err := k.leading(opRedrive)
		if err != nil {
			return p, err
		}
		res, err := k.commit(g, ops)
		if err != nil {
			return p, err
		}
		if res.Outcome == kv.Applied {
			if !p.More {
				k.removed(r.Topic)
			}
			return p, nil
		}
		for name := range p.To {
			if res.Key == r.target(name).key(tableFull, "") {
				return p, errFull(name)
			}
		}
		// Another request has moved or removed a message in the meantime, so read the messages again.
	}
}

// target returns the part of the named topic in the Raft group that has the dead letters. Subscribers find the messages
// there, because they receive messages from the parts of the topic in all Raft groups.
func (r *Redriving) target(name string) Topic {
	t := r.Topic
	t.Name = name
	return t
}

// move returns the operations that move a page of dead letters, and updates the progress.
func (r *Redriving) move(p *Progress, found []kv.Record, sources []string, now uint64) (ops []command.Op) {
	for i := range found {
		one := &found[i]
		if offsetOf(one.Key) > p.Upto {
			p.More = false
			break
		}
		p.Next = offsetOf(one.Key)
		name := cmp.Or(r.To, sourceOf(one.Value, sources))
		if name == "" || name == r.Topic.Name {
			p.Skipped++
			continue
		}
		to := r.target(name)
		if p.To[name] == 0 {
			ops = append(ops, command.Op{Kind: command.OpCheck, Cond: command.CondAbsent, Store: kv.TopicStore,
				Key: to.key(tableFull, "")})
		}
		op := command.Op{Kind: command.OpAppend, Store: kv.TopicStore, Key: to.key(tableMessage, ""),
			Value: one.Value[8:]}
		if one.ExpireAt != 0 {
			op.TTL = max(one.ExpireAt, now+1) - now
		}
		ops = append(ops, op, command.Op{Kind: command.OpDelete, Cond: command.CondRevision, Revision: one.Revision,
			Store: kv.TopicStore, Key: one.Key})
		p.To[name]++
		p.Done++
	}
	return ops
}

// sourceOf returns the original topic of a dead letter, or "" if it is unknown. sources contains the topics whose dead
// letters are in this topic. If there are several, sourceOf chooses the one that the CloudEvent in the message names.
// It returns only topics in sources, because a publisher can write any name into a CloudEvent.
func sourceOf(value []byte, sources []string) string {
	if len(sources) == 1 {
		return sources[0]
	}
	m, ok := decodeMessage(value)
	if base, _, err := mime.ParseMediaType(m.ContentType); !ok || err != nil || base != "application/cloudevents+json" {
		return ""
	}
	var event struct {
		Topic string `json:"topic"`
	}
	if json.Unmarshal(m.Data, &event) != nil || event.Topic == "" {
		return ""
	}
	if slices.Contains(sources, event.Topic) {
		return event.Topic
	}
	found := ""
	for _, s := range sources { // a component may put a prefix in front of its topics
		if strings.HasSuffix(s, event.Topic) {
			if found != "" {
				return ""
			}
			found = s
		}
	}
	return found
}

func appendProgress(b []byte, p *Progress) []byte {
	for _, n := range [...]uint64{p.Done, p.Skipped, p.Next, p.Upto, records.Bit(p.More), uint64(len(p.To))} {
		b = binary.AppendUvarint(b, n)
	}
	for name, n := range p.To {
		b = binary.AppendUvarint(lenprefix.Append(b, name), n)
	}
	return b
}

func readProgress(b []byte) (p Progress, err error) {
	r := lenprefix.Reader{Rest: b}
	p = Progress{Done: r.Uvarint(), Skipped: r.Uvarint(), Next: r.Uvarint(), Upto: r.Uvarint(),
		More: r.Uvarint() == 1, To: map[string]uint64{}}
	for range r.Count() {
		name := r.Text()
		p.To[name] = r.Uvarint()
	}
	if r.Bad || len(r.Rest) > 0 {
		return p, records.Truncated(Method)
	}
	return p, nil
}

func appendReading(b []byte, list []Handed, next uint64, more bool) []byte {
	b = binary.AppendUvarint(append(b, byte(records.Bit(more))), next)
	return appendAnswer(b, &Answer{List: list})
}

func readReading(b []byte) (list []Handed, next uint64, more bool, err error) {
	r := lenprefix.Reader{Rest: b}
	more = r.Byte() == 1
	next = r.Uvarint()
	if r.Bad {
		return nil, 0, false, records.Truncated(Method)
	}
	_, a, err := readAnswer(append([]byte{1}, r.Rest...))
	return a.List, next, more, err
}

// Entry is a message as it is stored.
type Entry struct {
	pubsub.Message
	RaftGroup uint32
	Offset    uint64
	At        time.Time // when it was stored, in cluster time
	ExpireAt  time.Time // zero = never
}

// Start says where Read begins: at the time Since, or after the offset After in every Raft group. With the zero
// value, Read begins at the first message.
type Start struct {
	After uint64    // Newest = only messages that are published later
	Since time.Time // zero = begin after the offset After
}

// Read calls take for each message of a topic. The messages of one Raft group come in the order of their offsets. After
// all existing messages, Read calls caughtUp once. It then returns or, if follow is true, waits for further messages
// until ctx ends. take and caughtUp are not called concurrently.
func (a *Admin) Read(ctx context.Context, topic string, from Start, follow bool, take func(*Entry) error,
	caughtUp func() error) error {
	groups, err := a.access.Groups(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var reading sync.WaitGroup
	behind := groups
	for gid := range groups {
		reading.Go(func() {
			err := a.readPart(ctx, Topic{gid, a.store, topic}, from, follow, func(e *Entry) error {
				mu.Lock()
				defer mu.Unlock()
				return take(e)
			}, func() error {
				mu.Lock()
				defer mu.Unlock()
				if behind--; behind > 0 {
					return nil
				}
				return caughtUp()
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	reading.Wait()
	return context.Cause(ctx)
}

func (a *Admin) readPart(ctx context.Context, t Topic, from Start, follow bool, take func(*Entry) error,
	caughtUp func() error) error {
	c := call{what: callRead, join: Join{Topic: t}, offset: from.After, since: millis(from.Since)}
	for ctx.Err() == nil {
		list, more, err := a.readSome(ctx, &c)
		if err != nil {
			return err
		}
		for i := range list {
			e, err := entryOf(t, &list[i])
			if err == nil {
				err = take(&e)
			}
			if err != nil {
				return err
			}
		}
		if more || c.wait {
			continue
		}
		if err := caughtUp(); err != nil || !follow {
			return err
		}
		c.wait = true
	}
	return ctx.Err()
}

// readSome reads the next messages, and updates c for the next call. The result more is true if there are further
// messages.
func (a *Admin) readSome(ctx context.Context, c *call) (list []Handed, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, _, err := a.access.Ask(ctx, c.join.Topic.Group, c.method(), c.append())
	if err != nil {
		return nil, false, err
	}
	list, c.offset, more, err = readReading(out)
	c.since = 0
	return list, more, err
}

func entryOf(t Topic, h *Handed) (e Entry, err error) {
	head, ok := readMessage(h.Value)
	m, complete := decodeMessage(h.Value)
	if !ok || !complete {
		return e, errRecord(fmt.Sprintf("the message with the offset %d", h.Offset), t)
	}
	e = Entry{Message: m, RaftGroup: t.Group, Offset: h.Offset, At: timeOf(head.at)}
	if h.ExpireAt != 0 {
		e.ExpireAt = timeOf(h.ExpireAt)
	}
	return e, nil
}

func timeOf(ms uint64) time.Time { return time.UnixMilli(int64(min(ms, math.MaxInt64))) } //nolint:gosec // bounded

// Replay makes a consumer group receive messages again. If offset is not 0, these are the messages from that offset on.
// Otherwise they are the messages that were published at or after since.
//
// Replay returns fault.NotFound if the group does not exist. If it fails after a part of the group may have been moved
// back, it returns fault.Indeterminate, and the caller may repeat the call.
func (a *Admin) Replay(ctx context.Context, topic, group string, offset uint64, since time.Time) error {
	groups, err := a.access.Groups(ctx)
	if err != nil {
		return err
	}
	found := false
	for gid := range groups {
		c := call{what: callReplay, offset: offset, since: millis(since), join: Join{Group: group,
			Topic: Topic{Group: gid, Store: a.store, Name: topic}}}
		_, repeated, err := a.access.Ask(ctx, gid, Method, c.append())
		switch {
		case err == nil:
			found = true
		case fault.Is(err, fault.NotFound): // this part has no such group, whatever an earlier attempt has done
		case found || repeated:
			return errPartlyReplayed(err)
		default:
			return err
		}
	}
	if !found {
		return fault.New(fault.NotFound, opReplay, "topic "+topic+" has no consumer group "+group)
	}
	return nil
}

// errPartlyReplayed returns the error of a replay that may have moved a part of the group back before it failed. The
// code of the error is fault.Indeterminate, and it wraps the given error.
func errPartlyReplayed(err error) error {
	if fault.Is(err, fault.Indeterminate) {
		return err
	}
	return &fault.Error{Code: fault.Indeterminate, Op: opReplay, Err: err,
		Msg: "a part of the group may have been moved back", Hint: "run it again: a replay can be repeated"}
}

// Remove removes a topic, or only a consumer group if group is not empty. It returns fault.Conflict if there are
// subscribers, unless force is true. Remove sends several calls to the leaders. After each of them, it calls report
// with the progress of that call.
func (a *Admin) Remove(ctx context.Context, topic, group string, force bool, report func(Progress) error) error {
	return a.each(ctx, func(gid uint32, last *Progress) *call {
		c := call{what: callRemove, join: Join{Topic: Topic{gid, a.store, topic}, Group: group, Newest: force}}
		c.since = last.Upto
		return &c
	}, report)
}

// Redrive moves the messages of a dead-letter topic to the topic named by to. If to is empty, each message moves back
// to its original topic. Redrive sends several calls to the leaders. After each of them, it calls report with the
// progress of that call.
func (a *Admin) Redrive(ctx context.Context, topic, to string, report func(Progress) error) error {
	return a.each(ctx, func(gid uint32, last *Progress) *call {
		c := call{what: callRedrive, join: Join{Topic: Topic{gid, a.store, topic}, Group: to}}
		c.offset, c.since = last.Next, last.Upto
		return &c
	}, report)
}

// each calls every Raft group, one group after another. It repeats the call to a group until Progress.More is false,
// and passes the progress of every call to report.
//
// next returns the next call to the given group. last is the progress of the previous call to the same group.
func (a *Admin) each(ctx context.Context, next func(gid uint32, last *Progress) *call,
	report func(Progress) error) error {
	groups, err := a.access.Groups(ctx)
	if err != nil {
		return err
	}
	for gid := range groups {
		for last := (Progress{More: true}); last.More; {
			c := next(gid, &last)
			if last, err = a.step(ctx, gid, c); err != nil {
				return err
			}
			if err := report(last); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *Admin) step(ctx context.Context, gid uint32, c *call) (Progress, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, _, err := records.AskChange(ctx, a.access, gid, Method, c.append())
	if err != nil {
		return Progress{}, err
	}
	return readProgress(out)
}
