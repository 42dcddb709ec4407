// Package outside contains the code that state stores in external databases share: ETags, conditions, checks of
// requests and metadata, combined reads, listings, and waiting for a server at the start. Of its types, only Gatherer
// starts goroutines. The package owns no store.
package outside

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/frames"
)

// NewETag returns a random UUID as an ETag. The UUID has version 8 if bytes is true, that is, if the value is not JSON.
// Otherwise it has version 4, which Dapr uses for every value.
func NewETag(bytes bool) string {
	id := uuid.New()
	if bytes {
		id[6] = id[6]&0x0f | 8<<4
	}
	return id.String()
}

// ContentType returns the content type of a value whose ETag is a UUID from NewETag or from Dapr. It returns
// OctetStream if the UUID has version 8 or the value is not valid JSON. Otherwise it returns "", which means JSON.
func ContentType(etag string, value []byte) string {
	const version = 14 // position of the version in the text
	if len(etag) > version && etag[version] == '8' || !json.Valid(value) {
		return state.OctetStream
	}
	return ""
}

// Creates reports whether an operation succeeds only if the key does not exist.
func Creates(o *state.Operation) bool {
	return o.ETag == "" && o.Concurrency == state.FirstWrite && o.Kind == state.Upsert
}

// Conditional reports whether an operation has a condition.
func Conditional(o *state.Operation) bool { return o.ETag != "" || Creates(o) }

// Conflict returns the error of an operation whose condition is not met.
func Conflict(op string, o *state.Operation) error {
	why := "the ETag is not the current one"
	if Creates(o) {
		why = "the key exists already"
	}
	return &fault.Error{Code: fault.Conflict, Op: op, Key: o.Key, Msg: "key " + strconv.Quote(o.Key) + ": " + why}
}

// Permit checks the conditions of all operations. It returns fault.Conflict if one of them is not met. current maps
// each existing key to its ETag.
func Permit(op string, ops []state.Operation, current map[string]string) error {
	for i := range ops {
		o := &ops[i]
		etag, exists := current[o.Key]
		if o.ETag != "" && etag != o.ETag || Creates(o) && exists {
			return Conflict(op, o)
		}
	}
	return nil
}

// Partial returns the error of a request that failed with err after a part of it may have been executed. msg describes
// this part. Partial replaces a code that means that nothing was executed, such as fault.Unavailable, with
// fault.Indeterminate. Otherwise callers would believe that they can safely repeat the request.
func Partial(op string, err error, msg, hint string) error {
	code := fault.CodeOf(err)
	switch code {
	case fault.Unavailable, fault.Overloaded, fault.Timeout, fault.ReadOnly:
		code = fault.Indeterminate
	}
	return &fault.Error{Code: code, Op: op, Key: fault.KeyOf(err), Msg: msg, Hint: hint, Err: err}
}

// Check returns fault.Invalid if an operation has no key or an unknown kind, or if the request has a request id. It
// refuses request ids because stores in external databases do not detect repeated requests. product is the name of the
// database, for the message.
func Check(op, product, requestID string, ops []state.Operation) error {
	if requestID != "" {
		return &fault.Error{Code: fault.Invalid, Op: op,
			Msg:  "a store in " + product + " does not remember request ids",
			Hint: "omit Quorate-Request-Id, and use ETags to retry safely"}
	}
	for i := range ops {
		o := &ops[i]
		if o.Key == "" || o.Kind != state.Upsert && o.Kind != state.Remove {
			return &fault.Error{Code: fault.Invalid, Op: op, Msg: "a write without a key or of an unknown kind"}
		}
	}
	return nil
}

// Upserts returns the operations that write items.
func Upserts(items []state.Write) []state.Operation {
	ops := make([]state.Operation, len(items))
	for i, item := range items {
		ops[i] = state.Operation{Kind: state.Upsert, Write: item}
	}
	return ops
}

// Removal returns the operation that deletes a key.
func Removal(r state.DeleteRequest) state.Operation {
	return state.Operation{Kind: state.Remove, Write: state.Write{Key: r.Key, ETag: r.ETag, Concurrency: r.Concurrency,
		Metadata: r.Metadata}}
}

// Last returns the index of the last operation on each key. After the request, the existence and the value of a key
// depend only on this operation.
func Last(ops []state.Operation) map[string]int {
	last := make(map[string]int, len(ops))
	for i := range ops {
		last[ops[i].Key] = i
	}
	return last
}

// ETags returns the new ETag of each operation, and "" for a removal. last is the result of Last, and written maps each
// written key to its new ETag. An upsert that a later operation of the same request overwrites gets a random ETag,
// which no stored value has.
func ETags(ops []state.Operation, last map[string]int, written map[string]string) []string {
	out := make([]string, len(ops))
	for i, o := range ops {
		switch {
		case o.Kind == state.Remove:
		case i == last[o.Key]:
			out[i] = written[o.Key]
		default:
			out[i] = NewETag(false)
		}
	}
	return out
}

// Successor returns the smallest UTF-8 string that is greater, in byte order, than all UTF-8 strings with the given
// prefix. It returns "" if there is none.
func Successor(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		if last == utf8.MaxRune {
			continue
		}
		last++
		if !utf8.ValidRune(last) { // skip the surrogates
			last = 0xE000
		}
		return prefix + string(last)
	}
	return ""
}

// Bounds returns the range of keys for a listing: every key k in it satisfies k >= from, k > after and k < end. An
// empty end means no upper bound. from and after are valid UTF-8 even if r.After is not, because some databases refuse
// invalid UTF-8.
func Bounds(r state.ListRequest) (from, after, end string) {
	from, after = r.Prefix, r.After
	for !utf8.ValidString(after) {
		after = after[:len(after)-1]
	}
	if after != r.After {
		from = max(from, Successor(after))
	}
	return from, after, Successor(r.Prefix)
}

// Wait repeats probe, with pauses of 200 ms, while the result is fault.Unavailable. It returns the last result. It
// gives up about 400 ms before the deadline of ctx. If ctx has no deadline, it calls probe only once. If the last call
// ran out of time, Wait returns the error of the previous call, which has more information.
func Wait(ctx context.Context, probe func(context.Context) error) error {
	const pause = 200 * time.Millisecond
	var last error
	for {
		err := probe(ctx)
		switch {
		case last != nil && (fault.Is(err, fault.Timeout) || fault.Is(err, fault.Unavailable) && ended(ctx)):
			return last
		case !fault.Is(err, fault.Unavailable):
			return err
		}
		last = err
		if until, ok := ctx.Deadline(); !ok || time.Until(until) < 2*pause {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// ended reports whether ctx has ended or its deadline has passed. It checks both, because a connection may reach the
// deadline a moment before ctx ends.
func ended(ctx context.Context) bool {
	until, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(until)
}

// PingInterval is the time between two pings of a server that answers.
const PingInterval = 5 * time.Second

// Gate refuses calls to a closed store. The zero value is open.
type Gate struct{ closed atomic.Bool }

// Close closes the gate. It reports whether the gate was open.
func (g *Gate) Close() bool { return g.closed.CompareAndSwap(false, true) }

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.closed.Load() }

// Enter returns an error if ctx has ended or the store is closed.
func (g *Gate) Enter(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return &fault.Error{Code: fault.Timeout, Op: op, Msg: "the request was given up", Err: err}
	}
	if g.Closed() {
		return ErrClosed(op)
	}
	return nil
}

// ErrClosed returns the error of a call to a closed store.
func ErrClosed(op string) error {
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the store is closed"}
}

// Unreadable returns the error of a read whose response was rejected by package frames. cause is the reason, and server
// names the server in the message.
func Unreadable(op, key, server string, cause *frames.Error) *fault.Error {
	e := &fault.Error{Code: fault.Unavailable, Op: op, Key: key, Hint: "check the address of the server",
		Msg: "the answer of " + server + " cannot be read: " + cause.Error()}
	if cause.TooLarge {
		e.Code, e.Hint = fault.TooLarge, "raise "+state.MetadataMaxValueSize+", or read fewer keys at once"
	}
	return e
}

// Expiry returns the time that is micros microseconds after now, or LastExpiry if that is earlier. micros is an int64,
// because a time.Duration cannot reach the year 9999.
func Expiry(now time.Time, micros int64) time.Time {
	from := now.UnixMicro()
	return time.UnixMicro(from + min(micros, state.LastExpiry*1e6-from)).UTC()
}

// RemoveExpired removes expired rows from databases that do not remove such rows themselves. It calls remove once per
// interval until ctx ends. If remove fails, RemoveExpired logs a warning with the name of the table, and tries again
// after the next interval.
func RemoveExpired(ctx context.Context, every time.Duration, log *slog.Logger, table string,
	remove func(context.Context) error) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := remove(ctx); err != nil && ctx.Err() == nil {
				log.Warn("expired rows could not be removed; they stay invisible", "table", table, "error", err)
			}
		}
	}
}
