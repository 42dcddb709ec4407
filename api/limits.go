package api

import (
	"cmp"

	"github.com/quorate/quorate/component/state"
)

// Limits are the limits of API requests, and of the values that an application sets in its metadata. Two limits are
// defined elsewhere: state.MaxKeySize limits the size of a key, and each store limits the size of a value.
type Limits struct {
	BulkKeys       int // keys of a bulk read or a delete, items of a save
	Operations     int // operations of a transaction
	PageSize       int // keys of one page of a listing
	Parallelism    int // concurrent reads of a bulk read, if the store cannot read in bulk
	RequestIDSize  int // bytes of a client's request id
	ExtendedValues int // values an application may set in its metadata
	ExtendedSize   int // bytes of one such value, and of its name
}

// The defaults of Limits.
const (
	DefaultBulkKeys       = 10_000
	DefaultOperations     = 1_000
	DefaultPageSize       = 1_000
	DefaultParallelism    = 32
	DefaultRequestIDSize  = 128
	DefaultExtendedValues = 256
	DefaultExtendedSize   = 64 << 10
)

// MaxMetadata is the maximum number of entries in the metadata of one item, operation or request.
const MaxMetadata = 1_000

// CheckMetadata returns an error if metadata has too many entries.
func CheckMetadata(entries int) error {
	if entries > MaxMetadata {
		return Exceeded("too many entries in one metadata", entries, MaxMetadata)
	}
	return nil
}

// CheckItems returns an error if a save has too many items. The HTTP and gRPC servers call it before they decode a
// body, because decoded items need much more memory than the body.
func (s *State) CheckItems(n int) error {
	if n > s.limits.BulkKeys {
		return Exceeded("too many items in one save", n, s.limits.BulkKeys)
	}
	return nil
}

// CheckKeys returns an error if n keys are too many for a bulk read.
func (s *State) CheckKeys(n int) error {
	if n > s.limits.BulkKeys {
		return Exceeded("too many keys in one bulk read", n, s.limits.BulkKeys)
	}
	return nil
}

// CheckDeletes returns an error if n keys are too many for a delete.
func (s *State) CheckDeletes(n int) error {
	if n > s.limits.BulkKeys {
		return Exceeded("too many keys in one delete", n, s.limits.BulkKeys)
	}
	return nil
}

// CheckElements returns an error if a list has too many elements. It applies to lists without a limit of their own.
func CheckElements(n int) error {
	if n > DefaultBulkKeys {
		return Exceeded("too many elements in one list", n, DefaultBulkKeys)
	}
	return nil
}

// CheckOperations returns an error if a transaction has too many operations. If the store cannot execute transactions
// at all, the error reports this problem instead.
func (s *State) CheckOperations(store string, n int) error {
	if n <= s.limits.Operations {
		return nil
	}
	inst, failure := s.store(store)
	return s.tooMany(inst, failure, n)
}

// CheckActorOperations does the same as CheckOperations, for a transaction of the actor state store.
func (s *State) CheckActorOperations(n int) error {
	if n <= s.limits.Operations {
		return nil
	}
	inst, failure := s.actorStore()
	return s.tooMany(inst, failure, n)
}

func (s *State) tooMany(inst *state.Instance, failure *Error, n int) error {
	if failure != nil {
		return failure
	}
	if state.AbilitiesOf(inst.Store).Transactor == nil {
		return transactionsNotSupported(inst.Name)
	}
	return tooManyOperations(inst.Name, n, s.limits.Operations)
}

// DefaultPage is the number of keys on a page of a listing if the request has no limit.
const DefaultPage = 100

// WithDefaults returns l with every zero field replaced by its default.
func (l Limits) WithDefaults() Limits {
	l.BulkKeys = cmp.Or(l.BulkKeys, DefaultBulkKeys)
	l.Operations = cmp.Or(l.Operations, DefaultOperations)
	l.PageSize = cmp.Or(l.PageSize, DefaultPageSize)
	l.Parallelism = cmp.Or(l.Parallelism, DefaultParallelism)
	l.RequestIDSize = cmp.Or(l.RequestIDSize, DefaultRequestIDSize)
	l.ExtendedValues = cmp.Or(l.ExtendedValues, DefaultExtendedValues)
	l.ExtendedSize = cmp.Or(l.ExtendedSize, DefaultExtendedSize)
	return l
}
