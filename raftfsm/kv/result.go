package kv

import (
	"encoding/binary"
	"math/bits"

	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
)

// Outcome is the outcome of one request. The numbers are part of the format.
type Outcome uint8

// The outcomes.
const (
	Applied  Outcome = 1 // every operation took effect
	Conflict Outcome = 2 // a condition did not hold (Result.Key); nothing was changed
	// Stale means that this entry did not apply the request, but an earlier entry may have applied it. A request is
	// stale in these cases:
	//
	//   - Its origin is unknown.
	//   - Its sequence number is at or below the low-water mark.
	//   - A restore came after its first attempt.
	//   - It is a step of a restore that is unknown or has ended.
	Stale Outcome = 3
	// Rejected means that the request is invalid and changed nothing. For example, its ClientID belongs to an earlier
	// request with other operations.
	Rejected Outcome = 4
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
	// Data is an encoded command.Batch. It is empty for an entry without a command, which only advances the applied
	// index. It must not change until Apply has returned.
	Data []byte
}

// EntryResult is the result of one entry.
type EntryResult struct {
	Results []Result // one per request of the batch, in order
	// Err is set if the entry was not applied: it cannot be decoded, the machine is halted or closed, or
	// storage failed.
	Err     error
	Skipped bool // the entry was applied before
}

// Result is the result of one request. It is read-only: a replayed result may be shared.
type Result struct {
	Outcome Outcome
	// Revisions has one revision per operation; it is 0 for a delete or a check. For KindRegister, Revisions[0] is
	// the number of the origin. For KindWatch, it is the floor of the history.
	Revisions []uint64
	Key       string // Conflict: the key whose condition failed
	// Index is the log index of the entry that decided the request. A retry with a stored result returns the index
	// of the first attempt.
	Index    uint64
	Replayed bool // answered from the remembered results
	Expired  int  // KindExpire: how many items were removed
	More     bool // KindExpire: more items have expired
}

// The encoding of a stored result:
//
//	outcome(1) flags(1) age(uvarint) revisions [key] [expired]
//
// age is the difference between two log indexes: of the entry that stores the result, and of the entry that decided the
// request. revisions is a count, followed by one number per revision: 0 for the revision 0, and otherwise the
// difference from the previous non-zero revision.
const (
	resultKey     = 0x01
	resultExpired = 0x02
	resultMore    = 0x04
	resultFlags   = resultKey | resultExpired | resultMore
)

var errResult error = formError("remembered result of an unknown form")

// appendResult appends the encoding of r to dst. index is the index of the entry that stores the result. r.Replayed is
// not part of the encoding.
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

// CheckRemembered returns an error if the machine cannot decode the result in r. Call it before a restore writes r to
// the log. The machine stores such results unchecked. If a retry found a result that cannot be decoded, every replica
// would break.
func CheckRemembered(r *command.Remembered) error {
	_, err := parseResult(r.Result, 0)
	return err
}

// parseResult decodes what appendResult wrote. The result does not alias b.
func parseResult(b []byte, index uint64) (Result, error) {
	if len(b) < 2 || b[1]&^resultFlags != 0 || b[0] < byte(Applied) || b[0] > byte(Rejected) {
		return Result{}, errResult
	}
	flags := b[1]
	r := Result{Outcome: Outcome(b[0]), More: flags&resultMore != 0}
	n := lenprefix.Reader{Rest: b[2:]}
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
