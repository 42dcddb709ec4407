package command

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/quorate/quorate/internal/fault"
)

// The minimum encoded sizes in bytes of a request and of an operation. Decode uses them to reject a count that is too
// high for the rest of the input, before it allocates memory for that many items.
const (
	minRequest = 1 + 2     // length, kind, flags
	minOp      = 1 + 1 + 1 // tag, length of the key, one byte of key
)

// chunk is the maximum number of requests or operations for which Decode allocates memory in advance. The count in a
// damaged batch can be much higher than the number of items that follow.
const chunk = 256

// Decode reads a batch of a version that this build understands (see DecodeUpTo).
func Decode(data []byte) (Batch, error) { return DecodeUpTo(Version, data) }

// DecodeUpTo reads a batch whose version is at most newest. The result shares memory with data, which must not change
// while the result is in use.
//
// DecodeUpTo returns fault.Unimplemented for a newer version, and fault.Corrupt for data that Append cannot have
// written.
func DecodeUpTo(newest uint8, data []byte) (Batch, error) {
	c := cursor{data: data}
	b := Batch{}
	count := c.header(&b, newest)
	if c.err != nil {
		return Batch{}, c.err
	}
	b.Requests = make([]Request, 0, min(count, chunk))
	ops := arena{block: min(count, chunk)}
	for range count {
		var r Request
		c.request(&r, &ops)
		if c.err != nil {
			return Batch{}, c.err
		}
		b.Requests = append(b.Requests, r)
	}
	if c.at != len(data) {
		return Batch{}, c.fail("trailing bytes")
	}
	if data[1] != b.needs() {
		return Batch{}, c.fail("a version that is not that of its requests")
	}
	return b, nil
}

// arena allocates slices of operations from shared blocks. It saves allocations, because most requests have only one
// operation.
type arena struct {
	free  []Op
	block int // operations to allocate at once
}

func (a *arena) take(n int) []Op {
	if n > len(a.free) {
		a.free = make([]Op, max(n, a.block))
	}
	ops := a.free[:n:n]
	a.free = a.free[n:]
	return ops
}

// cursor reads data from front to back. The first failure sets err. Every later read returns zero.
type cursor struct {
	data []byte
	at   int
	err  error
}

func (c *cursor) fail(what string) error {
	if c.err == nil {
		c.err = fault.New(fault.Corrupt, "command.Decode",
			fmt.Sprintf("damaged command: %s at byte %d of %d", what, c.at, len(c.data)))
	}
	return c.err
}

// header reads the header of a batch into b and returns the number of requests. It fails if the version of the batch
// is above newest.
func (c *cursor) header(b *Batch, newest uint8) int {
	if len(c.data) < 2 || c.data[0] != magic || c.data[1] == 0 {
		c.fail("no command header")
		return 0
	}
	if v := c.data[1]; v > newest {
		c.err = &fault.Error{
			Code: fault.Unimplemented, Op: "command.Decode",
			Msg:  fmt.Sprintf("command of version %d, this build understands up to %d", v, newest),
			Hint: "run a version that understands it",
		}
		return 0
	}
	if len(c.data) < HeaderSize {
		c.fail("short command header")
		return 0
	}
	b.Stamp = binary.BigEndian.Uint64(c.data[2:])
	count := binary.BigEndian.Uint32(c.data[10:])
	c.at = HeaderSize
	return c.fits(uint64(count), minRequest, "too many requests")
}

func (c *cursor) request(r *Request, ops *arena) {
	n := c.fits(c.uvarint(), 1, "request longer than the command")
	if c.err != nil {
		return
	}
	whole, end := c.data, c.at+n
	c.data = whole[:end]
	c.body(r, ops)
	if c.err == nil && c.at != end {
		c.fail("trailing bytes in a request")
	}
	if msg := r.problem(); msg != "" {
		c.fail(msg)
	}
	c.data = whole
}

func (c *cursor) body(r *Request, ops *arena) {
	r.Kind = Kind(c.byte())
	flags := c.byte()
	if flags&^flagsKnown != 0 {
		c.fail("unknown request flag")
	}
	if flags&flagID != 0 {
		r.ID = RequestID{Origin: c.uvarint(), Seq: c.uvarint(), Done: c.uvarint()}
		c.must(r.ID != RequestID{}, "empty request id")
	}
	if flags&flagClient != 0 {
		r.Client = ClientID{Scope: c.text(), ID: c.text()}
		c.must(r.Client.ID != "", "empty client id")
	}
	switch r.Kind {
	case KindWrite:
		c.ops(r, ops)
	case KindRegister:
		r.Name = c.text()
	case KindExpire, KindFormat:
		limit := c.uvarint()
		c.must(limit <= math.MaxUint32, "limit out of range")
		r.Limit = uint32(limit) //nolint:gosec // checked above
	case KindRestore:
		c.restore(r, ops)
	case KindWatch:
		c.watch(r)
	}
}

func (c *cursor) ops(r *Request, ops *arena) {
	count := c.fits(c.uvarint(), minOp, "too many operations")
	if c.err != nil || count == 0 {
		return
	}
	r.Ops = ops.take(min(count, chunk))[:0]
	store := ""
	for range count {
		var o Op
		c.op(&o, store)
		if c.err != nil {
			return
		}
		store = o.Store
		r.Ops = append(r.Ops, o)
	}
}

func (c *cursor) op(o *Op, store string) {
	tag := c.byte()
	if o.Kind = OpKind(tag & tagKind); o.Kind == 0 {
		o.Kind = OpAppend
	}
	o.Cond = Cond(tag & tagCond >> tagCondShift)
	c.must(o.Stores() || tag&tagSetOnly == 0, "a delete or check with the fields of a set")
	o.Store = store
	if tag&tagSameStore == 0 {
		o.Store = c.text()
		c.must(o.Store != store, "store repeated or empty")
	}
	c.must(o.Store != "", "empty store")
	c.must(strings.IndexByte(o.Store, 0) < 0, "NUL in a store")
	o.Key = c.text()
	c.must(o.Key != "", "empty key")
	c.must(o.Kind != OpCheck || o.Cond != CondNone, "a check without a condition")
	c.must(o.Kind != OpAppend || o.Cond == CondNone, "an append with a condition")
	if o.Cond == CondRevision {
		o.Revision = c.uvarint()
	}
	if o.Stores() {
		c.set(o, tag)
	}
}

func (c *cursor) set(o *Op, tag byte) {
	o.Value = c.bytes()
	if tag&tagContentType != 0 {
		o.ContentType = c.text()
		c.must(o.ContentType != "", "empty content type")
	}
	if tag&tagTTL != 0 {
		o.TTL = c.uvarint()
		c.must(o.TTL != 0, "empty time to live")
	}
	if tag&tagExpireAt != 0 {
		o.ExpireAt = c.uvarint()
		c.must(o.ExpireAt != 0, "empty expiry")
	}
}

func (c *cursor) must(ok bool, what string) {
	if !ok {
		c.fail(what)
	}
}

func (c *cursor) byte() byte {
	if c.err != nil || c.at >= len(c.data) {
		c.fail("unexpected end")
		return 0
	}
	c.at++
	return c.data[c.at-1]
}

func (c *cursor) uvarint() uint64 {
	if c.err != nil {
		return 0
	}
	v, n := binary.Uvarint(c.data[c.at:])
	if n <= 0 || n != uvarintSize(v) {
		c.fail("bad number")
		return 0
	}
	c.at += n
	return v
}

// fits checks that the rest of the input is long enough for n items of at least the given size in bytes, and returns n.
// If the input is too short, it records an error with the given text and returns 0.
func (c *cursor) fits(n uint64, size int, what string) int {
	if c.err == nil && n > uint64((len(c.data)-c.at)/size) { //nolint:gosec // at never exceeds len
		c.fail(what)
	}
	if c.err != nil {
		return 0
	}
	return int(n) //nolint:gosec // at most the length of the input
}

func (c *cursor) bytes() []byte {
	n := c.fits(c.uvarint(), 1, "text or value longer than the request")
	if c.err != nil {
		return nil
	}
	b := c.data[c.at : c.at+n : c.at+n]
	c.at += n
	return b
}

func (c *cursor) text() string {
	b := c.bytes()
	return unsafe.String(unsafe.SliceData(b), len(b))
}
