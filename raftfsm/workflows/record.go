package workflows

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// The tables of a bucket. The values are part of the format.
const (
	tableChunk   = 'c' // history, one record for the events of one turn
	tableDue     = 'd' // timers, scheduled starts and retention, by time
	tableHead    = 'h' // the main record of an instance
	tableInbox   = 'i' // events that no turn has consumed
	tableList    = 'l' // instances by the time of their creation
	tableOutbox  = 'o' // messages for other instances
	tableSession = 's' // nodes with workers; the key begins with the number of the group
	tableTask    = 't' // activities without a result
)

// recordVersion is the first byte of every record.
const recordVersion = 1

// buckets is the number of buckets of an application. The number is part of the format.
const buckets = 64

// Bounds and numbers of records.
const (
	maxName   = 1 << 10 // bytes of an application, an instance id, the name of a workflow or of an event
	maxRecent = 32      // idempotency keys of a head
	middle    = 1 << 40 // number of the first event of an inbox; there is room for events before it
)

// Ref identifies an instance. App is the application whose workers run the instance. App and ID must not contain a
// NUL byte.
type Ref struct{ App, ID string }

func (r Ref) bucket() uint16 {
	return uint16(xxhash.Sum64String(r.ID) % buckets) //nolint:gosec // below buckets
}

// Prefix returns the prefix of all keys of the bucket that has the instance. PartitionOf derives the group of the
// instance from this prefix.
func (r Ref) Prefix() string { return r.place().prefix() }

// check returns fault.Invalid or fault.TooLarge if the application or the id of r cannot be part of a key. op is the
// operation in the error.
func (r Ref) check(op string) error {
	switch {
	case r.App == "" || r.ID == "":
		return fault.New(fault.Invalid, op, "the application or the instance id is empty")
	case len(r.App) > maxName || len(r.ID) > maxName:
		return fault.New(fault.TooLarge, op, fmt.Sprintf("an application id and an instance id have at most %d bytes",
			maxName))
	case strings.Contains(r.App+r.ID, "\x00"):
		return fault.New(fault.Invalid, op, "an application id and an instance id have no NUL")
	}
	return nil
}

// place is a bucket of an application.
type place struct {
	app    string
	bucket uint16
}

func (r Ref) place() place { return place{r.App, r.bucket()} }

func (p place) prefix() string {
	return p.app + "\x00" + string(binary.BigEndian.AppendUint16(nil, p.bucket))
}

func (p place) table(table byte) string { return p.prefix() + string([]byte{table}) }

// key returns the key of a record of one instance.
func (r Ref) key(table byte, rest string) string {
	if table == tableHead {
		return r.place().table(table) + r.ID
	}
	return r.place().table(table) + r.ID + "\x00" + rest
}

func (r Ref) chunkKey(n uint64) string { return r.key(tableChunk, be64(n)) }
func (r Ref) inboxKey(n uint64) string { return r.key(tableInbox, be64(n)) }

func (r Ref) taskKey(id int32, birth uint64) string {
	return r.key(tableTask, string(binary.BigEndian.AppendUint32(nil, uint32(id)))+be64(birth)) //nolint:gosec // bits
}

func (r Ref) outboxKey(birth uint64, n int) string {
	return r.key(tableOutbox, be64(birth)+be64(uint64(n))) //nolint:gosec // not negative
}

func (r Ref) listKey(created uint64) string { return r.place().table(tableList) + be64(created) + r.ID }

// dueKey returns the key of a due record. at is its time in Unix milliseconds. kind and id distinguish the records of
// an instance that have the same time.
func (r Ref) dueKey(at uint64, kind byte, id int32) string {
	return r.place().table(tableDue) + be64(at) + r.ID + "\x00" + string([]byte{kind}) +
		string(binary.BigEndian.AppendUint32(nil, uint32(id))) //nolint:gosec // bits
}

func sessionPrefix(group uint32) string {
	return "\x00" + string(binary.BigEndian.AppendUint32(nil, group)) + string([]byte{tableSession})
}

// bits encodes the id of an event, which may be negative, as a number that unbits decodes.
func bits(id int32) uint64 { return uint64(uint32(id)) } //nolint:gosec // bits

func unbits(n uint64) int32 { return int32(uint32(n)) } //nolint:gosec // bits

// timeOf returns the time that is n nanoseconds after the Unix epoch.
func timeOf(n uint64) time.Time { return time.Unix(0, int64(min(n, 1<<63-1))).UTC() } //nolint:gosec // bounded

// timeOfMillis returns the time that is n milliseconds after the Unix epoch.
func timeOfMillis(n uint64) time.Time {
	return time.UnixMilli(int64(min(n, 1<<48))).UTC() //nolint:gosec // bounded
}

func statusOf(n uint64) protos.OrchestrationStatus {
	return protos.OrchestrationStatus(min(n, 1<<16)) //nolint:gosec // bounded
}

func be64(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

// number returns the number in the last 8 bytes of a key, or 0 if the key is shorter.
func number(key string) uint64 {
	if len(key) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64([]byte(key[len(key)-8:]))
}

// PartitionOf returns the group to which a key of kv.WorkflowStore belongs. Most keys begin with a bucket, and all
// keys of a bucket are in one group. A key without a bucket contains the number of its group. The function is part of
// the data format and must never change.
func PartitionOf(key string, partitions uint32) uint32 {
	app, rest, found := strings.Cut(key, "\x00")
	if app == "" && len(rest) >= 4 {
		return binary.BigEndian.Uint32([]byte(rest[:4])) % partitions
	}
	bucket := uint64(0)
	if found && len(rest) >= 2 {
		bucket = uint64(binary.BigEndian.Uint16([]byte(rest[:2])))
	}
	return uint32((xxhash.Sum64String(app) + bucket) % uint64(partitions)) //nolint:gosec // below partitions
}

// splitKey returns the bucket, the table and the rest of a key. ok is false for a key without a bucket.
func splitKey(key string) (p place, table byte, rest string, ok bool) {
	app, rest, found := strings.Cut(key, "\x00")
	if !found || app == "" || len(rest) < 3 {
		return place{}, 0, "", false
	}
	return place{app, binary.BigEndian.Uint16([]byte(rest[:2]))}, rest[2], rest[3:], true
}

// instanceOf splits a key into the instance, the table and the rest. Use it for the tables whose keys begin with an
// instance id. ok is false for other keys.
func instanceOf(key string) (r Ref, table byte, rest string, ok bool) {
	p, table, rest, ok := splitKey(key)
	if !ok {
		return Ref{}, 0, "", false
	}
	id, rest, found := strings.Cut(rest, "\x00")
	return Ref{p.app, id}, table, rest, id != "" && found
}

// head is the main record of an instance. Every entry of the instance replaces the head, on the condition that its
// revision is the one that the proposer knows. If two entries are proposed concurrently, only one of them is applied.
type head struct {
	revision uint64 // of the record; 0 = there is none

	nonce      uint64 // random number, by which the proposer of an entry recognizes the head that it has written
	birth      uint64 // number of the entry that wrote the head, see change.birth
	status     int32  // protos.OrchestrationStatus
	name       string
	version    string
	execution  string // changes when the workflow continues as new
	creation   string // execution id at the creation
	generation uint64 // grows by one when an instance is replaced or continues as new
	chunks     uint64 // number of records of the history
	events     uint64 // number of events in these records
	bytes      uint64 // bytes of these events
	low, high  uint64 // numbers of the events of the inbox: low to high-1
	startAt    uint64 // cluster time of a scheduled start that is not due, in milliseconds; 0 = none
	raised     uint64 // newest timestamp of a raised event, Unix nanoseconds

	created, started, updated, completed uint64 // Unix nanoseconds; 0 = not yet

	parentApp, parentID, parentExecution string // parent of a child workflow; empty = none
	parentTask                           int32  // id of the event of the parent that has created this child
	custom                               string // custom status
	hasCustom                            bool
	unique                               bool     // the creation required that no other instance has the id
	recent                               []uint64 // idempotency keys of the newest requests, oldest first
}

func (h *head) encode() []byte {
	b := append(make([]byte, 0, 256), recordVersion)
	b = binary.AppendUvarint(binary.AppendUvarint(b, h.nonce), h.birth)
	b = binary.AppendUvarint(b, uint64(h.status)) //nolint:gosec // not negative
	for _, s := range [...]string{h.name, h.version, h.execution, h.creation, h.parentApp, h.parentID,
		h.parentExecution, h.custom} {
		b = lenprefix.Append(b, s)
	}
	for _, n := range [...]uint64{h.generation, h.chunks, h.events, h.bytes, h.low, h.high, h.startAt, h.raised,
		h.created, h.started, h.updated, h.completed, uint64(uint32(h.parentTask)), //nolint:gosec // bits
		flags(h.hasCustom, h.unique), uint64(len(h.recent))} {
		b = binary.AppendUvarint(b, n)
	}
	for _, n := range h.recent {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

func flags(list ...bool) (n uint64) {
	for i, v := range list {
		if v {
			n |= 1 << i
		}
	}
	return n
}

func readHead(value []byte, revision uint64) (h head, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	h.revision, h.nonce, h.birth = revision, r.Uvarint(), r.Uvarint()
	status := r.Uvarint()
	for _, s := range [...]*string{&h.name, &h.version, &h.execution, &h.creation, &h.parentApp, &h.parentID,
		&h.parentExecution, &h.custom} {
		*s = r.Text()
	}
	var task, bits, n uint64
	for _, p := range [...]*uint64{&h.generation, &h.chunks, &h.events, &h.bytes, &h.low, &h.high, &h.startAt,
		&h.raised, &h.created, &h.started, &h.updated, &h.completed, &task, &bits, &n} {
		*p = r.Uvarint()
	}
	if r.Bad || status > 1<<16 || n > maxRecent || uint64(len(r.Rest)) != 8*n || h.low > h.high || task > 1<<32-1 ||
		bits > 3 {
		return h, false
	}
	h.status, h.parentTask = int32(status), int32(uint32(task)) //nolint:gosec // checked
	h.hasCustom, h.unique = bits&1 != 0, bits&2 != 0
	for i := range n {
		h.recent = append(h.recent, binary.BigEndian.Uint64(r.Rest[8*i:]))
	}
	return h, ok
}

// remember adds an idempotency key to the list of recent keys. It ignores 0, which means no key. If there are more than
// maxRecent keys, it drops the oldest. remember copies the list, because another head may share the list.
func (h *head) remember(key uint64) {
	if key == 0 {
		return
	}
	list := append(slices.Clone(h.recent), key)
	h.recent = list[max(0, len(list)-maxRecent):]
}

// encodeEvents encodes a record with events. Each event is an encoded protos.HistoryEvent.
func encodeEvents(events [][]byte) []byte {
	size := 8
	for _, e := range events {
		size += len(e) + 4
	}
	b := binary.AppendUvarint(append(make([]byte, 0, size), recordVersion), uint64(len(events)))
	for _, e := range events {
		b = lenprefix.Append(b, e)
	}
	return b
}

// readEvents decodes a record with events. The result shares the memory of value.
func readEvents(value []byte) (events [][]byte, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	n := r.Count()
	events = make([][]byte, 0, n)
	for range n {
		events = append(events, r.Bytes())
	}
	return events, ok && !r.Bad && len(r.Rest) == 0
}

// taskRecord is the record of an activity that has no result yet. event is the event of the history that scheduled
// the activity.
type taskRecord struct {
	app   string // application whose workers execute the activity
	event []byte // encoded protos.HistoryEvent: taskScheduled
	exec  string // execution id of the workflow
}

func (t *taskRecord) encode() []byte {
	b := append(make([]byte, 0, len(t.event)+len(t.app)+len(t.exec)+8), recordVersion)
	return append(lenprefix.Append(lenprefix.Append(b, t.app), t.exec), t.event...)
}

func readTask(value []byte) (t taskRecord, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	t.app, t.exec, t.event = r.Text(), r.Text(), r.All()
	return t, ok && !r.Bad
}

// The kinds of due records. The values are part of the format.
const (
	dueTimer     = 1
	dueStart     = 2
	dueRetention = 3
)

// dueRecord is the record of a timer, a scheduled start or the end of a retention. Its key contains the time, the
// instance, the kind and a number.
type dueRecord struct {
	generation uint64 // of the instance; a timer of an earlier generation has no effect
	execution  string // head.creation; a record of an earlier instance with the same id has no effect
	event      []byte // dueTimer, dueStart: the encoded protos.HistoryEvent that arrives
}

func (d *dueRecord) encode() []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, d.generation)
	return append(lenprefix.Append(b, d.execution), d.event...)
}

func readDue(value []byte) (d dueRecord, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	d.generation, d.execution, d.event = r.Uvarint(), r.Text(), r.All()
	return d, ok && !r.Bad
}

// splitDue returns the parts of a key of tableDue. at is in Unix milliseconds. ok is false for other keys.
func splitDue(key string) (at uint64, r Ref, kind byte, id int32, ok bool) {
	p, table, rest, ok := splitKey(key)
	if !ok || table != tableDue || len(rest) < 8+1+1+1+4 {
		return 0, Ref{}, 0, 0, false
	}
	at = binary.BigEndian.Uint64([]byte(rest[:8]))
	end := len(rest) - 6
	if rest[end] != 0 {
		return 0, Ref{}, 0, 0, false
	}
	return at, Ref{p.app, rest[8:end]}, rest[end+1], unbits(uint64(be32(rest[end+2:]))), true
}

// outRecord is the record of a message for another instance.
type outRecord struct {
	to        Ref
	execution string // execution id of the target; empty = any
	key       string // idempotency key
	event     []byte
}

func (o *outRecord) encode() []byte {
	b := append(make([]byte, 0, len(o.event)+128), recordVersion)
	for _, s := range [...]string{o.to.App, o.to.ID, o.execution, o.key} {
		b = lenprefix.Append(b, s)
	}
	return append(b, o.event...)
}

func readOut(value []byte) (o outRecord, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	o.to, o.execution, o.key = Ref{r.Text(), r.Text()}, r.Text(), r.Text()
	o.event = r.All()
	return o, ok && !r.Bad
}

// listRecord is a record of tableList, the index of instances.
type listRecord struct {
	status int32
	name   string
}

func (l *listRecord) encode() []byte {
	return append(binary.AppendUvarint([]byte{recordVersion}, bits(l.status)), l.name...)
}

func readList(value []byte) (l listRecord, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	status := r.Uvarint()
	l.status, l.name = int32(min(status, 1<<16)), string(r.All()) //nolint:gosec // bounded
	return l, ok && !r.Bad && status < 1<<16
}

func set(key string, value []byte) command.Op {
	return command.Op{Kind: command.OpSet, Store: kv.WorkflowStore, Key: key, Value: value}
}

func remove(key string) command.Op {
	return command.Op{Kind: command.OpDelete, Store: kv.WorkflowStore, Key: key}
}

// errRecord returns the error of a record that cannot be decoded.
func errRecord(what string, r Ref) error {
	return &fault.Error{Code: fault.Corrupt, Op: "workflows.read", Key: r.ID,
		Msg:  "a record of workflow instance " + r.ID + " of application " + r.App + " cannot be decoded: " + what,
		Hint: "run the newest version on every server"}
}
