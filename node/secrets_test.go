package node_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// planted returns the secret values of the test. A node may reveal them only in answers of the secrets API.
func planted() []string {
	return []string{
		"hunter2-password", "hunter2-env", "hunter2-token", "hunter2-unused", "hunter2-state",
		"00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100",
	}
}

// secretFiles returns component files with secret stores, an encrypted state store and scopes.
func secretFiles(t testing.TB, dir string) map[string]string {
	t.Helper()
	secrets := filepath.Join(dir, "secrets.json")
	text := `{"redis": {"password": "hunter2-password"}, "unused": "hunter2-unused", ` +
		`"key": "00112233445566778899aabbccddeeff", ` +
		`"older": "ffeeddccbbaa99887766554433221100", "pin": 1e3}`
	if err := os.WriteFile(secrets, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"vault.yaml": store("vault", "secretstores.local.file", "{name: secretsFile, value: "+secrets+"}"),
		"env.yaml":   store("env", "secretstores.local.env", "{name: prefix, value: APP_}"),
		"remote.yaml": store("remote", "secretstores.hashicorp.vault",
			`{name: vaultAddr, value: "https://127.0.0.1:1"}, `+
				`{name: vaultToken, secretKeyRef: {name: "redis:password"}}`) +
			"auth: {secretStore: vault}\n",
		"cloud.yaml": store("cloud", "secretstores.aws.secretmanager",
			`{name: region, value: eu-west-1}, {name: endpoint, value: "https://127.0.0.1:1"}, `+
				`{name: accessKey, envRef: APP_PASSWORD}, {name: secretKey, secretKeyRef: {name: "redis:password"}}`) +
			"auth: {secretStore: vault}\n",
		"orders.yaml": store("orders", "state.raft",
			`{name: primaryEncryptionKey, secretKeyRef: {name: key}}, `+
				`{name: secondaryEncryptionKey, secretKeyRef: {name: older}}`) +
			"auth: {secretStore: vault}\n",
		"scopes.yaml": "apiVersion: quorate.dev/v1alpha1\nkind: Configuration\nmetadata: {name: " +
			"scopes}\nspec:\n  secrets:\n    scopes:\n    - {storeName: vault, deniedSecrets: [unused]}\n",
	}
}

// openPlanted opens a node with planted secrets. It returns the node and its log at all levels.
func openPlanted(t testing.TB, c node.Config) (*node.Node, *record, error) {
	t.Helper()
	log := &record{}
	d := deps(t)
	d.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	environment := map[string]string{"APP_PASSWORD": "hunter2-env", "DAPR_API_TOKEN": "hunter2-token",
		"APP_API_TOKEN": "hunter2-token"}
	d.Env = func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	}
	d.Environ = func() (out []string) {
		for name, value := range environment {
			out = append(out, name+"="+value)
		}
		return out
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := node.Open(ctx, c, d)
	if err == nil {
		t.Cleanup(func() { closeNode(t, n) })
	}
	return n, log, err
}

func fetch(t testing.TB, client *http.Client, method, url, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("dapr-api-token", "hunter2-token")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func client(t testing.TB, socket string) *http.Client {
	transport := &http.Transport{}
	if socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// A node has secrets in all its settings and components. Only the secrets API may return them.
func TestSecrets_OnlySecretsAPIRevealsThem(t *testing.T) {
	c := config(t)
	c.Security.APITokens = []node.Secret{"hunter2-token"}
	c.API.RequestTimeout = 2 * time.Second
	c.Components.Paths = resources(t, secretFiles(t, t.TempDir()))
	n, log, err := openPlanted(t, c)
	if err != nil {
		t.Fatal(err)
	}
	base, plain := "http://"+n.Addresses().API[0]+"/v1.0/", client(t, "")
	for path, want := range map[string]string{
		"secrets/vault/redis:password": `200 {"redis:password":"hunter2-password"}`,
		"secrets/vault/pin":            `200 {"pin":"1e3"}`, "secrets/vault/none": "204 ",
		"secrets/env/PASSWORD": `200 {"PASSWORD":"hunter2-env"}`, "secrets/env/API_TOKEN": "204 ",
		"secrets/env/bulk": `200 {"PASSWORD":{"PASSWORD":"hunter2-env"}}`,
		"secrets/vault/bulk": `200 {"key":{"key":"00112233445566778899aabbccddeeff"},` +
			`"older":{"older":"ffeeddccbbaa99887766554433221100"},"pin":{"pin":"1e3"},` +
			`"redis:password":{"redis:password":"hunter2-password"}}`,
	} {
		if status, body := fetch(t, plain, http.MethodGet, base+path, ""); want != strconv.Itoa(status)+" "+body {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	if status, body := fetch(t, plain, http.MethodPost, base+"state/orders?consistency=strong",
		`[{"key":"k","value":"hunter2-state","options":{"consistency":"strong"}}]`); status != http.StatusNoContent {
		t.Fatal(status, body)
	}
	if _, body := fetch(t, plain, http.MethodGet, base+"state/orders/k", ""); body != `"hunter2-state"` {
		t.Errorf("the encrypted store answers %s", body)
	}
	emitted := map[string]string{}
	for name, path := range map[string]string{
		"a denied secret": "secrets/vault/unused", "an unknown store": "secrets/nowhere/redis:password",
		"a store that is away": "secrets/remote/db", "a cloud that is away": "secrets/cloud/db",
		"metadata": "metadata", "a bulk that fails": "secrets/remote/bulk", "listing": "state/orders",
	} {
		status, body := fetch(t, plain, http.MethodGet, base+path, "")
		emitted[name] = strconv.Itoa(status) + " " + body
	}
	if !strings.HasPrefix(emitted["a denied secret"], "403 ") ||
		!strings.HasPrefix(emitted["a store that is away"], "500 ") ||
		!strings.Contains(emitted["metadata"], "secretstores.local.file") {
		t.Errorf("%q", emitted)
	}
	_, emitted["readiness"] = fetch(t, plain, http.MethodGet, "http://"+n.Addresses().API[0]+"/readyz", "")
	_, emitted["metrics"] = fetch(t, plain, http.MethodGet, "http://"+n.Addresses().Metrics+"/metrics", "")
	_, emitted["admin status"] = fetch(t, client(t, n.Addresses().Admin), http.MethodGet, "http://admin/v1/status",
		"")
	const counter = `quorate_secret_requests_total{operation="get",outcome="not_found",store="vault"}`
	if !strings.Contains(emitted["metrics"], counter) || !strings.Contains(emitted["admin status"], "orders") {
		t.Errorf("metrics and status are incomplete: %.300s", emitted["admin status"])
	}
	emitted["the log"] = log.String()
	for where, text := range emitted {
		for _, secret := range planted() {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %s", where, secret)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
	searchFiles(t, c.Data.Dir)
}

// searchFiles looks for planted secrets in all files of a node.
func searchFiles(t *testing.T, dir string) {
	t.Helper()
	count := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		count++
		for _, secret := range planted() {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s holds %s", path, secret)
			}
		}
		return err
	})
	if err != nil || count < 3 {
		t.Errorf("%d files: %v", count, err)
	}
}

func TestSecrets_MissingSecretStopsStart(t *testing.T) {
	for name, c := range map[string]struct{ metadata, want string }{
		"no such secret": {`{name: primaryEncryptionKey, secretKeyRef: {name: nothing}}`,
			`orders.yaml:8: component orders: metadata primaryEncryptionKey: ` +
				`the secret store vault has no secret "nothing"`},
		"no such key": {`{name: primaryEncryptionKey, secretKeyRef: {name: key, key: nothing}}`,
			`has no key "nothing"`},
		"no such variable": {`{name: primaryEncryptionKey, envRef: NOTHING}`,
			"the environment variable NOTHING is not set"},
		"not a key": {`{name: primaryEncryptionKey, secretKeyRef: {name: "redis:password"}}`,
			"its secret value is not valid"},
		"a token": {`{name: primaryEncryptionKey, envRef: DAPR_API_TOKEN}`, "envRef may not read DAPR_API_TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			config := config(t)
			files := secretFiles(t, t.TempDir())
			files["orders.yaml"] = store("orders", "state.raft", c.metadata) + "auth: {secretStore: vault}\n"
			config.Components.Paths = resources(t, files)
			_, log, err := openPlanted(t, config)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "orders.yaml:8") {
				t.Fatalf("Open: %v; want %s", err, c.want)
			}
			for _, secret := range planted() {
				if strings.Contains(err.Error()+log.String(), secret) {
					t.Errorf("%s is shown: %v\n%s", secret, err, log)
				}
			}
		})
	}
}

func TestSecrets_MisspeltScopeStopsStart(t *testing.T) {
	c := config(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: quorate.dev/v1alpha1\nkind: Configuration\nmetadata: {name: c}\nspec:\n  secrets:\n  " +
		"  scopes:\n    - {storeName: vualt, defaultAccess: deny}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Components.ConfigFiles = []string{file}
	c.Components.Paths = resources(t, map[string]string{"vault.yaml": store("vault", "secretstores.local.env", "")})
	_, _, err := openPlanted(t, c)
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "config.yaml:7") ||
		!strings.Contains(err.Error(), "did you mean vault?") {
		t.Errorf("Open: %v", err)
	}
	if _, checked := node.Check(t.Context(), c, os.LookupEnv); checked == nil || fault.Text(checked) == "" ||
		!strings.Contains(checked.Error(), "did you mean vault?") {
		t.Errorf("Check: %v", checked)
	}
}

func TestSecrets_StoreWithoutAPITokenWarnsOnce(t *testing.T) {
	for _, tokens := range [][]node.Secret{nil, {"t"}} {
		c := config(t)
		c.Security.APITokens = tokens
		c.Components.Paths = resources(t, map[string]string{"env.yaml": store("env", "secretstores.local.env", "")})
		_, log, err := openPlanted(t, c)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "the API has a secret store and no token"); n != 1-len(tokens) {
			t.Errorf("%d tokens: %d warnings", len(tokens), n)
		}
	}
}

func TestSecrets_UnsupportedConfigurationIsRefused(t *testing.T) {
	c := config(t)
	c.Components.Paths = resources(t, map[string]string{"c.yaml": "apiVersion: a/v1alpha1\nkind: " +
		"Configuration\nmetadata: {name: c}\nspec:\n  secrets: {scopes: [{storeName: envs}]}\n  api: " +
		"{allowed: [{name: secrets}]}\n  secret: {}\n", "env.yaml": store("env", "secretstores.local.env", "")})
	_, err := node.Check(t.Context(), c, os.LookupEnv)
	for _, want := range []string{"c.yaml:5: the secret scope names the store", "c.yaml:6: ", "c.yaml:7: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check: %v; want %s", err, want)
		}
	}
}

func TestDebugBundle_HasNoSecrets(t *testing.T) {
	c := config(t)
	c.Components.Paths = resources(t, secretFiles(t, t.TempDir()))
	c.Security.APITokens = []node.Secret{"hunter2-token"}
	c.App.Command = []string{"/bin/app", "--password=hunter2-password"}
	n, _, err := openPlanted(t, c)
	if err != nil {
		t.Fatal(err)
	}
	if code, text := askAt(t, n.Addresses().API[0], "POST", "/v1.0/state/orders",
		`[{"key":"k","value":"hunter2-state"}]`, "hunter2-token"); code != http.StatusNoContent {
		t.Fatalf("save: %d %s", code, text)
	}
	var archive bytes.Buffer
	if err := n.Admin().DebugBundle(t.Context(), &archive, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(&archive)
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		names += h.Name + " "
		for _, secret := range planted() {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s has the secret %s", h.Name, secret)
			}
		}
	}
	for _, want := range []string{"status.json ", "cluster.json ", "config.json ", "log.txt ", "metrics.txt ",
		"doctor.json "} {
		if !strings.Contains(names, "/"+want) {
			t.Errorf("the bundle has no %s: %s", want, names)
		}
	}
}
