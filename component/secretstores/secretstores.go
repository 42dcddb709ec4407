// Package secretstores defines the interface of secret stores. The secrets API reads secrets through this interface,
// and the loader resolves the secret references in component files through it. The package owns the contract, the
// scopes that determine which secrets an application may read, and a wrapper that records metrics of a store.
//
// The stores are in the subfolders, and all pass the test suite in secretstorestest. The only goroutines of the package
// are those of Gather, which end before Gather returns.
package secretstores

import (
	"context"
	"slices"
)

// Store is implemented by every secret store. All methods are safe for concurrent use and return when ctx ends. The
// caller may change the returned maps. Errors are *fault.Error and never contain a secret or a credential:
//
//	not_found      the secret, or the requested version, does not exist; Key names it
//	denied         the store refused the credentials of the node, or they have expired
//	invalid        the request has metadata that this store does not accept
//	overloaded     the store requested fewer calls
//	unavailable    the store cannot be reached, or cannot serve now
//	timeout        the store did not answer in time
//	too_large      a limit of bulk reads or of answers is exceeded; Msg names it
//	corrupt        the answer fails verification or cannot be decoded
//
// A secret must have exactly one name, because a Scope compares names. For example, if a service also finds a secret by
// its URL, the store must return invalid or not_found for the URL. Only a store that implements Folder may accept
// spellings of the name that differ in case.
type Store interface {
	// Get reads one secret and returns its keys and values. If the secrets of a store have no keys, the only key is
	// the name of the secret. metadata depends on the store and may be nil; unknown names are ignored.
	Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error)
	// Bulk reads all secrets of the store. It maps the name of each secret to the result of Get. If one secret cannot
	// be read, Bulk returns only an error.
	Bulk(ctx context.Context, metadata map[string]string) (map[string]map[string]string, error)
	// Close releases the resources of the store and waits for its goroutines. It is idempotent.
	Close() error
}

// Names of request metadata, for stores that support them.
const (
	MetadataVersionID    = "version_id"
	MetadataVersionStage = "version_stage"
	MetadataNamespace    = "namespace"
)

// Feature is a capability as GET /v1.0/metadata names it.
type Feature string

// FeatureMultipleKeyValues is the feature of stores whose secrets can have several keys.
const FeatureMultipleKeyValues Feature = "MULTIPLE_KEY_VALUES_PER_SECRET"

// Featurer is implemented by stores that report their capabilities.
type Featurer interface {
	Features() []Feature
}

// Folder is implemented by stores in which several spellings of a name mean the same secret, for example because
// case is ignored. Fold returns the same text for all of these spellings.
type Folder interface {
	Fold(name string) string
}

// Instance is an opened secret store with the settings of its component file. It is immutable and safe for concurrent
// use.
type Instance struct {
	Name   string // metadata.name, the {store} of request paths
	Type   string // spec.type in lower case, such as "secretstores.local.file"
	Store  Store
	Scope  *Scope   // secrets that applications may read; nil = all
	Scopes []string // app ids that may use the store; empty = all
}

// VisibleTo reports whether the application app may use the store. For an application that may not use it, the API
// behaves as if the store did not exist.
func (i *Instance) VisibleTo(app string) bool {
	return len(i.Scopes) == 0 || slices.Contains(i.Scopes, app)
}
