// Package keyvault implements the secret store secretstores.azure.keyvault. It reads the secrets of an Azure Key Vault
// with Microsoft's client library. The package owns the requests and the conversion of failures to fault codes.
//
// A bulk read uses several goroutines, which end before it returns. The client library starts goroutines for its
// connections. Close closes the idle connections and so ends their goroutines.
package keyvault

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// Type is the component type.
const Type = "secretstores.azure.keyvault"

// MetadataMaxResults is the name of the request metadata that limits how many secrets a bulk read returns.
const MetadataMaxResults = "maxresults"

// Options configure a store: vault and identity.
type Options struct {
	Vault    string // name; its address follows from the environment
	Address  string // URL of the vault; exactly one of Vault and Address is set
	Identity entra.Settings
}

// Store reads the secrets of one vault. It is safe for concurrent use.
type Store struct {
	client    *azsecrets.Client
	identity  *entra.Credential
	transport http.RoundTripper
	gate      secretstores.Gate
}

// Open checks the options and returns a store. It sends no requests, because the vault may not be reachable yet.
func Open(o Options) (*Store, error) {
	address, err := o.address()
	if err != nil {
		return nil, err
	}
	o.Identity.Transport = rest.Limit(o.Identity.Transport)
	options, err := o.Identity.Options()
	if err != nil {
		return nil, err
	}
	identity, err := o.Identity.Credential()
	if err != nil {
		return nil, err
	}
	client, err := azsecrets.NewClient(address, identity, &azsecrets.ClientOptions{
		ClientOptions: options,
		// This check knows only the usual domains of vaults, and would refuse a challenge from another domain. It is
		// off if the operator configured the address, which is trusted.
		DisableChallengeResourceVerification: o.Address != "",
	})
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "keyvault.Open", Msg: "the address of the vault is not valid"}
	}
	return &Store{client: client, identity: identity, transport: o.Identity.Transport}, nil
}

func (o Options) address() (string, error) {
	if (o.Vault == "") == (o.Address == "") {
		return "", &fault.Error{Code: fault.Invalid, Op: "keyvault.Open",
			Msg: "exactly one of vaultName and vaultUrl is needed"}
	}
	if o.Address != "" {
		base, err := rest.Base("vaultUrl", o.Address)
		if err == nil && !strings.HasPrefix(base, "https://") {
			err = &fault.Error{Code: fault.Invalid, Op: "keyvault.Open",
				Msg: "vaultUrl is not https: the access token could be read in transit"}
		}
		return base, err
	}
	if !isName(o.Vault) {
		return "", &fault.Error{Code: fault.Invalid, Op: "keyvault.Open", Msg: "vaultName is not the name of a vault"}
	}
	return "https://" + strings.ToLower(o.Vault) + domain(o.Identity.Environment), nil
}

// domain returns the DNS domain of vaults in the given Azure environment, such as ".vault.azure.net". For an unknown
// environment, it returns the domain of the public cloud. This has no effect, because Open then fails in
// entra.Settings.Options.
func domain(environment string) string {
	switch e := strings.ToLower(environment); {
	case strings.Contains(e, "china"):
		return ".vault.azure.cn"
	case strings.Contains(e, "usgov"):
		return ".vault.usgovcloudapi.net"
	}
	return ".vault.azure.net"
}

// Get implements secretstores.Store. The metadata version_id chooses a version.
func (s *Store) Get(ctx context.Context, name string, metadata map[string]string) (map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	return s.get(ctx, name, metadata[secretstores.MetadataVersionID])
}

func (s *Store) get(ctx context.Context, name, version string) (map[string]string, error) {
	switch {
	case !isName(name):
		return nil, secretstores.Absent(name, "this cannot be the name of a Key Vault secret")
	case version != "" && !isName(version):
		return nil, &fault.Error{Code: fault.Invalid, Op: "keyvault.Get", Msg: "version_id is not the id of a version"}
	}
	answer, err := s.client.GetSecret(ctx, name, version, nil)
	if err != nil {
		return nil, failure(ctx, name, err)
	}
	if answer.Value == nil {
		return nil, &fault.Error{Code: fault.Corrupt, Op: "keyvault.Get", Key: name,
			Msg: "the answer of the vault has no value in it"}
	}
	return map[string]string{name: *answer.Value}, nil
}

// Bulk implements secretstores.Store. It returns the current versions of the enabled secrets. The metadata maxresults
// limits the number of secrets.
func (s *Store) Bulk(ctx context.Context, metadata map[string]string) (map[string]map[string]string, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	most, err := maxResults(metadata)
	if err != nil {
		return nil, err
	}
	var names []string
	pages := s.client.NewListSecretPropertiesPager(nil)
	for pages.More() && (most == 0 || len(names) < most) {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fault.Wrap(failure(ctx, "", err), "keyvault.Bulk", "listing the secrets")
		}
		for _, found := range page.Value {
			if found.ID != nil && enabled(found.Attributes) {
				names = append(names, found.ID.Name())
			}
		}
		if err := secretstores.Fits(len(names)); err != nil {
			return nil, err
		}
	}
	if most > 0 && len(names) > most {
		names = names[:most]
	}
	return secretstores.Gather(ctx, names, func(ctx context.Context, name string) (map[string]string, error) {
		return s.get(ctx, name, "")
	})
}

func enabled(a *azsecrets.SecretAttributes) bool { return a == nil || a.Enabled == nil || *a.Enabled }

func maxResults(metadata map[string]string) (int, error) {
	text := metadata[MetadataMaxResults]
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, &fault.Error{Code: fault.Invalid, Op: "keyvault.Bulk", Msg: "maxresults is not a number above zero"}
	}
	return n, nil
}

// Fold implements secretstores.Folder: a vault ignores the case of names.
func (s *Store) Fold(name string) string { return strings.ToLower(name) }

// Close implements secretstores.Store.
func (s *Store) Close() error {
	if !s.gate.Close() {
		return nil
	}
	s.identity.Close()
	if t, ok := s.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

func failure(ctx context.Context, name string, err error) error {
	e := entra.Failure(ctx, "the Key Vault", err)
	switch e.Code {
	case fault.NotFound:
		return secretstores.Absent(name, "the vault has no such secret, or not this version of it")
	case fault.Denied:
		if e.Hint == "" {
			e.Hint = "let the identity get (and list, for a bulk read) secrets of the vault: the role Key Vault " +
				"Secrets User"
		}
	}
	e.Key = name
	return e
}

// isName reports whether name is valid as the name of a vault, a secret or a version. Names must be checked, because an
// invalid name could change the path of the request to the vault.
func isName(name string) bool {
	if name == "" || len(name) > 127 {
		return false
	}
	for _, c := range []byte(name) {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
		if !ok {
			return false
		}
	}
	return true
}
