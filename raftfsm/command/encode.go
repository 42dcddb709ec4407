package command

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/quorate/quorate/internal/fault"
)

// The binary form of a batch:
//
//	batch    magic(1) version(1) stamp(8, big-endian) count(4, big-endian) request*count
//	request  length(uvarint) body
//	body     kind(1) flags(1) [origin seq done] [scope id] payload
//	payload  write: count op*count    register: name    expire: limit    tick: nothing
//	         format: limit
//	         watch: store prefix age bytes
//	         restore: step(1) id part revision
//	         restore with StepChunk: step(1) id part revision count op*count count remembered*count
//	remembered  key expire-at fingerprint result
//	op       tag(1) [store] key [revision] [value [content type] [ttl] [expire at]]
//
// Numbers are uvarints in their shortest form. Strings and values are preceded by their length as a uvarint. Fields in
// brackets are optional; the flags of the body or the tag of the op show which fields are present. A batch has exactly
// one valid encoding, and Decode rejects any other.
const (
	magic = 'Q'

	// HeaderSize is the number of bytes before the first request of a batch.
	HeaderSize = 1 + 1 + 8 + 4
)

// Flags of a request body.
const (
	flagID     = 1 << 0
	flagClient = 1 << 1
	flagsKnown = flagID | flagClient
)

// Bits of an operation's tag: kind in bits 0-1 (0 = OpAppend), condition in bits 2-3, then flags.
const (
	tagKind        = 0x03
	tagCondShift   = 2
	tagCond        = 0x03 << tagCondShift
	tagContentType = 1 << 4
	tagTTL         = 1 << 5
	tagExpireAt    = 1 << 6
	tagSameStore   = 1 << 7 // the store is that of the previous operation
	tagSetOnly     = tagContentType | tagTTL | tagExpireAt
)

// AppendHeader appends the header of a batch to dst. The batch has the given number of requests, which the caller
// encodes and appends after the header. version must be the highest result of Needs for these requests.
func AppendHeader(dst []byte, version uint8, stamp uint64, requests int) []byte {
	dst = append(dst, magic, version)
	dst = binary.BigEndian.AppendUint64(dst, stamp)
	return binary.BigEndian.AppendUint32(dst, uint32(requests)) //nolint:gosec // bounded by the entry size
}

// AppendRequest appends one request. It returns fault.Invalid and appends nothing if Decode would refuse the request.
// Such a request in the log would halt all replicas.
func AppendRequest(dst []byte, r *Request) ([]byte, error) {
	if err := r.check(); err != nil {
		return dst, err
	}
	dst = binary.AppendUvarint(dst, uint64(bodySize(r))) //nolint:gosec // sizes are not negative
	return appendBody(dst, r), nil
}

// EncodeRequest returns the encoding of r in a slice of exactly the required size. If the encoding has more than limit
// bytes, EncodeRequest returns fault.TooLarge and allocates no memory for the encoding. The other errors are those of
// AppendRequest.
func EncodeRequest(r *Request, limit int) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	body := bodySize(r)
	size := uvarintSize(uint64(body)) + body //nolint:gosec // sizes are not negative
	if size > limit {
		e := &fault.Error{Code: fault.TooLarge, Op: "command.EncodeRequest",
			Msg: fmt.Sprintf("the write has %d bytes, the limit is %d", size, limit), Hint: "split it"}
		if n := len(r.Ops); n > 0 {
			e.Key = fault.Shorten(r.Ops[n-1].Key, 128) // checks of locks come first
		}
		return nil, e
	}
	dst := binary.AppendUvarint(make([]byte, 0, size), uint64(body)) //nolint:gosec // sizes are not negative
	return appendBody(dst, r), nil
}

// Append appends a whole batch to dst. It returns the same errors as AppendRequest. After an error the returned
// slice must not be used.
func Append(dst []byte, b *Batch) ([]byte, error) {
	dst = AppendHeader(dst, b.needs(), b.Stamp, len(b.Requests))
	for i := range b.Requests {
		var err error
		if dst, err = AppendRequest(dst, &b.Requests[i]); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

func appendBody(dst []byte, r *Request) []byte {
	dst = append(dst, byte(r.Kind), r.flags())
	if r.ID != (RequestID{}) {
		dst = binary.AppendUvarint(dst, r.ID.Origin)
		dst = binary.AppendUvarint(dst, r.ID.Seq)
		dst = binary.AppendUvarint(dst, r.ID.Done)
	}
	if r.Client.ID != "" {
		dst = appendText(dst, r.Client.Scope)
		dst = appendText(dst, r.Client.ID)
	}
	switch r.Kind {
	case KindWrite:
		return appendOps(dst, r.Ops)
	case KindRegister:
		return appendText(dst, r.Name)
	case KindExpire, KindFormat:
		return binary.AppendUvarint(dst, uint64(r.Limit))
	case KindRestore:
		return appendRestore(dst, r)
	case KindWatch:
		return appendWatch(dst, r.Watch)
	}
	return dst
}

func appendOps(dst []byte, ops []Op) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ops)))
	store := ""
	for i := range ops {
		dst = appendOp(dst, &ops[i], store)
		store = ops[i].Store
	}
	return dst
}

// appendOp appends one operation. store is the store of the previous operation, or empty.
func appendOp(dst []byte, o *Op, store string) []byte {
	tag := o.tag(store)
	dst = append(dst, tag)
	if tag&tagSameStore == 0 {
		dst = appendText(dst, o.Store)
	}
	dst = appendText(dst, o.Key)
	if o.Cond == CondRevision {
		dst = binary.AppendUvarint(dst, o.Revision)
	}
	if !o.Stores() {
		return dst
	}
	dst = appendText(dst, o.Value)
	if tag&tagContentType != 0 {
		dst = appendText(dst, o.ContentType)
	}
	if tag&tagTTL != 0 {
		dst = binary.AppendUvarint(dst, o.TTL)
	}
	if tag&tagExpireAt != 0 {
		dst = binary.AppendUvarint(dst, o.ExpireAt)
	}
	return dst
}

func (r *Request) flags() byte {
	var f byte
	if r.ID != (RequestID{}) {
		f |= flagID
	}
	if r.Client.ID != "" {
		f |= flagClient
	}
	return f
}

func (o *Op) tag(store string) byte {
	tag := byte(o.Kind)&tagKind | byte(o.Cond)<<tagCondShift
	if o.ContentType != "" {
		tag |= tagContentType
	}
	if o.TTL != 0 {
		tag |= tagTTL
	}
	if o.ExpireAt != 0 {
		tag |= tagExpireAt
	}
	if store == o.Store {
		tag |= tagSameStore
	}
	return tag
}

func bodySize(r *Request) int {
	n := 2
	if r.ID != (RequestID{}) {
		n += uvarintSize(r.ID.Origin) + uvarintSize(r.ID.Seq) + uvarintSize(r.ID.Done)
	}
	if r.Client.ID != "" {
		n += textSize(len(r.Client.Scope)) + textSize(len(r.Client.ID))
	}
	switch r.Kind {
	case KindWrite:
		n += opsSize(r.Ops)
	case KindRegister:
		n += textSize(len(r.Name))
	case KindExpire, KindFormat:
		n += uvarintSize(uint64(r.Limit))
	case KindRestore:
		n += restoreSize(r)
	case KindWatch:
		n += watchSize(r.Watch)
	}
	return n
}

func opsSize(ops []Op) int {
	n := uvarintSize(uint64(len(ops)))
	store := ""
	for i := range ops {
		n += opSize(&ops[i], store)
		store = ops[i].Store
	}
	return n
}

func opSize(o *Op, store string) int {
	n := 1 + textSize(len(o.Key))
	if o.Store != store {
		n += textSize(len(o.Store))
	}
	if o.Cond == CondRevision {
		n += uvarintSize(o.Revision)
	}
	if !o.Stores() {
		return n
	}
	n += textSize(len(o.Value))
	if o.ContentType != "" {
		n += textSize(len(o.ContentType))
	}
	if o.TTL != 0 {
		n += uvarintSize(o.TTL)
	}
	if o.ExpireAt != 0 {
		n += uvarintSize(o.ExpireAt)
	}
	return n
}

func appendText[T string | []byte](dst []byte, s T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func textSize(n int) int { return uvarintSize(uint64(n)) + n } //nolint:gosec // lengths are not negative

func uvarintSize(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }
