package command

import (
	"encoding/binary"
	"math"
)

// First is the oldest format version, which every build understands.
const First = 1

// VersionOf returns the version of an encoded batch, or 0 if the bytes are no batch.
func VersionOf(batch []byte) uint8 {
	if len(batch) < 2 || batch[0] != magic {
		return 0
	}
	return batch[1]
}

// Needs returns the lowest version that can represent a request, which must be in the encoding of AppendRequest.
func Needs(encoded []byte) uint8 {
	_, n := binary.Uvarint(encoded)
	if n <= 0 || n >= len(encoded) {
		return First
	}
	r := Request{Kind: Kind(encoded[n])}
	if r.Kind == KindFormat && len(encoded) > n+2 {
		v, _ := binary.Uvarint(encoded[n+2:])
		r.Limit = uint32(min(v, math.MaxUint8)) //nolint:gosec // bounded
	}
	return r.needs()
}

// IsFormat reports whether a request, in the encoding of AppendRequest, is of KindFormat. Only a leader that knows
// which version each server of the group can read may propose such a request.
func IsFormat(encoded []byte) bool {
	_, n := binary.Uvarint(encoded)
	return n > 0 && n < len(encoded) && Kind(encoded[n]) == KindFormat
}

// needs returns the lowest format version that can represent the request. A kind of request that a later version adds
// must have a case here.
//
// For a KindFormat request, the result is the version that the request allows. A build that does not know this version
// therefore halts at the entry.
func (r *Request) needs() uint8 {
	if r.Kind == KindFormat {
		return uint8(max(First, min(r.Limit, math.MaxUint8))) //nolint:gosec // bounded
	}
	return First
}

// needs returns the lowest version that can hold all requests.
func (b *Batch) needs() uint8 {
	v := uint8(First)
	for i := range b.Requests {
		v = max(v, b.Requests[i].needs())
	}
	return v
}

func (r *Request) formatProblem() string {
	switch {
	case r.Limit <= First || r.Limit > math.MaxUint8:
		return "a format that needs no entry, or that no entry can have"
	case r.ID != RequestID{} || r.Client != ClientID{}:
		return "the raising of a format carries nothing of other requests"
	}
	return ""
}
