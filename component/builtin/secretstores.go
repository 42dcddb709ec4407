package builtin

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/secretstores"
	aws "github.com/quorate/quorate/component/secretstores/aws/secretmanager"
	"github.com/quorate/quorate/component/secretstores/azure/keyvault"
	gcp "github.com/quorate/quorate/component/secretstores/gcp/secretmanager"
	"github.com/quorate/quorate/component/secretstores/hashicorp/vault"
	"github.com/quorate/quorate/component/secretstores/kubernetes"
	"github.com/quorate/quorate/component/secretstores/local/env"
	"github.com/quorate/quorate/component/secretstores/local/file"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// secretStores returns the secret stores of the table.
func secretStores() map[string]loader.SecretStoreFactory {
	return map[string]loader.SecretStoreFactory{
		file.Type: {Open: openFile, Fields: fileFields()},
		env.Type:  {Open: openEnv, Fields: []component.Field{{Name: "prefix"}}},
		kubernetes.Type: {Open: openKubernetes,
			Fields: []component.Field{{Name: "defaultNamespace"}, {Name: "kubeconfigPath"}}},
		vault.Type:    {Open: openVault, Fields: vaultFields()},
		aws.Type:      {Open: openAWS, Fields: awsFields()},
		gcp.Type:      {Open: openGCP, Fields: gcpFields()},
		keyvault.Type: {Open: openKeyVault, Fields: append(keyVaultFields(), entraFields()...)},
	}
}

func fileFields() []component.Field {
	return []component.Field{
		{Name: "secretsFile", Required: true},
		{Name: "nestedSeparator", Default: file.DefaultSeparator},
		{Name: "multiValued", Kind: component.Bool},
	}
}

func openFile(_ context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
	m := c.Metadata
	return file.Open(file.Options{Path: m.Text("secretsFile"), Separator: m.Text("nestedSeparator"),
		MultiValued: m.Bool("multiValued"), Logger: c.Logger})
}

func openEnv(_ context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
	return env.New(env.Options{Prefix: c.Metadata.Text("prefix"), Lookup: c.Env, List: c.Environ,
		Reserved: component.ReservedVariable}), nil
}

func openKubernetes(_ context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
	namespace := c.Metadata.Text("defaultNamespace")
	if namespace == "" {
		namespace = c.Namespace
	}
	return kubernetes.Open(kubernetes.Options{Namespace: namespace, Kubeconfig: c.Metadata.Text("kubeconfigPath"),
		Env: c.Env})
}

func vaultFields() []component.Field {
	return []component.Field{
		{Name: "vaultAddr", Default: "https://127.0.0.1:8200"},
		{Name: "vaultToken", Secret: true},
		{Name: "vaultTokenMountPath"},
		{Name: "vaultNamespace"},
		{Name: "enginePath", Default: "secret"},
		{Name: "vaultKVPrefix", Default: "dapr"},
		{Name: "vaultKVUsePrefix", Kind: component.Bool, Default: "true"},
		{Name: "vaultValueType", Default: "map", Check: oneOf("map", "text")},
		{Name: "caPem", Security: true},
		{Name: "caPath", Security: true},
		{Name: "caCert", Security: true},
		{Name: "tlsServerName", Security: true},
		{Name: "skipVerify", Kind: component.Bool},
	}
}

func openVault(_ context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
	m := c.Metadata
	config := rest.TLS(nil)
	config.ServerName, config.InsecureSkipVerify = m.Text("tlsServerName"), m.Bool("skipVerify")
	var err error
	switch {
	case m.Text("caPem") != "":
		config.RootCAs, err = rest.Authorities("caPem", []byte(m.Text("caPem")))
	case m.Text("caPath") != "":
		config.RootCAs, err = rest.AuthorityFolder(m.Text("caPath"))
	case m.Text("caCert") != "":
		config.RootCAs, err = rest.AuthorityFile(m.Text("caCert"))
	}
	if err != nil {
		return nil, err
	}
	o := vault.Options{
		Address: m.Text("vaultAddr"), Token: m.Text("vaultToken"), TokenFile: m.Text("vaultTokenMountPath"),
		Namespace: m.Text("vaultNamespace"),
		Engine:    strings.Trim(m.Text("enginePath"), "/"), Text: strings.EqualFold(m.Text("vaultValueType"), "text"),
		Transport: rest.Transport(config),
	}
	if m.Bool("vaultKVUsePrefix") {
		o.Prefix = strings.Trim(m.Text("vaultKVPrefix"), "/")
	}
	if m.Bool("skipVerify") {
		c.Logger.Warn("skipVerify is set: a man in the middle can read the token and the secrets")
	}
	if rest.Exposed(o.Address) {
		c.Logger.Warn("vaultAddr is not https: the token and the secrets can be read in transit")
	}
	return vault.Open(o)
}

func awsFields() []component.Field {
	return []component.Field{
		{Name: "region", Aliases: []string{"awsRegion"}},
		{Name: "accessKey", Aliases: []string{"awsAccessKey"}, Secret: true},
		{Name: "secretKey", Aliases: []string{"awsSecretKey"}, Secret: true},
		{Name: "sessionToken", Aliases: []string{"awsSessionToken"}, Secret: true},
		{Name: "endpoint"},
		{Name: "multipleKeyValuesPerSecret", Kind: component.Bool},
	}
}

func openAWS(ctx context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
	m := c.Metadata
	o := aws.Options{
		Region: m.Text("region"), AccessKey: m.Text("accessKey"), SecretKey: m.Text("secretKey"),
		SessionToken: m.Text("sessionToken"),
		MultiValued:  m.Bool("multipleKeyValuesPerSecret"),
	}
	if m.Text("endpoint") != "" {
		var err error
		if o.Endpoint, err = rest.Base("endpoint", m.Text("endpoint")); err != nil {
			return nil, err
		}
		if rest.Exposed(o.Endpoint) {
			c.Logger.Warn("endpoint is not https: the secrets can be read in transit")
		}
	}
	return aws.Open(ctx, o)
}

// gcpFields returns the metadata fields for the key of a Google Cloud service account. The fields have the same names
// as in the key file that Google Cloud creates. The names that Dapr uses are aliases.
func gcpFields() []component.Field {
	return []component.Field{
		{Name: "type", Default: "service_account", Check: oneOf("service_account")},
		{Name: "project_id", Required: true, Aliases: []string{"projectID"}},
		{Name: "private_key_id", Aliases: []string{"privateKeyID"}},
		{Name: "private_key", Secret: true, Aliases: []string{"privateKey"}},
		{Name: "client_email", Aliases: []string{"clientEmail"}},
		{Name: "client_id", Aliases: []string{"clientID"}},
		{Name: "auth_uri", Aliases: []string{"authURI"}},
		{Name: "token_uri", Default: "https://oauth2.googleapis.com/token", Aliases: []string{"tokenURI"}},
		{Name: "auth_provider_x509_cert_url", Aliases: []string{"authProviderX509CertURL"}},
		{Name: "client_x509_cert_url", Aliases: []string{"clientX509CertURL"}},
		{Name: "endpoint", Default: gcp.DefaultEndpoint},
	}
}

func openGCP(_ context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
	m := c.Metadata
	o := gcp.Options{Project: m.Text("project_id"), Endpoint: m.Text("endpoint"),
		Transport: rest.Transport(rest.TLS(nil))}
	if m.Text("private_key") == "" {
		return gcp.Open(o)
	}
	if m.Text("client_email") == "" {
		return nil, &fault.Error{Code: fault.Invalid, Op: "builtin.Open", Msg: "private_key needs client_email"}
	}
	token, err := rest.Base("token_uri", m.Text("token_uri"))
	if err != nil {
		return nil, err
	}
	if rest.Exposed(token) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "builtin.Open",
			Msg: "token_uri is not https: the access token could be read in transit"}
	}
	key := map[string]string{"type": strings.ToLower(m.Text("type"))}
	for _, name := range []string{"project_id", "private_key_id", "client_email", "client_id", "auth_uri", "token_uri",
		"auth_provider_x509_cert_url", "client_x509_cert_url"} {
		key[name] = m.Text(name)
	}
	key["private_key"] = strings.ReplaceAll(m.Text("private_key"), `\n`, "\n") // a key file escapes newlines
	if o.Credentials, err = json.Marshal(key); err != nil {
		return nil, fault.Wrap(err, "builtin.Open", "the service account's key")
	}
	return gcp.Open(o)
}

func keyVaultFields() []component.Field {
	return []component.Field{{Name: "vaultName"}, {Name: "vaultUrl"}}
}

// entraFields returns the fields for a Microsoft Entra ID identity, which all components of Azure services have.
func entraFields() []component.Field {
	return []component.Field{
		{Name: "azureEnvironment", Check: func(text string) error { _, err := entra.Cloud(text); return err }},
		{Name: "azureAuthorityHost"},
		{Name: "azureTenantId", Aliases: []string{"tenantId", "spnTenantId"}},
		{Name: "azureClientId", Aliases: []string{"clientId", "spnClientId"}},
		{Name: "azureClientSecret", Aliases: []string{"clientSecret", "spnClientSecret"}, Secret: true},
		{Name: "azureCertificate", Aliases: []string{"spnCertificate"}, Secret: true},
		{Name: "azureCertificateFile", Aliases: []string{"spnCertificateFile"}},
		{Name: "azureCertificatePassword", Aliases: []string{"spnCertificatePassword"}, Secret: true},
	}
}

// identity returns the Microsoft Entra ID settings from the values of entraFields.
func identity(m component.Values) entra.Settings {
	return entra.Settings{
		Environment: m.Text("azureEnvironment"), AuthorityHost: m.Text("azureAuthorityHost"),
		Tenant: m.Text("azureTenantId"),
		Client: m.Text("azureClientId"), ClientSecret: m.Text("azureClientSecret"),
		Certificate:     m.Text("azureCertificate"),
		CertificateFile: m.Text("azureCertificateFile"), CertificatePassword: m.Text("azureCertificatePassword"),
		Transport: rest.Transport(rest.TLS(nil)),
	}
}

func openKeyVault(_ context.Context, c loader.SecretStoreConfig) (secretstores.Store, error) {
	return keyvault.Open(keyvault.Options{Vault: c.Metadata.Text("vaultName"), Address: c.Metadata.Text("vaultUrl"),
		Identity: identity(c.Metadata)})
}

// oneOf returns a check that accepts only the given words, and ignores case.
func oneOf(words ...string) func(string) error {
	return func(text string) error {
		for _, word := range words {
			if strings.EqualFold(word, text) {
				return nil
			}
		}
		return wordError("is none of " + strings.Join(words, ", "))
	}
}

// wordError is an error whose text continues a sentence about a value.
type wordError string

func (e wordError) Error() string { return string(e) }
