package api

import (
	"errors"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Kind says what a failure means to a protocol: each face maps it to a status of its
// own, in one place. The set is closed.
type Kind uint8

// The kinds.
const (
	Failed          Kind = iota // the operation failed
	Malformed                   // the request is wrong; repeating it cannot help
	Missing                     // what the request needs is not configured or not known by that name
	NotFound                    // no such path
	Method                      // the path does not know this verb
	Conflict                    // an ETag or create-only condition did not hold
	Denied                      // policy forbids it
	Unauthenticated             // no valid token
	Unsupported                 // the store does not offer it
	Unavailable                 // surely not done: no quorum, read-only, starting, closing
	Timeout                     // surely not done in time
	Indeterminate               // may have been done
	NotReady                    // health: something is not ready
)

// Error is the one error that the services give. It is immutable once returned.
type Error struct {
	Kind    Kind
	Code    string // public name, ERR_...; existing clients know it
	Message string // names the store, key or limit; never a value or a secret
	Details Details

	cause error
}

// Details say for programs what Message says for people. The zero value has none.
type Details struct {
	Reason     string      // why; empty = no details
	Metadata   []Attribute // what it is about
	Store      string      // the state store concerned; empty = none
	Violations []Violation // fields of the request that are wrong
	Help       string      // address that explains more; may be empty
}

// Domain tells whose reason it is: clients of this API know those of dapr.io.
func (d *Details) Domain() string {
	if strings.HasPrefix(d.Reason, "DAPR_") {
		return "dapr.io"
	}
	return "quorate"
}

// Attribute is one named text of Details.
type Attribute struct{ Name, Value string }

// Violation says what is wrong with one field.
type Violation struct{ Field, Description string }

// Error returns code and message.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Unwrap returns the cause, which may be nil.
func (e *Error) Unwrap() error { return e.cause }

// AsError returns err as *Error. Anything else becomes ERR_INTERNAL: a service that gives
// another error has a defect.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{
		Kind:    Failed,
		Code:    CodeInternal,
		Message: fault.Text(err),
		Details: Details{Reason: ReasonInternal},
		cause:   err,
	}
}
