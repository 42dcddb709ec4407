// Package records defines two interfaces, Access and Group, through which other packages use their records in the Raft
// groups. The users are the packages for locks, the directory of actors, due work, topics and workflows. They use
// Access on any node, to read records and to send calls to the leader. They use Group in their keepers, which work at
// the leader. Package raftfsm implements both interfaces. Package records owns no state and no goroutines.
package records

import (
	"context"
	"encoding/binary"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// MaxPage is the maximum number of keys that Access.List returns.
const MaxPage = 1000

// Access reads and writes the records of a cluster from one node. It is safe for concurrent use. Its methods retry
// until ctx ends.
type Access interface {
	// Locate waits until this node belongs to a cluster and knows the number of its groups. It returns the group of
	// the keys of a store that begin with prefix, which must contain the first "||" of the keys.
	Locate(ctx context.Context, store, prefix string) (gid uint32, err error)
	// Groups returns the number of groups. It waits until the number is known.
	Groups(ctx context.Context) (uint32, error)
	// Values reads the values of keys of an internal store, all at the same moment. The read is linearizable.
	Values(ctx context.Context, gid uint32, store string, keys []string) ([]kv.Value, error)
	// List returns the keys of an internal store that p describes. The read is linearizable. The result hasMore is
	// true if there are further keys.
	List(ctx context.Context, gid uint32, store string, p Page) (keys []string, hasMore bool, err error)
	// Write puts a request into the log of a group exactly once, and returns its result.
	Write(ctx context.Context, gid uint32, r *command.Request) (kv.Result, error)
	// Ask sends a call to the leader of a group, and returns the answer. The result repeated is true if an earlier
	// attempt may have been executed.
	Ask(ctx context.Context, gid uint32, method string, body []byte) (answer []byte, repeated bool, err error)
	// WithID calls f with the id of a new request to a group. If f returns false, WithID calls f again with another id.
	// f returns false if the request must be repeated with a new id, for example because the group does not know the id
	// any more.
	WithID(ctx context.Context, gid uint32, f func(command.RequestID) (known bool, err error)) error
	// Token returns a session token with which reads see everything up to a committed position of a group.
	Token(gid uint32, at raftlog.Position) string
}

// Page selects the keys of a listing: up to Limit keys that begin with Prefix and are greater than After. Limit is 1
// to MaxPage.
type Page struct {
	Prefix, After string
	Limit         int
}

// AskChange sends a call that changes records. If the call fails, but one of its attempts may have been executed,
// AskChange returns fault.Indeterminate. Otherwise the results are those of Access.Ask.
func AskChange(ctx context.Context, a Access, gid uint32, method string, body []byte) (answer []byte, repeated bool,
	err error) {
	answer, repeated, err = a.Ask(ctx, gid, method, body)
	if err != nil && repeated && !fault.Is(err, fault.Indeterminate) {
		err = &fault.Error{Code: fault.Indeterminate, Op: method, Err: err,
			Msg: "an attempt may have changed it, and its answer was lost", Hint: "look at it, and try again"}
	}
	return answer, repeated, err
}

// AskNumber works like AskChange, for a call whose answer is a number.
func AskNumber(ctx context.Context, a Access, gid uint32, method string, body []byte) (n uint64, repeated bool,
	err error) {
	out, repeated, err := AskChange(ctx, a, gid, method, body)
	if err != nil {
		return 0, repeated, err
	}
	r := lenprefix.Reader{Rest: out}
	if n = r.Uvarint(); r.Bad {
		return 0, repeated, Truncated(method)
	}
	return n, repeated, nil
}

// Truncated returns the error for a call of the given method that cannot be decoded, or whose answer cannot be decoded.
func Truncated(method string) error {
	return fault.New(fault.Invalid, "raftfsm.Serve", "call "+method+" is truncated")
}

// Number encodes n as the answer to a call of AskNumber.
func Number(n uint64) []byte { return binary.AppendUvarint(nil, n) }

// Bit returns 1 for true and 0 for false.
func Bit(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}
