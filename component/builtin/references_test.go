package builtin_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/builtin"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
)

// TestMain makes the test process trust the certificate of test servers, as an operator trusts a private
// authority, and removes cloud settings from its environment.
func TestMain(m *testing.M) {
	server := httptest.NewTLSServer(nil)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	server.Close()
	dir, err := os.MkdirTemp("", "quorate")
	if err != nil {
		panic(err)
	}
	file := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(file, cert, 0o600); err != nil {
		panic(err)
	}
	for name, value := range map[string]string{
		"SSL_CERT_FILE": file, "SSL_CERT_DIR": dir, "AWS_CA_BUNDLE": file, "AWS_CONFIG_FILE": dir + "/none",
		"AWS_SHARED_CREDENTIALS_FILE": dir + "/none", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// The password that every kind of secret store contains, and the credentials for the stores.
const (
	password    = "hunter2-password"
	vaultToken  = "hunter2-vault-token"
	podToken    = "hunter2-pod-token"
	awsSecret   = "hunter2-aws-secret"
	azureSecret = "hunter2-azure-secret"
	accessToken = "hunter2-access-token"
)

// services starts one server that imitates all remote services.
func services(t *testing.T) *secretstorestest.Fake {
	var f *secretstorestest.Fake
	f = secretstorestest.NewFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := func(body string, args ...any) {
			secretstorestest.Answer(http.StatusOK, fmt.Sprintf(body, args...))(w, r)
		}
		bearer := r.Header.Get("Authorization") == "Bearer "+accessToken
		encoded := base64.StdEncoding.EncodeToString([]byte(password))
		switch path := r.URL.Path; {
		case path == "/v1/secret/data/dapr/redis" && r.Header.Get("X-Vault-Token") == vaultToken:
			answer(`{"data":{"data":{"password":%q}}}`, password)
		case path == "/api/v1/namespaces/shop/secrets/redis" && r.Header.Get("Authorization") == "Bearer "+podToken:
			answer(`{"kind":"Secret","metadata":{"name":"redis"},"data":{"password":%q}}`, encoded)
		case path == "/" && r.Header.Get("X-Amz-Target") == "secretsmanager.GetSecretValue":
			answer(`{"Name":"redis","SecretString":%q}`, `{"password":"`+password+`"}`)
		case path == "/v1/projects/shop-1/secrets/redis/versions/latest:access" && bearer:
			answer(`{"payload":{"data":%q}}`, encoded)
		case path == "/token", strings.HasSuffix(path, "/oauth2/v2.0/token"):
			answer(`{"access_token":%q,"expires_in":3599,"token_type":"Bearer"}`, accessToken)
		case strings.HasSuffix(path, "/openid-configuration"):
			answer(`{"issuer":"%[1]s/t/v2.0","authorization_endpoint":"%[1]s/t/a",`+
				`"token_endpoint":"%[1]s/t/oauth2/v2.0/token"}`, f.URL)
		case strings.HasPrefix(path, "/secrets/redis") && bearer:
			answer(`{"value":%q,"id":"%s/secrets/redis/v1"}`, password, f.URL)
		case strings.HasPrefix(path, "/secrets/redis"):
			w.Header().Set("WWW-Authenticate", `Bearer authorization="`+f.URL+`/t", resource="https://vault.azure.net"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			secretstorestest.Answer(http.StatusForbidden,
				`{"errors":["{credentials}"],"kind":"Status","message":"{credentials}"}`)(w, r)
		}
	}))
	return f
}

// credentials returns a store of type local.file with the credentials of the other stores.
func credentials(t *testing.T, dir string, f *secretstorestest.Fake) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	private := strings.ReplaceAll(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "\n", `\n`)
	write(t, filepath.Join(dir, "own.json"),
		fmt.Sprintf(`{"vault": %q, "aws": %q, "azure": %q, "gcp": "%s", "redis": {"password": %q}}`, vaultToken,
			awsSecret, azureSecret, private, password))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
	return write(t, filepath.Join(dir, "kubeconfig"),
		fmt.Sprintf("current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u, namespace: "+
			"shop}}]\nclusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]\nusers: "+
			"[{name: u, user: {token: %s}}]\n",
			f.URL, base64.StdEncoding.EncodeToString(ca), podToken))
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// stores returns the metadata of one store of each type, and the reference to the password in this store.
func stores(dir, kubeconfig, base string) map[string][2]string {
	return map[string][2]string{
		"secretstores.local.file": {"{name: secretsFile, value: " + dir + "/own.json}",
			"{name: 'redis:password'}"},
		"secretstores.local.env": {"{name: prefix, value: SHOP_}", "{name: REDIS}"},
		"secretstores.kubernetes": {"{name: kubeconfigPath, value: " + kubeconfig +
			"}, {name: defaultNamespace, value: shop}", "{name: redis, key: password}"},
		"secretstores.hashicorp.vault": {"{name: vaultAddr, value: '" + base +
			"'}, {name: vaultToken, secretKeyRef: {name: vault}}", "{name: redis, key: password}"},
		"secretstores.aws.secretmanager": {"{name: region, value: eu-west-1}, {name: endpoint, value: '" + base +
			"'}, {name: accessKey, value: '{uuid}'}, {name: secretKey, secretKeyRef: {name: aws}}, {name: " +
			"multipleKeyValuesPerSecret, value: true}", "{name: redis, key: password}"},
		"secretstores.gcp.secretmanager": {"{name: project_id, value: shop-1}, {name: client_email, value: a@b}, " +
			"{name: private_key, secretKeyRef: {name: gcp}}, {name: token_uri, value: '" + base +
			"/token'}, {name: endpoint, value: '" + base + "'}", "{name: redis}"},
		"secretstores.azure.keyvault": {"{name: vaultUrl, value: '" + base +
			"'}, {name: azureAuthorityHost, value: '" + base +
			"'}, {name: azureTenantId, value: t}, {name: azureClientId, value: c}, {name: azureClientSecret, " +
			"secretKeyRef: {name: azure}}", "{name: redis}"},
	}
}

func document(name, typ, metadata string) string {
	return "apiVersion: quorate.dev/v1alpha1\nkind: Component\nmetadata: {name: " + name +
		"}\nauth: {secretStore: own}\nspec:\n  type: " + typ + "\n  metadata: [" + metadata + "]\n---\n"
}

// A component such as state.redis can get its password from every kind of secret store. No log, error or metric
// contains the password or a credential of a store.
func TestSecretStores_PasswordFromEveryKindIsNeverShown(t *testing.T) {
	f := services(t)
	dir := t.TempDir()
	kubeconfig := credentials(t, dir, f)
	all := stores(dir, kubeconfig, f.URL)
	for typ := range factories(t).SecretStores {
		metadata, known := all[typ]
		if !known {
			t.Errorf("%s is not tried", typ)
			continue
		}
		t.Run(typ, func(t *testing.T) {
			own := document("own", "secretstores.local.file", "{name: secretsFile, value: "+dir+"/own.json}")
			source := document("source", typ, metadata[0])
			good := document("redis", "state.redis-like", "{name: redisPassword, secretKeyRef: "+metadata[1]+"}")
			good = strings.Replace(good, "secretStore: own", "secretStore: source", 1)
			bad := strings.Replace(good, "redisPassword", "refuse", 1)
			if got, shown, err := load(t, own+source+good); err != nil || got != password {
				t.Errorf("the store got %q, %v", got, err)
			} else {
				hidden(t, shown)
			}
			_, shown, err := load(t, own+source+bad)
			if err == nil || !strings.Contains(err.Error(), "component redis") {
				t.Errorf("a store that fails and says why: %v", err)
			}
			hidden(t, shown+fmt.Sprint(err))
		})
	}
}

// load opens documents. It returns the password that the state store received. shown has the statuses, the log lines
// and the metrics.
func load(t *testing.T, documents string) (got, shown string, err error) {
	t.Helper()
	registry := prometheus.NewRegistry()
	metrics, err := secretstores.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, write(t, filepath.Join(t.TempDir(), "all.yaml"), documents), io.Discard)
	o.Factories, err = builtin.Factories(loader.Factories{State: map[string]loader.StateFactory{"state.redis-like": {
		Fields: []component.Field{{Name: "redisPassword", Secret: true}, {Name: "refuse"}},
		Open: func(_ context.Context, c loader.StateConfig) (state.Store, error) {
			if bad := c.Metadata.Text("refuse"); bad != "" {
				return nil, fmt.Errorf("WRONGPASS invalid password %q", bad)
			}
			got = c.Metadata.Text("redisPassword")
			return inmemory.Open(inmemory.Options{}), nil
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	o.SecretMetrics, o.Logger = metrics, slog.New(slog.NewTextHandler(&log,
		&slog.HandlerOptions{Level: slog.LevelDebug}))
	environment := map[string]string{"SHOP_REDIS": password}
	o.Env = func(name string) (string, bool) { value, ok := environment[name]; return value, ok }
	o.Environ = func() []string { return []string{"SHOP_REDIS=" + password} }
	set, err := loader.Open(t.Context(), o)
	if err == nil {
		shown = fmt.Sprintf("%+v", set.Statuses())
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
	families, gathering := registry.Gather()
	if gathering != nil {
		t.Fatal(gathering)
	}
	return got, shown + log.String() + fmt.Sprint(families), err
}

func hidden(t *testing.T, text string) {
	t.Helper()
	for _, word := range []string{"hunter2", "PRIVATE KEY"} {
		if strings.Contains(text, word) {
			t.Errorf("%s is shown: %s", word, text)
		}
	}
}
