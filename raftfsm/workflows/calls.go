package workflows

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/records"
)

// Names of the methods for calls between nodes about workflows. Calls that wait use MethodWait, so that they do not
// hold up the calls that they wait for.
const (
	Method     = "raft.workflow"
	MethodWait = "raft.workflow-wait"
)

// What a call does. The numbers are part of the protocol.
const (
	callJoin    = 1 // begins a session
	callStream  = 2 // adds a stream to a session
	callLeave   = 3 // ends a stream
	callPull    = 4 // waits for work
	callTurn    = 5 // has the answer of a worker to a turn
	callTask    = 6 // has the result of an activity
	callDeliver = 7 // has a message of another instance
	callStart   = 8
	callEvent   = 9
	callPurge   = 10
	callWait    = 11
	callState   = 12
	callEvents  = 13
	callList    = 14
	callApps    = 15 // lists applications
)

// call is a call to the leader. The meaning of the other fields depends on the field what.
type call struct {
	what       byte
	session    string
	ref        Ref
	text       string
	a, b, c, d uint64
	data       []byte
}

func (c *call) method() string {
	if c.what == callPull || c.what == callWait {
		return MethodWait
	}
	return Method
}

func (c *call) append() []byte {
	b := append(make([]byte, 0, len(c.data)+len(c.ref.ID)+len(c.ref.App)+len(c.session)+64), c.what)
	for _, s := range [...]string{c.session, c.ref.App, c.ref.ID, c.text} {
		b = lenprefix.Append(b, s)
	}
	for _, n := range [...]uint64{c.a, c.b, c.c, c.d} {
		b = binary.AppendUvarint(b, n)
	}
	return append(b, c.data...)
}

func readCall(r *lenprefix.Reader) (c call, err error) {
	c.what = r.Byte()
	c.session, c.ref.App, c.ref.ID, c.text = r.Text(), r.Text(), r.Text(), r.Text()
	c.a, c.b, c.c, c.d = r.Uvarint(), r.Uvarint(), r.Uvarint(), r.Uvarint()
	if r.Bad || len(c.session) > maxName || len(c.text) > maxName {
		return c, records.Truncated(Method)
	}
	c.data = r.All()
	return c, nil
}

// Stores reports whether an encoded call creates an instance or adds an event. Such a call is refused while the group
// is read-only.
func Stores(body []byte) bool { return len(body) > 0 && (body[0] == callStart || body[0] == callEvent) }

// Serve executes the encoded call in r, and returns the encoded answer. The call is about workflows of this group.
func (k *Keeper) Serve(ctx context.Context, r *lenprefix.Reader) (out []byte, err error) {
	c, err := readCall(r)
	if err != nil {
		return nil, err
	}
	switch c.what {
	case callJoin:
		j, err := readJoin(&c)
		if err != nil {
			return nil, err
		}
		return nil, k.Join(ctx, &j)
	case callStream:
		r := lenprefix.Reader{Rest: c.data}
		w := readWorker(&r)
		if r.Bad {
			return nil, records.Truncated(Method)
		}
		known, err := k.AddStream(c.session, c.a, c.ref.App, w)
		return []byte{byte(records.Bit(known))}, err
	case callLeave:
		return nil, k.RemoveStream(c.session, c.a)
	case callPull:
		a, known, err := k.pull(ctx, c.session, c.a)
		if err != nil {
			return nil, err
		}
		return appendAnswer([]byte{byte(records.Bit(known))}, &a), nil
	case callTurn, callTask:
		return k.complete(ctx, &c)
	case callDeliver:
		m, ok := readOut(c.data)
		if !ok {
			return nil, records.Truncated(Method)
		}
		return nil, k.Deliver(ctx, &m)
	case callStart:
		n, err := readCreation(&c)
		if err != nil {
			return nil, err
		}
		return nil, k.start(ctx, c.ref, n)
	case callEvent:
		e, err := decodeEvent(c.data)
		if err != nil {
			return nil, err
		}
		return nil, k.event(ctx, c.ref, e, c.a)
	case callPurge:
		return nil, k.purge(ctx, c.ref, c.a == 1)
	}
	return k.serveRead(ctx, &c)
}

// serveRead executes a call that changes nothing, and returns the encoded answer.
func (k *Keeper) serveRead(ctx context.Context, c *call) (out []byte, err error) {
	switch c.what {
	case callWait:
		if c.a > uint64(workflow.Resumed) {
			return nil, records.Truncated(Method)
		}
		reached, err := k.wait(ctx, c.ref, workflow.Until(c.a))
		return []byte{byte(records.Bit(reached))}, err
	case callState:
		s, err := k.state(ctx, c.ref, c.a == 1)
		if err != nil || s == nil {
			return nil, err
		}
		return proto.Marshal(s)
	case callEvents:
		raws, found, more, err := k.events(ctx, c.ref, c.a, int(min(c.b, 1<<20))) //nolint:gosec // bounded
		if err != nil {
			return nil, err
		}
		return append([]byte{byte(records.Bit(found)), byte(records.Bit(more))}, encodeEvents(raws)...), nil
	case callList:
		f, err := readFilter(c.data)
		if err != nil {
			return nil, err
		}
		limit := int(min(max(c.b, 1), records.MaxPage)) //nolint:gosec // bounded
		list, more, err := k.list(ctx, c.ref.App, &f, c.a, c.text, limit)
		if err != nil {
			return nil, err
		}
		return appendList([]byte{byte(records.Bit(more))}, list), nil
	case callApps:
		list, more, err := k.applications(ctx, c.text, records.MaxPage)
		if err != nil {
			return nil, err
		}
		return appendApps([]byte{byte(records.Bit(more))}, list), nil
	}
	return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "this version does not know the call about workflows")
}

// complete passes the answer of a worker to its instance. If the answer ends a turn, complete returns the encoded
// status of the stored turn, see readStored.
func (k *Keeper) complete(ctx context.Context, c *call) (out []byte, err error) {
	if c.what == callTurn {
		answer := &protos.WorkflowResponse{}
		if err := proto.Unmarshal(c.data, answer); err != nil {
			return nil, fault.Wrap(err, opWork, "the answer of a worker cannot be decoded")
		}
		var stored []byte
		err := k.do(ctx, c.ref, opWork, func(ch *change, reply func(error)) {
			before := ch.outcome // of another turn in the same entry, or nil
			ch.completeTurn(c.session, c.b, answer, reply)
			if o := ch.outcome; o != before {
				stored = appendStored(o)
			}
		})
		if err != nil {
			return nil, err
		}
		return stored, nil
	}
	answer := &protos.ActivityResponse{}
	if err := proto.Unmarshal(c.data, answer); err != nil {
		return nil, fault.Wrap(err, opWork, "the result of an activity cannot be decoded")
	}
	id := taskID{c.ref, unbits(c.d), c.b}
	return nil, k.do(ctx, c.ref, opWork, func(ch *change, reply func(error)) {
		ch.completeTask(id, c.c, answer, reply)
	})
}

// appendStored encodes the status of the instance after a turn. If the turn continues as new, the status is
// CONTINUED_AS_NEW.
func appendStored(o *turn.Outcome) []byte {
	status := o.Status
	if o.Replace {
		status = protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW
	}
	return []byte{byte(status)}
}

// readStored decodes the answer to callTurn. It returns false if nothing of the turn was stored, or if the leader runs
// a version that does not return the status.
func readStored(out []byte) (status protos.OrchestrationStatus, ok bool) {
	if len(out) == 0 {
		return 0, false
	}
	return protos.OrchestrationStatus(out[0]), true
}

// appendWorker encodes the properties of a worker that a leader must know.
func appendWorker(b []byte, w workflow.Worker) []byte {
	for _, n := range [...]int{w.MaxTurns, w.MaxActivities} {
		b = binary.AppendUvarint(b, uint64(max(n, 0))) //nolint:gosec // positive
	}
	for _, d := range [...]time.Duration{w.Retention.Completed, w.Retention.Failed, w.Retention.Terminated} {
		b = binary.AppendUvarint(b, uint64((max(d, 0)+time.Millisecond-1)/time.Millisecond)) //nolint:gosec // positive
	}
	return b
}

func readWorker(r *lenprefix.Reader) (w workflow.Worker) {
	for _, n := range [...]*int{&w.MaxTurns, &w.MaxActivities} {
		*n = int(min(r.Uvarint(), 1<<30)) //nolint:gosec // bounded
	}
	for _, d := range [...]*time.Duration{&w.Retention.Completed, &w.Retention.Failed, &w.Retention.Terminated} {
		*d = time.Duration(min(r.Uvarint(), 1<<43)) * time.Millisecond //nolint:gosec // bounded
	}
	return w
}

func (j *Join) append() *call {
	b := binary.AppendUvarint(nil, uint64(len(j.Streams)))
	for id, app := range j.Streams {
		b = appendWorker(lenprefix.Append(binary.AppendUvarint(b, id), app), j.Workers[id])
	}
	b = binary.AppendUvarint(b, uint64(len(j.Held)))
	for n := range j.Held {
		h := &j.Held[n]
		b = lenprefix.Append(lenprefix.Append(b, h.App), h.ID)
		for _, v := range [...]uint64{h.Stream, bits(h.Task), h.Birth, h.Attempt} {
			b = binary.AppendUvarint(b, v)
		}
	}
	return &call{what: callJoin, session: j.Session, text: j.Previous, a: j.Number, data: b}
}

func readJoin(c *call) (j Join, err error) {
	r := lenprefix.Reader{Rest: c.data}
	j = Join{Session: c.session, Previous: c.text, Number: c.a, Streams: map[uint64]string{},
		Workers: map[uint64]workflow.Worker{}}
	for range r.Count() {
		id := r.Uvarint()
		j.Streams[id] = r.Text()
		j.Workers[id] = readWorker(&r)
	}
	for range r.Count() {
		h := Held{App: r.Text(), ID: r.Text(), Stream: r.Uvarint(), Task: unbits(r.Uvarint()),
			Birth: r.Uvarint(), Attempt: r.Uvarint()}
		if r.Bad || (Ref{h.App, h.ID}).check(opWork) != nil {
			return j, records.Truncated(Method)
		}
		j.Held = append(j.Held, h)
	}
	for _, app := range j.Streams {
		if (Ref{app, "x"}).check(opWork) != nil {
			return j, records.Truncated(Method)
		}
	}
	if r.Bad || len(r.Rest) > 0 || j.Session == "" {
		return j, records.Truncated(Method)
	}
	return j, nil
}

// The kinds of parts of a fork, in a callStart. The numbers are part of the protocol.
const (
	forkEvent   = 1
	forkTask    = 2
	forkTimer   = 3
	forkMessage = 4
)

// startCall returns the call that creates an instance.
func startCall(r Ref, n *creation) *call {
	list := [][]byte{encodeEvent(n.event)}
	if f := n.fork; f != nil {
		for _, e := range f.Events {
			list = append(list, append([]byte{forkEvent}, encodeEvent(e)...))
		}
		for i := range f.Tasks {
			t := &f.Tasks[i]
			b := binary.AppendUvarint([]byte{forkTask}, bits(t.ID))
			list = append(list, append(lenprefix.Append(b, t.App), encodeEvent(t.Event)...))
		}
		for i := range f.Timers {
			t := &f.Timers[i]
			b := binary.AppendUvarint([]byte{forkTimer}, bits(t.ID))
			b = binary.AppendUvarint(b, millis(t.FireAt))
			list = append(list, append(b, encodeEvent(t.Event)...))
		}
		for i := range f.Messages {
			m := &f.Messages[i]
			o := outRecord{to: Ref{m.App, m.Instance}, execution: m.Execution, key: m.Key, event: encodeEvent(m.Event)}
			list = append(list, append([]byte{forkMessage}, o.encode()...))
		}
	}
	c := &call{what: callStart, ref: r, text: n.checked, b: flags(n.unique, n.fork != nil), data: encodeEvents(list)}
	if !n.startAt.IsZero() {
		c.a = millis(n.startAt)
	}
	return c
}

func readCreation(c *call) (*creation, error) {
	raws, ok := readEvents(c.data)
	if !ok || len(raws) == 0 || c.b > 3 {
		return nil, records.Truncated(Method)
	}
	e, err := decodeEvent(raws[0])
	if err != nil || e.GetExecutionStarted() == nil {
		return nil, records.Truncated(Method)
	}
	n := &creation{event: e, unique: c.b&1 != 0, checked: c.text}
	if c.a != 0 {
		n.startAt = timeOfMillis(c.a)
	}
	if c.b&2 != 0 {
		n.fork = &turn.Fork{ID: c.ref.ID}
		for _, raw := range raws[1:] {
			if err := readFork(n.fork, raw); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

func readFork(f *turn.Fork, raw []byte) error {
	r := lenprefix.Reader{Rest: raw}
	kind := r.Byte()
	switch kind {
	case forkTask:
		f.Tasks = append(f.Tasks, turn.Task{ID: unbits(r.Uvarint()), App: r.Text()})
	case forkTimer:
		t := turn.Timer{ID: unbits(r.Uvarint())}
		t.FireAt = timeOfMillis(r.Uvarint())
		f.Timers = append(f.Timers, t)
	case forkMessage:
		m, ok := readOut(r.All())
		if !ok || m.to.check(opStart) != nil {
			return records.Truncated(Method)
		}
		f.Messages = append(f.Messages, turn.Message{App: m.to.App, Instance: m.to.ID, Execution: m.execution,
			Key: m.key})
		r.Rest = m.event
	case forkEvent:
	default:
		return records.Truncated(Method)
	}
	e, err := decodeEvent(r.Rest)
	if err != nil || r.Bad {
		return records.Truncated(Method)
	}
	switch kind {
	case forkTask:
		f.Tasks[len(f.Tasks)-1].Event = e
	case forkTimer:
		f.Timers[len(f.Timers)-1].Event = e
	case forkMessage:
		f.Messages[len(f.Messages)-1].Event = e
	default:
		f.Events = append(f.Events, e)
	}
	return nil
}

func appendAnswer(b []byte, a *answer) []byte {
	size := len(b) + 64
	for _, i := range a.items {
		size += i.size() + 128
	}
	b = append(make([]byte, 0, size), b...)
	b = append(b, byte(records.Bit(a.proven)))
	b = binary.AppendUvarint(binary.AppendUvarint(b, a.number), uint64(len(a.items)))
	for _, i := range a.items {
		b = append(b, i.kind)
		b = lenprefix.Append(lenprefix.Append(lenprefix.Append(b, i.ref.App), i.ref.ID), i.exec)
		for _, n := range [...]uint64{i.stream, i.number, i.from, bits(i.task), i.birth} {
			b = binary.AppendUvarint(b, n)
		}
		for _, list := range [...][][]byte{i.past[i.from:], i.fresh} {
			b = binary.AppendUvarint(b, uint64(len(list)))
			for _, e := range list {
				b = lenprefix.Append(b, e)
			}
		}
	}
	return b
}

// readAnswer decodes the answer to a pull. In an item with a turn, past has only the part of the history that begins at
// position item.from. The items share the memory of b.
func readAnswer(b []byte) (known bool, a answer, err error) {
	r := lenprefix.Reader{Rest: b}
	known, a.proven, a.number = r.Byte() == 1, r.Byte() == 1, r.Uvarint()
	for range r.Count() {
		i := &item{kind: r.Byte(), ref: Ref{r.Text(), r.Text()}, exec: r.Text(), stream: r.Uvarint(),
			number: r.Uvarint(), from: r.Uvarint(), task: unbits(r.Uvarint()), birth: r.Uvarint()}
		for _, list := range [...]*[][]byte{&i.past, &i.fresh} {
			for range r.Count() {
				*list = append(*list, r.Bytes())
			}
		}
		if r.Bad || i.kind != itemTurn && i.kind != itemTask || i.kind == itemTask && len(i.fresh) != 1 {
			return false, answer{}, records.Truncated(Method)
		}
		a.items = append(a.items, i)
	}
	if r.Bad || len(r.Rest) > 0 {
		return false, answer{}, records.Truncated(Method)
	}
	return known, a, nil
}

func appendFilter(f *workflow.Filter) []byte {
	b := append([]byte(nil), byte(flags(f.WithoutChildren)))
	b = lenprefix.Append(lenprefix.Append(b, f.Prefix), f.Name)
	for _, t := range [...]time.Time{f.CreatedFrom, f.CreatedTo} {
		n := uint64(0)
		if !t.IsZero() {
			n = nanosOf(t)
		}
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendUvarint(b, uint64(len(f.Statuses)))
	for _, s := range f.Statuses {
		b = binary.AppendUvarint(b, uint64(s)) //nolint:gosec // not negative
	}
	return b
}

func readFilter(b []byte) (f workflow.Filter, err error) {
	r := lenprefix.Reader{Rest: b}
	f = workflow.Filter{WithoutChildren: r.Byte() == 1, Prefix: r.Text(), Name: r.Text()}
	for _, t := range [...]*time.Time{&f.CreatedFrom, &f.CreatedTo} {
		if n := r.Uvarint(); n != 0 {
			*t = timeOf(n)
		}
	}
	for range r.Count() {
		f.Statuses = append(f.Statuses, statusOf(r.Uvarint()))
	}
	if r.Bad || len(r.Rest) > 0 || len(f.Prefix) > maxName || len(f.Name) > maxName {
		return f, records.Truncated(Method)
	}
	return f, nil
}

func appendList(b []byte, list []listed) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for n := range list {
		l := &list[n]
		b = lenprefix.Append(lenprefix.Append(lenprefix.Append(b, l.ID), l.Name), l.Parent)
		for _, v := range [...]uint64{bits(int32(l.Status)), l.created,
			uint64(l.Updated.UnixNano())} { //nolint:gosec // positive
			b = binary.AppendUvarint(b, v)
		}
	}
	return b
}

func readListAnswer(b []byte) (list []listed, more bool, err error) {
	r := lenprefix.Reader{Rest: b}
	more = r.Byte() == 1
	for range r.Count() {
		l := listed{Listed: workflow.Listed{ID: r.Text(), Name: r.Text(), Parent: r.Text(),
			Status: statusOf(r.Uvarint())}, created: r.Uvarint()}
		l.Created = timeOf(l.created)
		l.Updated = timeOf(r.Uvarint())
		if r.Bad {
			break
		}
		list = append(list, l)
	}
	if r.Bad || len(r.Rest) > 0 {
		return nil, false, records.Truncated(Method)
	}
	return list, more, nil
}

func appendApps(b []byte, list []workflow.Application) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for n := range list {
		b = binary.AppendUvarint(lenprefix.Append(b, list[n].ID), uint64(list[n].Workers)) //nolint:gosec // small
	}
	return b
}

func readApps(b []byte) (list []workflow.Application, more bool, err error) {
	r := lenprefix.Reader{Rest: b}
	more = r.Byte() == 1
	for range r.Count() {
		list = append(list, workflow.Application{ID: r.Text(), Workers: int(min(r.Uvarint(), //nolint:gosec // bounded
			1<<30))})
	}
	if r.Bad || len(r.Rest) > 0 {
		return nil, false, records.Truncated(Method)
	}
	return list, more, nil
}
