// Package bindings defines the contract of bindings. An output binding sends data to an external system. An input
// binding receives events from an external system. The package also defines Sink and Claims, the interfaces through
// which a binding uses its node. The package owns only the contract.
//
// The implementations are in subdirectories, and pass the test suite in package bindingstest. This package starts no
// goroutines.
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

// Response is the answer of the external system.
type Response struct {
	Data     []byte
	Metadata map[string]string // may be nil; passed to the application on errors too
}

// Output sends data to an external system. All methods are safe for concurrent use and return when ctx ends. Errors are
// *fault.Error and never contain a secret:
//
//	invalid       data, metadata or operation of the request are wrong
//	denied        the system refused the credentials
//	too_large     the request exceeds a limit
//	overloaded    the system requested a delay longer than ctx allows
//	unavailable   the system cannot be reached, or reports that it cannot serve now
//	indeterminate the request was sent, but its outcome is unknown: the answer is missing, incomplete or too large,
//	              or reports a failure of the system
//	timeout       the time was over before the request was sent
type Output interface {
	// Operations lists the operations of Invoke, in the order of the documentation.
	Operations() []string
	// Invoke carries out one operation. The response is nil if the system returns none. A response together with an
	// error contains the error message of the system.
	Invoke(ctx context.Context, r Request) (*Response, error)
}

// Event is one event for the application.
type Event struct {
	Data     []byte            // delivered unchanged
	Metadata map[string]string // sent as headers to the application; may be nil
	Claimed  bool              // no other node delivers this event, so a stopping node still delivers it
}

// Sink receives the events of an input binding. It is safe for concurrent use.
type Sink interface {
	// Ready reports whether the application is healthy and the node is not stopping. An input whose events another
	// node could take calls Ready before it claims an event.
	Ready() bool
	// Deliver sends an event to the application and waits for its answer, which may be nil. After an error, the
	// application has not handled the event. The input then delivers the event again if it can.
	Deliver(ctx context.Context, e Event) ([]byte, error)
}

// Input receives events from an external system.
type Input interface {
	// Start begins to receive events. It returns when the source is set up; ctx applies only until then. The source
	// sends events to sink until Close. Start may be called again after an error, but not after a success.
	Start(ctx context.Context, sink Sink) error
}

// Binding is one opened component. At least one of Output and Input is not nil.
type Binding struct {
	Output Output
	Input  Input
	// Close stops both directions. It waits for deliveries in progress as long as ctx allows, and then cancels them.
	// After Close no event is delivered, and all goroutines have ended. Close is idempotent.
	Close func(ctx context.Context) error
}

// Claims decides which node does a piece of work that several nodes could do.
type Claims interface {
	// Claim reports whether this call is the first in the cluster for key. If it is, key is taken until the duration
	// life has passed. The result is linearizable. After an error the result is unknown, and the caller must not act.
	Claim(ctx context.Context, key string, life time.Duration) (bool, error)
}
