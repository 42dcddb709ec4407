package api

import "time"

// Observer is notified after each operation of a state store, a secret store or an output binding, and after each
// delivery of an event of an input binding. In all methods, ok reports whether the operation or delivery succeeded.
// Implementations are safe for concurrent use.
type Observer interface {
	// StateOperation is called after get, set, delete, bulk_get or transaction of a state store.
	StateOperation(store, operation string, ok bool, took time.Duration)
	// SecretOperation is called after get or bulk_get of a secret store.
	SecretOperation(store, operation string, ok bool, took time.Duration)
	// BindingOperation is called after an operation of an output binding.
	BindingOperation(binding, operation string, ok bool, took time.Duration)
	// BindingEvent is called after the delivery of an event of an input binding, also if it failed.
	BindingEvent(binding string, ok bool, took time.Duration)
}

// The names of operations in Observer.
const (
	observedGet      = "get"
	observedSet      = "set"
	observedDelete   = "delete"
	observedBulkGet  = "bulk_get"
	observedTransact = "transaction"
)

// observed reports operations to an observer. The zero value has no observer.
type observed struct{ by Observer }

// begin returns the start time of an operation. Without an observer, it returns the zero time.
func (o observed) begin() (start time.Time) {
	if o.by != nil {
		start = time.Now()
	}
	return start
}

func (o observed) state(store, operation string, start time.Time, err error) {
	if o.by != nil {
		o.by.StateOperation(store, operation, err == nil, time.Since(start))
	}
}

func (o observed) secret(store, operation string, start time.Time, err error) {
	if o.by != nil {
		o.by.SecretOperation(store, operation, err == nil, time.Since(start))
	}
}

func (o observed) binding(name, operation string, start time.Time, err error) {
	if o.by != nil {
		o.by.BindingOperation(name, operation, err == nil, time.Since(start))
	}
}

func (o observed) event(binding string, start time.Time, err error) {
	if o.by != nil {
		o.by.BindingEvent(binding, err == nil, time.Since(start))
	}
}

// Report makes the service report its operations to o, and returns s. If o is nil, the service reports nothing.
// Report must be called before the first request.
func (s *State) Report(o Observer) *State {
	s.seen = observed{o}
	return s
}

// Report makes the service report its operations to o, and returns s. If o is nil, the service reports nothing.
// Report must be called before the first request.
func (s *Secrets) Report(o Observer) *Secrets {
	s.seen = observed{o}
	return s
}

// Report makes the service report its operations to o, and returns b. If o is nil, the service reports nothing.
// Report must be called before the first request.
func (b *Bindings) Report(o Observer) *Bindings {
	b.seen = observed{o}
	return b
}
