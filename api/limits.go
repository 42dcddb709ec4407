package api

import "cmp"

// Limits bound what one request may ask for. The size of a key is bounded by
// state.MaxKeySize, the size of a value by its store.
type Limits struct {
	BulkKeys       int // keys of a bulk read, items of a save
	Operations     int // operations of a transaction
	PageSize       int // keys of one page of a listing
	Parallelism    int // concurrent reads of a bulk from a store that cannot read in bulk
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

// DefaultPage is how many keys a page of a listing has when the caller does not say.
const DefaultPage = 100

// WithDefaults replaces what is zero by its default.
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
