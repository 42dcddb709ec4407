package due

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Kinds of targets. The values are part of the format of keys.
const (
	KindJob      = 'j' // a job of an application
	KindReminder = 'r' // a reminder of an actor
)

// The tables of due work. The values are part of the format. tableIndex must be the lowest value, because Keeper.begin
// expects the index records of a home before all its other records.
const (
	tableIndex = 'a'
	tableState = 's'
	tableSpec  = 't'
)

// recordVersion is the first byte of every record.
const recordVersion = 1

// Home identifies the owner of a set of jobs or reminders. Kind is KindJob or KindReminder. The work is in the same
// Raft group as the keys of Store that begin with Prefix and "||". Store must not contain a NUL byte, and Prefix must
// not contain "||".
type Home struct {
	Kind          byte
	Store, Prefix string
}

const separator = "||"

// table returns the common prefix of the keys of one table of h.
func (h Home) table(table byte) string {
	return h.Store + "\x00" + h.Prefix + separator + string([]byte{h.Kind, table})
}

func (h Home) indexKey(at uint64, name string) string {
	return h.table(tableIndex) + string(binary.BigEndian.AppendUint64(nil, at)) + name
}

func (h Home) stateKey(name string) string { return h.table(tableState) + name }
func (h Home) specKey(name string) string  { return h.table(tableSpec) + name }

// Keys returns the keys of the records that Parse needs for the work with this name. The records are in kv.DueStore.
func (h Home) Keys(name string) []string { return []string{h.stateKey(name), h.specKey(name)} }

// States returns the common key prefix of the states of all due work of h. The states are in kv.DueStore. The rest of
// each key is the name of the work.
func (h Home) States() string { return h.table(tableState) }

// split divides a key of kv.DueStore into the home, the table and the rest. ok is false for an invalid key.
func split(key string) (h Home, table byte, rest string, ok bool) {
	store, rest, ok1 := strings.Cut(key, "\x00")
	prefix, rest, ok2 := strings.Cut(rest, separator)
	if !ok1 || !ok2 || len(rest) < 2 {
		return Home{}, 0, "", false
	}
	return Home{Kind: rest[0], Store: store, Prefix: prefix}, rest[1], rest[2:], true
}

// splitIndex returns the due time and the name in an index key. rest is the part of the key after the table.
func splitIndex(rest string) (at uint64, name string, ok bool) {
	if len(rest) < 8 {
		return 0, "", false
	}
	return binary.BigEndian.Uint64([]byte(rest[:8])), rest[8:], true
}

// Policy says what happens after a failed attempt.
type Policy struct {
	Forever  bool          // no limit of attempts
	Retries  uint64        // attempts after the first one
	Interval time.Duration // pause between attempts
	// Persist is the interval of further attempts of the last tick when Retries are exhausted; 0 = the tick is
	// dropped.
	Persist time.Duration
}

// The values of DefaultPolicy. They are those of Dapr.
const (
	defaultRetries  = 3
	defaultInterval = time.Second
)

// DefaultPolicy returns the policy of work that was put without a policy.
func DefaultPolicy() Policy { return Policy{Retries: defaultRetries, Interval: defaultInterval} }

// NewPolicy returns a policy for failed ticks. retries is the number of attempts after the first one; nil = no limit.
// interval is the pause between attempts; it is raised to MinEvery if it is shorter. If retry is false, a tick is
// dropped when its first attempt fails.
func NewPolicy(retry bool, retries *uint32, interval time.Duration) Policy {
	p := Policy{Forever: retry && retries == nil, Interval: max(interval, MinEvery)}
	if retry && retries != nil {
		p.Retries = uint64(*retries)
	}
	return p
}

// Spec is what a Put specifies about due work. It changes only when the work is put again.
type Spec struct {
	Schedule string // text for ParseSchedule or ParsePeriod; empty = one tick
	Repeats  uint64 // ticks in all; 0 = no limit
	Until    uint64 // cluster time in Unix milliseconds at which the last tick may be due; 0 = no end
	Policy   Policy
	Request  string // identifies the call that has stored the work; may be empty
	Payload  []byte // for the target

	Revision uint64 // of the record; identifies the work
}

// State is the progress of due work.
type State struct {
	Ticks   uint64 // number of ticks that are done or dropped
	Due     uint64 // when the present tick is due by the schedule, in Unix milliseconds of cluster time
	At      uint64 // when the present tick is handed out: Due, or the time of the next attempt
	Attempt uint64 // failed attempts of the present tick
	Error   string // of the last attempt that has failed

	Revision uint64 // of the record
}

// Work is due work as the group stores it.
type Work struct {
	Home
	Name  string
	Spec  Spec
	State State
}

func (s *Spec) encode() []byte {
	b := append([]byte{recordVersion}, flags(s.Policy.Forever))
	b = appendText(b, s.Schedule)
	b = binary.AppendUvarint(b, s.Repeats)
	b = binary.AppendUvarint(b, s.Until)
	b = binary.AppendUvarint(b, s.Policy.Retries)
	b = binary.AppendUvarint(b, uint64(s.Policy.Interval)) //nolint:gosec // not negative
	b = binary.AppendUvarint(b, uint64(s.Policy.Persist))  //nolint:gosec // not negative
	b = appendText(b, s.Request)
	return append(b, s.Payload...)
}

func flags(forever bool) byte {
	if forever {
		return 1
	}
	return 0
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (s *State) encode() []byte {
	b := []byte{recordVersion}
	for _, n := range [...]uint64{s.Ticks, s.Due, s.At, s.Attempt} {
		b = binary.AppendUvarint(b, n)
	}
	return appendText(b, s.Error)
}

// Parse decodes work from its records, which are in the order of Home.Keys. The result found is false if there is no
// such work. Parse returns fault.Corrupt if a record cannot be decoded.
func Parse(h Home, name string, records []kv.Value) (w Work, found bool, err error) {
	state, spec := records[0], records[1]
	if !state.Found || !spec.Found {
		return Work{}, false, nil
	}
	w = Work{Home: h, Name: name}
	var known bool
	w.State, known = parseState(state)
	b := lenprefix.Reader{Rest: spec.Value}
	known = b.Byte() == recordVersion && known
	w.Spec.Policy.Forever = b.Byte()&1 != 0
	w.Spec.Schedule, w.Spec.Repeats, w.Spec.Until = b.Text(), b.Uvarint(), b.Uvarint()
	w.Spec.Policy.Retries = b.Uvarint()
	w.Spec.Policy.Interval = time.Duration(b.Uvarint()) //nolint:gosec // as it was encoded
	w.Spec.Policy.Persist = time.Duration(b.Uvarint())  //nolint:gosec // as it was encoded
	w.Spec.Request = b.Text()
	w.Spec.Payload, w.Spec.Revision = b.All(), spec.Revision
	if b.Bad || !known {
		return Work{}, false, errUndecodable(name)
	}
	return w, true, nil
}

// errUndecodable returns the error for work with a record that cannot be decoded.
func errUndecodable(name string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "due.Parse", Key: shorten(name),
		Msg: "due work has a record that cannot be decoded", Hint: "run the newest version on every server"}
}

// parseState reads the record of a state. ok is false if the record cannot be decoded.
func parseState(v kv.Value) (s State, ok bool) {
	r := lenprefix.Reader{Rest: v.Value}
	version := r.Byte()
	s = State{Ticks: r.Uvarint(), Due: r.Uvarint(), At: r.Uvarint(), Attempt: r.Uvarint(), Error: r.Text(),
		Revision: v.Revision}
	return s, version == recordVersion && !r.Bad
}

// Read reads the work with this name from the replica m. The result found is false if there is no such work.
func Read(m *kv.Machine, h Home, name string) (w Work, found bool, err error) {
	records, err := m.GetMany(kv.DueStore, h.Keys(name), 0)
	if err != nil {
		return Work{}, false, err
	}
	return Parse(h, name, records)
}

// PutOps returns the operations of a request that stores w. The parameter old is the work that w replaces. The request
// fails if old has changed. If old is nil, the request fails if work with this name exists.
//
// The second revision in the result of the request is the one that identifies w.
func PutOps(w, old *Work) []command.Op {
	ops := []command.Op{
		{Kind: command.OpSet, Cond: command.CondAbsent, Store: kv.DueStore, Key: w.stateKey(w.Name),
			Value: w.State.encode()},
		{Kind: command.OpSet, Store: kv.DueStore, Key: w.specKey(w.Name), Value: w.Spec.encode()},
	}
	return append(ops, replaceIndex(ops, w, old)...)
}

// stateOps returns the operations of a request that changes only the state of due work. The parameter old is the work
// before the change, and w is the work after it.
func stateOps(w, old *Work) []command.Op {
	ops := []command.Op{{Kind: command.OpSet, Store: kv.DueStore, Key: w.stateKey(w.Name), Value: w.State.encode()}}
	return append(ops, replaceIndex(ops, w, old)...)
}

// replaceIndex returns the operations that write the index record of w and remove that of the earlier work, old. It
// also sets the condition of ops[0], which writes the state: the request fails if old has changed. If old is nil,
// replaceIndex leaves ops[0] unchanged.
func replaceIndex(ops []command.Op, w, old *Work) (out []command.Op) {
	if old != nil {
		ops[0].Cond, ops[0].Revision = command.CondRevision, old.State.Revision
		if old.State.At == w.State.At {
			// The key stays the same. The record is written again, so that the leader reads the work again.
			return append(out, indexOp(w))
		}
		out = append(out, command.Op{Kind: command.OpDelete, Store: kv.DueStore,
			Key: old.indexKey(old.State.At, old.Name)})
	}
	return append(out, indexOp(w))
}

func indexOp(w *Work) command.Op {
	return command.Op{Kind: command.OpSet, Store: kv.DueStore, Key: w.indexKey(w.State.At, w.Name),
		Value: []byte{recordVersion}}
}

// RemoveOps returns the operations of a request that removes w. The request fails if w has changed in the meantime.
func RemoveOps(w *Work) []command.Op {
	return []command.Op{
		{Kind: command.OpDelete, Cond: command.CondRevision, Revision: w.State.Revision, Store: kv.DueStore,
			Key: w.stateKey(w.Name)},
		{Kind: command.OpDelete, Store: kv.DueStore, Key: w.specKey(w.Name)},
		{Kind: command.OpDelete, Store: kv.DueStore, Key: w.indexKey(w.State.At, w.Name)},
	}
}

// HomeOf returns the Home to which a key in kv.DueStore belongs, and a key that sorts after all keys of that Home.
// The Home is zero for an invalid key.
func HomeOf(key string) (h Home, after string) {
	h, _, _, ok := split(key)
	if !ok {
		return Home{}, key
	}
	return h, h.table(0xff)
}
