// Package outside contains the code that state stores in external databases share: ETags, conditions, checks of
// requests and metadata, combined reads, listings, and waiting for a server at the start.
//
// It owns no store. Only a Gatherer starts goroutines.
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

// NewETag returns a random UUID as an ETag. For a value that is not JSON, bytes must be true; the UUID then has version
// 8. Otherwise it has version 4, as all UUIDs of Dapr.
func NewETag(bytes bool) string {
	id := uuid.New()
	if bytes {
		id[6] = id[6]&0x0f | 8<<4
	}
	return id.String()
}

// ContentType returns the content type of a value: OctetStream for bytes, or "" for JSON. The parameter etag is a UUID
// from NewETag or from Dapr. A value counts as bytes if its ETag has version 8, or if it is not valid JSON.
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

// Permit returns fault.Conflict if the condition of any operation is not met. The map current has the ETag of each
// existing key.
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

// Partial returns the error of a request of which a part may have been executed before it failed with err. msg
// describes this part. If the code of err means that nothing was executed, such as fault.Unavailable, Partial replaces
// the code with fault.Indeterminate. Otherwise callers would believe that they can safely repeat the request.
func Partial(op string, err error, msg, hint string) error {
	code := fault.CodeOf(err)
	switch code {
	case fault.Unavailable, fault.Overloaded, fault.Timeout, fault.ReadOnly:
		code = fault.Indeterminate
	}
	return &fault.Error{Code: code, Op: op, Key: fault.KeyOf(err), Msg: msg, Hint: hint, Err: err}
}

// Check returns fault.Invalid if an operation has no key or an unknown kind. It also returns fault.Invalid if the
// request has a request id, because these stores do not detect repeated requests. product is the name of the database
// in the error.
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

// ETags returns the new ETag of each operation, and "" for a removal. The map last is the result of Last. The map
// written has the new ETag of each written key. If a later operation of the same request overwrites an upsert, the
// upsert gets a random ETag that no stored value has.
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

// Bounds returns the bounds of the keys that a listing with r may return. Such a key is >= from, > after and < end. If
// end is empty, there is no upper bound. from and after are valid UTF-8 even if r.After is not, because some databases
// refuse other bytes.
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

// Wait calls probe until the result is nil or an error other than fault.Unavailable, and returns this result. It pauses
// 200 ms between the calls. About 400 ms before the deadline of ctx, it gives up and returns the last error. Without a
// deadline, it calls probe only once. If the last call ran out of time, Wait returns the error of the call before it,
// which has more information.
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

// Unreadable returns the error of a read after package frames has rejected the response. cause is the error of frames,
// and server is the name of the server for the message.
func Unreadable(op, key, server string, cause *frames.Error) *fault.Error {
	e := &fault.Error{Code: fault.Unavailable, Op: op, Key: key, Hint: "check the address of the server",
		Msg: "the answer of " + server + " cannot be read: " + cause.Error()}
	if cause.TooLarge {
		e.Code, e.Hint = fault.TooLarge, "raise "+state.MetadataMaxValueSize+", or read fewer keys at once"
	}
	return e
}

// Expiry returns the time that is micros microseconds after now, but at most LastExpiry. micros is an int64, because a
// time.Duration is too short for an expiry in the year 9999.
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
