// Package fault has the error type of Quorate. An Error has a Code for programs, the operation that failed, a message
// for people, and a hint how to fix the problem.
//
// The package owns the codes, and the encoding in which nodes send errors to each other. The api packages map codes to
// HTTP statuses and public error names. The package has no goroutines. An Error does not change after it was created,
// so goroutines may share it.
package fault

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
)

// Code is the kind of an error, for callers that handle kinds differently. The constants below are the complete list. A
// code must never be renamed, because nodes send codes to each other.
type Code string

// The codes.
const (
	NotFound Code = "not_found" // the named thing does not exist
	Conflict Code = "conflict"  // a condition (ETag, create-only) did not hold; nothing was changed
	LockLost Code = "lock_lost" // a lock does not have the token of the request; nothing was changed
	// DeliverySettled means that a message was already settled when a request tried to acknowledge it. The request
	// has changed nothing.
	DeliverySettled Code = "delivery_settled"
	ActorMoved      Code = "actor_moved"    // an actor has another owner than the request names; nothing was changed
	Invalid         Code = "invalid"        // the request itself is wrong; retrying cannot help
	TooLarge        Code = "too_large"      // a limit was exceeded; Msg names the limit
	Denied          Code = "denied"         // a policy or the credentials forbid the operation
	NotLeader       Code = "not_leader"     // this replica certainly did not do it; Hint may name the leader
	Unavailable     Code = "unavailable"    // cannot be done now and certainly was not done (no quorum, closing)
	ReadOnly        Code = "read_only"      // the disk is nearly full, so values are refused; certainly not done
	FormatBlocked   Code = "format_blocked" // a server cannot read the format that this needs; certainly not done
	Overloaded      Code = "overloaded"     // certainly not done: too much is waiting already
	Indeterminate   Code = "indeterminate"  // may or may not have been done
	Timeout         Code = "timeout"        // the deadline passed; certainly not done
	Unimplemented   Code = "unimplemented"  // this store or peer does not offer the operation
	Corrupt         Code = "corrupt"        // data failed verification; nothing derived from it was used
	Internal        Code = "internal"       // a bug or an unexpected failure below
)

// Error is the error type that crosses package and node boundaries.
type Error struct {
	Code Code
	Op   string // what was being done, as "package.Operation"
	Msg  string // what went wrong, naming the thing; never a secret or a value
	Hint string // how to fix it; may be empty
	Key  string // the state key, component or file the error is about; may be empty
	Err  error  // cause; may be nil
}

// Error returns operation, message, cause and hint as one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteString(": ")
	}
	b.WriteString(e.Text())
	return b.String()
}

// Text returns Error without the operation, for API clients and operators.
func (e *Error) Text() string {
	var b strings.Builder
	switch {
	case e.Msg != "":
		b.WriteString(e.Msg)
	case e.Err == nil:
		b.WriteString(string(e.Code))
	}
	if e.Err != nil {
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(Text(e.Err))
	}
	if e.Hint != "" {
		b.WriteString(" (")
		b.WriteString(e.Hint)
		b.WriteString(")")
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error without a cause.
func New(code Code, op, msg string) *Error { return &Error{Code: code, Op: op, Msg: msg} }

// Wrap adds an operation and a message to err and keeps its code and key. If err is nil, it returns nil.
func Wrap(err error, op, msg string) error {
	if err == nil {
		return nil
	}
	return &Error{Code: CodeOf(err), Op: op, Msg: msg, Err: err, Key: KeyOf(err)}
}

// As returns the outermost *Error in err's chain, or false if there is none.
func As(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

// CodeOf returns the code of the outermost *Error in the chain of err. If the chain has no *Error, the code is Timeout
// for an expired or cancelled context, and Internal for any other error. For nil, CodeOf returns "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := As(err); ok {
		return e.Code
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Timeout
	}
	return Internal
}

// Is reports whether err is not nil and CodeOf(err) is code.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }

// KeyOf returns the first non-empty Key in err's chain.
func KeyOf(err error) string {
	for e, ok := As(err); ok; e, ok = As(e.Err) {
		if e.Key != "" {
			return e.Key
		}
	}
	return ""
}

// HintOf returns the first non-empty Hint in err's chain.
func HintOf(err error) string {
	for e, ok := As(err); ok; e, ok = As(e.Err) {
		if e.Hint != "" {
			return e.Hint
		}
	}
	return ""
}

// Text returns err as text for users and operators, without operations.
func Text(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := err.(*Error); ok { //nolint:errorlint // a wrapping error's own words must not be lost
		return e.Text()
	}
	return err.Error()
}

// PanicText returns the text to log for the value of a panic. For an error of the Go runtime, it is the error text.
// For all other values it is only their type, because their text may contain a state value or a secret.
func PanicText(cause any) string {
	if e, ok := cause.(runtime.Error); ok {
		return e.Error()
	}
	return fmt.Sprintf("%T", cause)
}
