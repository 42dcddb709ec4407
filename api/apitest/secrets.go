package apitest

import (
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
)

// Secrets is a catalogue of secret stores. Each has one behaviour under test:
//
//	vault    several keys per secret, two versions of "db"
//	plain    each secret has one key, which is the name of the secret
//	scoped   like plain; the secret "db" is denied
//	only     like plain; only the secrets "a" and "gone" are allowed
//	closed   like plain; every secret is denied by default
//	folding  like plain; case in names does not matter; the secret "DB" is denied
//	faulty   a read fails with the fault code that is the name of the secret
//	foreign  belongs to another application
type Secrets struct {
	List  []*secretstores.Instance
	Ready bool // false = the stores are not loaded yet
}

func newSecrets() *Secrets {
	flat := memorySecrets{"a": {"a": "1"}, "b/c d": {"b/c d": "<&>\u2028\x01"}, "db": {"db": "hunter2"}}
	vault := versions{memorySecrets{"db": {"user": "root", "password": "hunter2"}, "empty": {}, "bulk": {"x": "y"}}}
	one := func(name string, store secretstores.Store) *secretstores.Instance {
		return &secretstores.Instance{Name: name, Type: "secretstores.test", Store: store}
	}
	scoped, only, closed, folding, foreign := one("scoped", flat), one("only", flat), one("closed", flat),
		one("folding", folds{flat}), one("foreign", flat)
	scoped.Scope = secretstores.NewScope(flat, false, nil, []string{"db"})
	only.Scope = secretstores.NewScope(flat, true, []string{"a", "gone"}, []string{"a"})
	closed.Scope = secretstores.NewScope(flat, true, nil, nil)
	folding.Scope = secretstores.NewScope(folding.Store, false, nil, []string{"DB"})
	foreign.Scopes = []string{"other"}
	return &Secrets{Ready: true, List: []*secretstores.Instance{
		one("vault", vault), one("plain", flat), scoped, only, closed, folding, one("faulty", faultySecrets{flat}),
		foreign,
	}}
}

// SecretStore returns the store with a name.
func (s *Secrets) SecretStore(name string) (*secretstores.Instance, bool) {
	for _, i := range s.List {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

// SecretStores returns all stores.
func (s *Secrets) SecretStores() []*secretstores.Instance { return s.List }

// Loaded reports whether the list of stores is complete.
func (s *Secrets) Loaded() bool { return s.Ready }

type memorySecrets map[string]map[string]string

func (m memorySecrets) Get(_ context.Context, name string, _ map[string]string) (map[string]string, error) {
	if secret, ok := m[name]; ok {
		return maps.Clone(secret), nil
	}
	return nil, secretstores.Absent(name, "there is none")
}

func (m memorySecrets) Bulk(context.Context, map[string]string) (map[string]map[string]string, error) {
	return maps.Clone(m), nil
}

func (m memorySecrets) Close() error { return nil }

// versions is a secret store whose secrets have versions. Version 1 has an older password. Version 1 also contains the
// version stage and the namespace of the request, so that tests can check these parameters. Version 9 does not exist.
type versions struct{ memorySecrets }

func (v versions) Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error) {
	switch metadata[secretstores.MetadataVersionID] {
	case "":
	case "1":
		return map[string]string{"password": "older", "stage": metadata[secretstores.MetadataVersionStage],
			"namespace": metadata[secretstores.MetadataNamespace]}, nil
	case "9":
		return nil, secretstores.Absent(name, "no such version")
	default:
		return nil, fault.New(fault.Invalid, "test", "version_id is not a number")
	}
	return v.memorySecrets.Get(ctx, name, metadata)
}

type folds struct{ memorySecrets }

func (folds) Fold(name string) string { return strings.ToLower(name) }

// faultySecrets is a secret store on which every read fails. The name of the secret is the fault code of the error. For
// example, a read of the secret "timeout" returns fault.Timeout. There are two exceptions: "bare" returns an error
// without a fault code, and "late" blocks until the context of the read ends.
type faultySecrets struct{ memorySecrets }

func (f faultySecrets) Get(ctx context.Context, name string, _ map[string]string) (map[string]string, error) {
	switch name {
	case "bare":
		return nil, errors.New("a library error with hunter2")
	case "late":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, &fault.Error{Code: fault.Code(name), Op: "test", Msg: "the store reported " + name, Hint: "fix it"}
}

func (f faultySecrets) Bulk(context.Context, map[string]string) (map[string]map[string]string, error) {
	return nil, &fault.Error{Code: fault.Denied, Op: "test", Msg: "the store reported denied", Hint: "fix it"}
}
