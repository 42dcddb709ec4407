package api

import (
	"errors"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Kind is the class of a failure. The HTTP and gRPC servers map each Kind to a status code.
type Kind uint8

// The kinds.
const (
	Failed          Kind = iota // the operation failed
	Malformed                   // the request is invalid; repeating it cannot help
	Missing                     // a store or other component of the request is not configured
	NotConfigured               // no component of the building block is configured
	NotFound                    // the path, or what the request names, does not exist
	Method                      // the path does not support this verb
	Conflict                    // an ETag or create-only condition did not hold
	Exists                      // there is a job or a reminder with that name
	LockLost                    // a lock does not have the token that the write carries
	ActorMoved                  // an actor has another owner than the request names
	Denied                      // a policy forbids the request
	Unauthenticated             // the request has no valid token
	Unsupported                 // the store does not support the operation
	NotServed                   // the building block is not served
	Unavailable                 // not executed: no quorum, read-only, starting, closing
	Timeout                     // not executed in time
	Indeterminate               // may have been executed
	NotReady                    // health: something is not ready
	Compacted                   // what the request needs is no longer kept
	BadAnswer                   // may have been executed; the answer of the application or server was refused
)

// Error is the error type of all services. It is immutable once returned.
type Error struct {
	Kind    Kind
	Code    string // public code, ERR_...; clients depend on it
	Message string // names the store, key or limit; never a value or a secret
	Details Details

	Cause error // wrapped; nil = none
}

// Details is the machine-readable part of an Error. Error.Message is the human-readable part. The zero value means no
// details.
type Details struct {
	Reason     string      // why the request failed; empty = no details
	Metadata   []Attribute // names of the things concerned, such as a key
	Store      string      // the state store or other component concerned; empty = none
	Resource   string      // the kind of component that Store names; empty = a state store
	Violations []Violation // fields of the request that are wrong
	Help       string      // address that explains more; may be empty
}

// The domains that define reasons and codes.
const (
	DomainDapr = "dapr.io"
	domainOwn  = "quorate"
)

// Domain returns the domain that defines the reason.
func (d *Details) Domain() string { return DomainOf(d.Reason) }

// DomainOf returns the domain that defines a reason or a code.
func DomainOf(reason string) string {
	if strings.HasPrefix(reason, "DAPR_") {
		return DomainDapr
	}
	return domainOwn
}

// Attribute is one named text of Details.
type Attribute struct{ Name, Value string }

// Violation describes what is wrong with one field.
type Violation struct{ Field, Description string }

// Error returns code and message.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Unwrap returns the cause, which may be nil.
func (e *Error) Unwrap() error { return e.Cause }

// AsError returns err as an *Error. If err contains no *Error, the result has the code ERR_INTERNAL. That indicates a
// bug, because services must return *Error.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{
		Kind:    Failed,
		Code:    CodeInternal,
		Message: fault.Text(err),
		Details: Details{Reason: ReasonInternal},
		Cause:   err,
	}
}
