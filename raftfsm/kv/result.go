package kv

import (
	"encoding/binary"
	"math/bits"

	"github.com/quorate/quorate/internal/fields"
)

// Outcome says what became of one request. Numbers are part of the format.
type Outcome uint8

// The outcomes.
const (
	Applied  Outcome = 1 // every operation took effect
	Conflict Outcome = 2 // a condition did not hold (Result.Key); nothing was changed
	Stale    Outcome = 3 // the request id is at or below the origin's mark, or its origin is unknown: refused, never applied by this entry
	Rejected Outcome = 4 // the request itself is wrong, for instance a client id used again with other operations; nothing was changed
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Conflict:
		return "conflict"
	case Stale:
		return "stale"
	case Rejected:
		return "rejected"
	}
	return "unknown"
}

// Entry is one committed log entry.
type Entry struct {
	Index uint64
	Term  uint64
	Data  []byte // an encoded command.Batch; empty for an entry without a command, which only moves the index. Must not change until Apply returned.
}

// EntryResult is what became of one entry.
type EntryResult struct {
	Results []Result // one per request of the batch, in order
	Err     error    // the entry was not applied: undecodable, the machine halted or closed, or storage failed
	Skipped bool     // the machine held the entry already
}

// Result is what became of one request. It is read-only: a replayed result may be shared.
type Result struct {
	Outcome   Outcome
	Revisions []uint64 // one per operation, 0 for a delete; KindRegister: Revisions[0] is the origin's number
	Key       string   // Conflict: the key whose condition failed
	Index     uint64   // log index at which the request was first decided; a replayed retry reports that of the first
	Replayed  bool     // answered from the remembered results
	Expired   int      // KindExpire: how many items were removed
	More      bool     // KindExpire: there is more that is due
}

// A remembered result is
//
//	outcome(1) flags(1) age(uvarint) revisions [key] [expired]
//
// where age is how many entries before the one that remembers it the request was decided,
// and revisions are a count and then, for each, 0 or the distance from the last non-zero one.
const (
	resultKey     = 0x01
	resultExpired = 0x02
	resultMore    = 0x04
	resultFlags   = resultKey | resultExpired | resultMore
)

var errResult error = formError("remembered result of an unknown form")

// appendResult appends r as it is remembered by the entry at index. Replayed is not part of it.
func appendResult(dst []byte, r *Result, index uint64) []byte {
	var flags byte
	if r.Key != "" {
		flags |= resultKey
	}
	if r.Expired != 0 {
		flags |= resultExpired
	}
	if r.More {
		flags |= resultMore
	}
	dst = append(dst, byte(r.Outcome), flags)
	dst = binary.AppendUvarint(dst, index-r.Index)
	dst = binary.AppendUvarint(dst, uint64(len(r.Revisions)))
	last := uint64(0)
	for _, rev := range r.Revisions {
		if rev == 0 {
			dst = append(dst, 0)
			continue
		}
		dst = binary.AppendUvarint(dst, rev-last)
		last = rev
	}
	if r.Key != "" {
		dst = binary.AppendUvarint(dst, uint64(len(r.Key)))
		dst = append(dst, r.Key...)
	}
	if r.Expired != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Expired)) //nolint:gosec // a count
	}
	return dst
}

// parseResult reads what appendResult wrote; the result aliases nothing.
func parseResult(b []byte, index uint64) (Result, error) {
	if len(b) < 2 || b[1]&^resultFlags != 0 || b[0] < byte(Applied) || b[0] > byte(Rejected) {
		return Result{}, errResult
	}
	flags := b[1]
	r := Result{Outcome: Outcome(b[0]), More: flags&resultMore != 0}
	n := fields.Reader{Rest: b[2:]}
	r.Index = index - n.Uvarint()
	if count := n.Count(); count > 0 {
		r.Revisions = make([]uint64, count)
		last := uint64(0)
		for i := range r.Revisions {
			if d := n.Uvarint(); d != 0 {
				last += d
				r.Revisions[i] = last
			}
		}
	}
	if flags&resultKey != 0 {
		r.Key = n.Text()
	}
	if flags&resultExpired != 0 {
		r.Expired = int(n.Uvarint()) //nolint:gosec // a count
	}
	if n.Bad || len(n.Rest) != 0 {
		return Result{}, errResult
	}
	return r, nil
}

func uvarintSize(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }
