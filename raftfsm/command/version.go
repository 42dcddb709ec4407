package command

import "encoding/binary"

// First is the version that every build understands.
const First = 1

// withRestore is the version that added KindRestore and KindFormat.
const withRestore = 2

// withChecks is the version that added KindCheckedWrite.
const withChecks = 3

// VersionOf returns the version of an encoded batch, or 0 if the bytes are no batch.
func VersionOf(batch []byte) uint8 {
	if len(batch) < 2 || batch[0] != magic {
		return 0
	}
	return batch[1]
}

// Needs returns the lowest version that can hold a request, encoded by AppendRequest.
func Needs(encoded []byte) uint8 {
	_, n := binary.Uvarint(encoded)
	if n <= 0 || n >= len(encoded) {
		return First
	}
	r := Request{Kind: Kind(encoded[n])}
	if r.Kind == KindFormat && len(encoded) > n+2 {
		v, _ := binary.Uvarint(encoded[n+2:])
		r.Limit = uint32(min(v, 255)) //nolint:gosec // bounded
	}
	return r.needs()
}

// IsFormat reports whether an encoded request is of KindFormat. encoded is the output of AppendRequest. Only the
// leader may propose such a request. It must first know which version each server of its group can read.
func IsFormat(encoded []byte) bool {
	_, n := binary.Uvarint(encoded)
	return n > 0 && n < len(encoded) && Kind(encoded[n]) == KindFormat
}

func (r *Request) needs() uint8 {
	switch r.Kind {
	case KindRestore:
		return withRestore
	case KindWatch:
		return withWatch
	case KindCheckedWrite:
		return withChecks
	// The entry that allows a version is itself of that version: an older build halts here.
	case KindFormat:
		return uint8(min(r.Limit, 255)) //nolint:gosec // bounded
	default:
		return First
	}
}

// needs returns the lowest version that can hold all requests.
func (b *Batch) needs() uint8 {
	v := uint8(First)
	for i := range b.Requests {
		v = max(v, b.Requests[i].needs())
	}
	return v
}

// writes reports whether the request is a write of a caller.
func (r *Request) writes() bool { return r.Kind == KindWrite || r.Kind == KindCheckedWrite }

func (b *Batch) restores() bool {
	return len(b.Requests) == 1 && b.Requests[0].Kind == KindRestore
}

func (r *Request) formatProblem() string {
	switch {
	case r.Limit < withRestore || r.Limit > Version:
		return "a format that this build does not know"
	case r.ID != RequestID{} || r.Client != ClientID{}:
		return "the raising of a format carries nothing of other requests"
	}
	return ""
}
