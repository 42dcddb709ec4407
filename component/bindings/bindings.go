// Package bindings is the contract between an application and an outside event system:
// what a binding offers in each direction and what it may ask of the node.
//
// It owns the contract alone. It must never know HTTP, the application or a particular
// system. Implementations live in folders below and pass the suite in bindingstest. It
// starts no goroutines.
package bindings

import (
	"context"
	"time"
)

// Request is one call of an output binding.
type Request struct {
	Operation string            // one of Operations
	Data      []byte            // JSON text as the application sent it; nil = none
	Metadata  map[string]string // may be nil
}

// Response is what the outside system answered.
type Response struct {
	Data     []byte
	Metadata map[string]string // may be nil; given to the application on errors too
}

// Output sends to an outside system. All methods are safe for concurrent use and honour
// ctx. Errors are *fault.Error and never carry a secret:
//
//	invalid       the request cannot be served: data, metadata or operation
//	denied        the system refused these credentials
//	overloaded    the system asked for patience, beyond what ctx allowed
//	unavailable   it cannot be reached, or failed
//	timeout       it did not answer in time; the operation may have been carried out
type Output interface {
	// Operations lists what Invoke understands, in the order of documentation.
	Operations() []string
	// Invoke carries out one operation. A nil response means that the system gives none.
	// With an error the response, if there is one, is what the system said.
	Invoke(ctx context.Context, r Request) (*Response, error)
}

// Event is one event for the application.
type Event struct {
	Data     []byte            // delivered as it is
	Metadata map[string]string // becomes headers; may be nil
}

// Sink is where an input binding hands its events. It is safe for concurrent use.
type Sink interface {
	// Ready reports whether the application takes events now: it is there, healthy, and
	// the node is not stopping. A source that can leave an event to another node asks
	// before it claims one.
	Ready() bool
	// Deliver hands an event to the application and waits for its answer, the data of
	// which may be nil. On an error the application has not handled the event, and a
	// source that can deliver again does so.
	Deliver(ctx context.Context, e Event) ([]byte, error)
}

// Input receives from an outside system.
type Input interface {
	// Start begins to receive. It returns when the source is set up; ctx bounds that
	// alone. Events go to sink until Close. After an error it may be called again, after a
	// success not.
	Start(ctx context.Context, sink Sink) error
}

// Binding is one opened component: at least one of its sides is not nil.
type Binding struct {
	Output Output
	Input  Input
	// Close ends both sides: no event is delivered after it returned, and every goroutine
	// has ended. It is idempotent, waits for deliveries under way as long as ctx allows,
	// and cuts them then.
	Close func(ctx context.Context) error
}

// Claims lets one of several nodes take what all of them see.
type Claims interface {
	// Claim reports whether this call is the first in the cluster for key, which is then
	// taken for life. The outcome is linearizable; an error means that it is not known,
	// and the caller must not act.
	Claim(ctx context.Context, key string, life time.Duration) (bool, error)
}
