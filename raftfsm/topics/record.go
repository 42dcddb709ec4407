package topics

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// The tables of a topic. The values are part of the format.
const (
	tableCount   = 'a' // number and size of the messages of the topic
	tableID      = 'd' // ids of messages, for deduplication
	tableFull    = 'f' // the topic is full and refuses messages
	tableGroup   = 'g' // consumer groups
	tableMessage = 'm'
	tableParked  = 'p' // messages that a group gets later
	tableSource  = 's' // topics whose dead letters the topic has received
	tablePolicy  = 't' // what the topic keeps
)

// recordVersion is the version of the record format. It is the first byte of a record, except in a stored message,
// where the cluster time comes first.
const recordVersion = 1

// Bounds of names and records.
const (
	maxKey      = 1 << 10  // bytes of a key or an id
	maxMetadata = 64 << 10 // bytes of the metadata of a message
	maxOpen     = 1024     // messages of a consumer group that were read and are neither settled nor parked
)

// Topic identifies the part of a topic that is in one Raft group. Group is the number of that Raft group. Store is
// the namespace and the name of the component. Store and Name must not contain a NUL byte.
type Topic struct {
	Group       uint32
	Store, Name string
}

func (t Topic) prefix() string { return t.storePrefix() + t.Name + "\x00" }

// storePrefix returns the key prefix that t shares with all topics of the same Raft group and store.
func (t Topic) storePrefix() string {
	return string(binary.BigEndian.AppendUint32(nil, t.Group)) + t.Store + "\x00"
}

func (t Topic) key(table byte, rest string) string { return t.prefix() + string([]byte{table}) + rest }

func (t Topic) messageKey(offset uint64) string {
	return t.key(tableMessage, string(binary.BigEndian.AppendUint64(nil, offset)))
}

// parkedPrefix returns the prefix of the keys of a consumer group's parked records. It contains the length of the
// group's name, so the records of two groups do not mix if one name is a prefix of the other.
func (t Topic) parkedPrefix(group string) string {
	return t.key(tableParked, string(lenprefix.Append(nil, group)))
}

func (t Topic) parkedKey(group string, offset uint64) string {
	return t.parkedPrefix(group) + string(binary.BigEndian.AppendUint64(nil, offset))
}

// groupOfParked returns the consumer group in the key of a parked record. ok is false for other keys.
func (t Topic) groupOfParked(key string) (group string, ok bool) {
	rest, ok := strings.CutPrefix(key, t.key(tableParked, ""))
	r := lenprefix.Reader{Rest: []byte(rest)}
	group = r.Text()
	return group, ok && !r.Bad
}

// GroupOf returns the number of the Raft group in a key of kv.TopicStore, or 0 if the key is too short.
func GroupOf(key string) uint32 {
	if len(key) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32([]byte(key[:4]))
}

// split splits a key of kv.TopicStore into the topic, the table and the rest. ok is false if the key is malformed.
func split(key string) (t Topic, table byte, rest string, ok bool) {
	if len(key) < 4 {
		return Topic{}, 0, "", false
	}
	store, after, ok1 := strings.Cut(key[4:], "\x00")
	name, after, ok2 := strings.Cut(after, "\x00")
	if !ok1 || !ok2 || after == "" {
		return Topic{}, 0, "", false
	}
	return Topic{GroupOf(key), store, name}, after[0], after[1:], true
}

// offsetOf returns the offset in the last 8 bytes of a key, or 0 if the key is shorter.
func offsetOf(key string) uint64 {
	if len(key) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64([]byte(key[len(key)-8:]))
}

// checkNames returns fault.Invalid if topic is empty or a name has a NUL byte, and fault.TooLarge if a name is too
// long. group may be empty.
func checkNames(op, topic, group string) error {
	switch {
	case topic == "":
		return fault.New(fault.Invalid, op, "the name of the topic is empty")
	case len(topic) > pubsub.MaxTopic || len(group) > pubsub.MaxGroup:
		return fault.New(fault.TooLarge, op, "the name of a topic has at most 1,024 bytes, that of a group 512")
	case strings.Contains(topic+group, "\x00"):
		return fault.New(fault.Invalid, op, "the name of a topic or of a group has no NUL")
	}
	return nil
}

// message is a stored message of which only the head is decoded.
type message struct {
	at        uint64 // cluster time of the log entry that published the message
	deliverAt uint64 // Unix milliseconds; 0 = at once
	key       string
	body      []byte // everything after the key, still encoded
}

// encodedSize returns an upper bound for the size of an encoded message in bytes.
func encodedSize(m *pubsub.Message) int {
	size := len(m.Data) + len(m.Key) + len(m.ID) + len(m.ContentType) + 64
	for name, value := range m.Metadata {
		size += len(name) + len(value) + 8
	}
	return size
}

// encodeMessage returns the value of the append operation that stores a message. The state machine puts the cluster
// time in front of this value when it applies the operation.
func encodeMessage(m *pubsub.Message) []byte {
	b := append(make([]byte, 0, encodedSize(m)), recordVersion)
	b = binary.AppendUvarint(b, millis(m.DeliverAt))
	b = lenprefix.Append(b, m.Key)
	b = lenprefix.Append(lenprefix.Append(b, m.ID), m.ContentType)
	b = binary.AppendUvarint(b, uint64(len(m.Metadata)))
	for _, name := range slices.Sorted(maps.Keys(m.Metadata)) {
		b = lenprefix.Append(lenprefix.Append(b, name), m.Metadata[name])
	}
	return append(b, m.Data...)
}

func millis(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(max(t.UnixMilli(), 1)) //nolint:gosec // positive
}

// readMessage decodes the head of a stored message. ok is false if this is not possible.
func readMessage(value []byte) (m message, ok bool) {
	if len(value) < 8 {
		return m, false
	}
	r := lenprefix.Reader{Rest: value[8:]}
	ok = r.Byte() == recordVersion
	m.at = binary.BigEndian.Uint64(value)
	m.deliverAt, m.key, m.body = r.Uvarint(), r.Text(), r.All()
	return m, ok && !r.Bad
}

// decodeMessage decodes a whole stored message. ok is false if this is not possible.
func decodeMessage(value []byte) (out pubsub.Message, ok bool) {
	m, ok := readMessage(value)
	if !ok {
		return out, false
	}
	r := lenprefix.Reader{Rest: m.body}
	out.Key, out.ID, out.ContentType = m.key, r.Text(), r.Text()
	if n := r.Count(); n > 0 {
		out.Metadata = make(map[string]string, min(n, 64))
		for range n {
			name := r.Text()
			out.Metadata[name] = r.Text()
		}
	}
	if m.deliverAt != 0 {
		out.DeliverAt = time.UnixMilli(int64(min(m.deliverAt, math.MaxInt64)))
	}
	out.Data = r.All()
	return out, !r.Bad
}

// checkMessage returns fault.TooLarge if the key, the id, the content type or the metadata of a message is too large.
func checkMessage(m *pubsub.Message) error {
	size := 0
	for name, value := range m.Metadata {
		size += len(name) + len(value)
	}
	switch {
	case len(m.Key) > maxKey || len(m.ID) > maxKey:
		return fault.New(fault.TooLarge, opPublish, "the key and the id of a message have at most 1,024 bytes")
	case size > maxMetadata || len(m.ContentType) > maxKey:
		return fault.New(fault.TooLarge, opPublish, "the metadata of a message has at most 64 KiB")
	}
	return nil
}

// cursor is the record of a consumer group. The group has settled all messages with offsets up to upto, except the
// messages in open and the parked messages. unused.go explains the time to live of a group.
type cursor struct {
	upto uint64
	open []uint64 // offsets, ascending
	used uint64   // last use of the group, in cluster time; stored only if ttl is not 0
	ttl  uint64   // milliseconds without a use after which the group ends; 0 = it does not end

	revision uint64 // of the record
}

func (c *cursor) encode() []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, c.upto)
	b = binary.AppendUvarint(b, uint64(len(c.open)))
	last := uint64(0)
	for _, offset := range c.open {
		b = binary.AppendUvarint(b, offset-last)
		last = offset
	}
	if c.ttl > 0 {
		b = binary.AppendUvarint(binary.AppendUvarint(b, c.used), c.ttl)
	}
	return b
}

func readCursor(value []byte, revision uint64) (c cursor, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	c.upto, c.revision = r.Uvarint(), revision
	n, last := r.Count(), uint64(0)
	for range n {
		step := r.Uvarint()
		if step == 0 || step > math.MaxUint64-last {
			return c, false
		}
		last += step
		c.open = append(c.open, last)
	}
	if len(r.Rest) > 0 {
		c.used, c.ttl = r.Uvarint(), r.Uvarint()
		ok = ok && c.ttl > 0 && c.ttl <= uint64(maxGroupTTL.Milliseconds()) && c.used <= math.MaxInt64
	}
	return c, ok && !r.Bad && len(r.Rest) == 0 && last <= c.upto
}

// parked is the record of a message that a group gets later.
type parked struct {
	attempts uint64 // failed attempts
	at       uint64 // time from which the message is delivered, in Unix milliseconds of cluster time
	key      string // of the message
}

func (p *parked) encode() []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, p.attempts)
	return lenprefix.Append(binary.AppendUvarint(b, p.at), p.key)
}

func readParked(value []byte) (p parked, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	p.attempts, p.at, p.key = r.Uvarint(), r.Uvarint(), r.Text()
	return p, ok && !r.Bad && len(r.Rest) == 0
}

// count is the number and the size of the messages of a topic up to an offset.
type count struct {
	upto            uint64 // offset of the last message that was counted
	messages, bytes uint64

	revision uint64 // of the record; 0 = there is none
}

func (c *count) encode() []byte {
	b := []byte{recordVersion}
	for _, n := range [...]uint64{c.upto, c.messages, c.bytes} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func readCount(value []byte, revision uint64) (c count, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	c = count{upto: r.Uvarint(), messages: r.Uvarint(), bytes: r.Uvarint(), revision: revision}
	return c, ok && !r.Bad && len(r.Rest) == 0
}

// Policy says which messages a topic keeps.
type Policy struct {
	Retention time.Duration // how long the topic keeps messages that every group has settled
	MaxBytes  int64         // bound of the bytes of all messages
}

// The policy of a topic without a stored policy.
const (
	DefaultRetention = 24 * time.Hour
	DefaultMaxBytes  = 1 << 30
)

func (p *Policy) encode() []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, uint64(p.Retention.Milliseconds())) //nolint:gosec // positive
	return binary.AppendUvarint(b, uint64(p.MaxBytes))                                   //nolint:gosec // positive
}

func readPolicy(value []byte) (p Policy, ok bool) {
	r := lenprefix.Reader{Rest: value}
	ok = r.Byte() == recordVersion
	age, size := r.Uvarint(), r.Uvarint()
	if age > uint64(math.MaxInt64/time.Millisecond) || size > math.MaxInt64 {
		return p, false
	}
	p = Policy{time.Duration(age) * time.Millisecond, int64(size)} //nolint:gosec // checked
	return p, ok && !r.Bad && len(r.Rest) == 0
}

// AppendOp returns the operation that publishes a message. It can be part of a request that also changes other keys
// in the same Raft group. The revision of the operation becomes the offset of the message.
func AppendOp(t Topic, m *pubsub.Message) command.Op {
	op := command.Op{Kind: command.OpAppend, Store: kv.TopicStore, Key: t.key(tableMessage, ""),
		Value: encodeMessage(m)}
	if m.TTL > 0 {
		op.TTL = uint64(max(m.TTL.Milliseconds(), 1)) //nolint:gosec // positive
	}
	return op
}

// errRecord returns the error of a record that cannot be decoded.
func errRecord(what string, t Topic) error {
	return &fault.Error{Code: fault.Corrupt, Op: "topics.read", Key: t.Name,
		Msg:  "a record of topic " + t.Name + " cannot be decoded: " + what,
		Hint: "run the newest version on every server"}
}
