// Package secretstores is the contract of a secret store: what every implementation
// offers to the secrets API and to references in component files.
//
// It owns the contract, the scopes that say which secrets an application may read, and
// the instrumentation that wraps a store. It must never know HTTP, component files or a
// particular store. Implementations live in folders below and pass the suite in
// secretstorestest. Its only goroutines are those of Gather; they end before it returns.
package secretstores

import (
	"context"
	"slices"
)

// Store is what every secret store offers. All methods are safe for concurrent use and
// honour ctx. Secrets are the caller's own copies. Errors are *fault.Error and never
// carry a secret or a credential:
//
//	not_found      the secret, or the version asked for, does not exist; Key names it
//	denied         the store refused these credentials, or they have expired
//	invalid        the request cannot be served: bad metadata for this store
//	overloaded     the store asks to be called less often
//	unavailable    the store cannot be reached, or cannot serve now
//	timeout        it did not answer in time
//	too_large      a limit of bulk reads or of answers; Msg names it
//	corrupt        what it answered fails verification or makes no sense
//
// A secret has one name only: a store that would find it under a second spelling (an
// address, another path to it) refuses that as invalid or not_found, because scopes
// compare names. Names that differ by case alone are the exception: see Folder.
type Store interface {
	// Get reads one secret: key within the secret to value. A store that knows only names
	// and values answers with one key, the secret's own name. metadata is store specific
	// and may be nil; names that the store does not know are ignored.
	Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error)
	// Bulk reads every secret of the store: secret name to what Get answers. It fails as a
	// whole if one of them cannot be read.
	Bulk(ctx context.Context, metadata map[string]string) (map[string]map[string]string, error)
	// Close releases what the store holds and waits for its goroutines. It is idempotent.
	Close() error
}

// Names of request metadata, where a store has such a thing.
const (
	MetadataVersionID    = "version_id"
	MetadataVersionStage = "version_stage"
	MetadataNamespace    = "namespace"
)

// Feature is a capability as GET /v1.0/metadata names it.
type Feature string

// FeatureMultipleKeyValues marks stores whose secrets can have several keys.
const FeatureMultipleKeyValues Feature = "MULTIPLE_KEY_VALUES_PER_SECRET"

// Featurer is implemented by stores that can tell their capabilities.
type Featurer interface {
	Features() []Feature
}

// Folder is implemented by stores that take names for the same that are not spelt the
// same. Fold gives all spellings of a name one form.
type Folder interface {
	Fold(name string) string
}

// Instance is one opened secret store as the service layer sees it. The loader makes it;
// it is immutable afterwards and safe for concurrent use.
type Instance struct {
	Name   string // metadata.name, the {store} of request paths
	Type   string // spec.type in lower case, such as "secretstores.local.file"
	Store  Store
	Scope  *Scope   // which secrets applications may read; nil = all
	Scopes []string // app ids that may use the store; empty = all
}

// VisibleTo reports whether app may use the store. On a node that serves several
// applications a store can be meant for some of them only; to the others it does not exist.
func (i *Instance) VisibleTo(app string) bool {
	return len(i.Scopes) == 0 || slices.Contains(i.Scopes, app)
}
