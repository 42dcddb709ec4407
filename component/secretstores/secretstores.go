// Package secretstores is the contract of a secret store: what every implementation
// offers to the secrets API and to references in component files.
//
// It owns the contract alone. It must never know HTTP, scopes (who may read what is
// decided above) or a particular store. Implementations live in folders below. It
// starts no goroutines.
package secretstores

import "context"

// Store is what every secret store offers. All methods are safe for concurrent use and
// honour ctx. Secrets are the caller's own copies. Errors are *fault.Error and never
// carry a secret:
//
//	not_found      the secret does not exist; Key names it
//	denied         the store refused these credentials
//	invalid        the request cannot be served: bad metadata for this store
//	unavailable    the store cannot be reached
//	timeout        it did not answer in time
type Store interface {
	// Get reads one secret: key within the secret to value. A store that knows only names
	// and values answers with one key, the secret's own name. metadata is store specific
	// and may be nil.
	Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error)
	// Bulk reads every secret the store may show: secret name to what Get answers.
	Bulk(ctx context.Context, metadata map[string]string) (map[string]map[string]string, error)
	// Close releases what the store holds and waits for its goroutines. It is idempotent.
	Close() error
}

// Feature is a capability as GET /v1.0/metadata names it.
type Feature string

// FeatureMultipleKeyValues marks stores whose secrets can have several keys.
const FeatureMultipleKeyValues Feature = "MULTIPLE_KEY_VALUES_PER_SECRET"

// Featurer is implemented by stores that can tell their capabilities.
type Featurer interface {
	Features() []Feature
}
