package kubernetes_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/kubernetes"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "eyJhbGciOiJSUzI1NiJ9.theToken.sig"

// server starts a server that imitates the core/v1 API of Kubernetes for secrets.
func server(t testing.TB) *secretstorestest.Fake {
	db := `{"metadata":{"name":"db","namespace":"shop"},"data":{"password":"` + b64("hunter2") +
		`","empty":"","binary":"//79"},"type":"Opaque"}`
	web := `{"metadata":{"name":"web.tls","namespace":"shop"},"type":"kubernetes.io/tls"}`
	other := `{"metadata":{"name":"db","namespace":"other"},"data":{"password":"` + b64("elsewhere") + `"}}`
	paths := map[string]string{
		"/api/v1/namespaces/shop/secrets/db": `{"kind":"Secret","apiVersion":"v1",` +
			db[1:],
		"/api/v1/namespaces/shop/secrets/web.tls": `{"kind":"Secret","apiVersion":"v1",` +
			web[1:],
		"/api/v1/namespaces/other/secrets/db": `{"kind":"Secret","apiVersion":"v1",` +
			other[1:],
		"/api/v1/namespaces/shop/secrets?limit=500": `{"kind":"SecretList","apiVersion":"v1",` +
			`"metadata":{"resourceVersion":"1","continue":"to+ken/="},"items":[` + db + `]}`,
		"/api/v1/namespaces/shop/secrets?continue=to%2Bken%2F%3D&limit=500": `{"kind":"SecretList",` +
			`"apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[` + web + `]}`,
	}
	return secretstorestest.NewFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := paths[r.RequestURI]
		switch {
		case r.Header.Get("Authorization") != "Bearer "+token:
			status(http.StatusUnauthorized, "Unauthorized", "Unauthorized")(w, r)
		case ok:
			secretstorestest.Answer(http.StatusOK, body)(w, r)
		default:
			status(http.StatusNotFound, "NotFound", "secrets not found")(w, r)
		}
	}))
}

// status returns a handler that answers with an error in the form of the API.
func status(code int, reason, message string) http.HandlerFunc {
	return secretstorestest.Answer(code,
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"`+message+
			` {credentials}","reason":"`+reason+`"}`)
}

func b64(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pod returns options with the credentials that a pod has.
func pod(t testing.TB, f *secretstorestest.Fake) kubernetes.Options {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), token+"\n")
	write(t, filepath.Join(dir, "namespace"), "shop")
	write(t, filepath.Join(dir, "ca.crt"), authority(f))
	u, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.Options{ServiceAccountDir: dir,
		Env: env(map[string]string{"KUBERNETES_SERVICE_HOST": u.Hostname(), "KUBERNETES_SERVICE_PORT": u.Port()})}
}

func authority(f *secretstorestest.Fake) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}))
}

func env(variables map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	}
}

func open(t testing.TB, o kubernetes.Options) *kubernetes.Store {
	t.Helper()
	s, err := kubernetes.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStore_Conformance(t *testing.T) {
	f := server(t)
	secretstorestest.Run(t, func(t *testing.T) secretstores.Store { return open(t, pod(t, f)) },
		secretstorestest.Options{
			Secrets: map[string]map[string]string{"db": {"password": "hunter2", "empty": "", "binary": "//79"},
				"web.tls": {}},
			Absent: "none", Twins: []string{"DB", "db/", "../../other/secrets/db", "db?x"},
		})
}

func TestRequests_MatchReference(t *testing.T) {
	f := server(t)
	s := open(t, pod(t, f))
	got, err := s.Get(t.Context(), "db", map[string]string{"namespace": "other"})
	if diff := cmp.Diff(map[string]string{"password": "elsewhere"}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := s.Bulk(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"GET /api/v1/namespaces/other/secrets/db", "GET /api/v1/namespaces/shop/secrets?limit=500",
		"GET /api/v1/namespaces/shop/secrets?continue=to%2Bken%2F%3D&limit=500"}
	if diff := cmp.Diff(want, f.Requests()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, namespace := range []string{"..", "a/b", "Shop", "shop?x", "-shop"} {
		if _, err := s.Get(t.Context(), "db", map[string]string{"namespace": namespace}); !fault.Is(err,
			fault.Invalid) {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
}

// The answer for more than 125 secrets is too large. The server ends the list after 126 secrets.
func TestBulk_ReadsLargeSecretsInSmallerPages(t *testing.T) {
	endless := strings.Repeat(" ", 16<<20+1)
	f := secretstorestest.NewFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit, _ := strconv.Atoi(r.FormValue("limit"))
		if limit > 125 {
			_, _ = io.WriteString(w, endless) // an error means that the client has read enough
			return
		}
		first, more := 0, "125"
		if r.FormValue("continue") == more {
			first, limit, more = 125, 1, ""
		}
		var items []string
		for i := range limit {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":"s%d"}}`, first+i))
		}
		secretstorestest.Answer(http.StatusOK, fmt.Sprintf(`{"metadata":{"continue":%q},"items":[%s]}`, more,
			strings.Join(items, ",")))(w, r)
	}))
	got, err := open(t, pod(t, f)).Bulk(t.Context(), nil)
	if err != nil || len(got) != 126 || got["s125"] == nil {
		t.Errorf("%d secrets, %v", len(got), err)
	}
	want := []string{"limit=500", "limit=250", "limit=125", "continue=125&limit=125"}
	for i := range want {
		want[i] = "GET /api/v1/namespaces/shop/secrets?" + want[i]
	}
	if diff := cmp.Diff(want, f.Requests()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBulk_LimitsAllSecretsTogether(t *testing.T) {
	var data strings.Builder
	for i := range 550_000 { // 64 MiB with the cost of each key
		fmt.Fprintf(&data, `"%d":"",`, i)
	}
	f := secretstorestest.NewFake(t, secretstorestest.Answer(http.StatusOK, `{"kind":"SecretList","items":[`+
		`{"metadata":{"name":"s"},"data":{`+strings.TrimSuffix(data.String(), ",")+`}}]}`))
	got, err := open(t, pod(t, f)).Bulk(t.Context(), nil)
	if !fault.Is(err, fault.TooLarge) || got != nil || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("%d secrets, %v", len(got), err)
	}
}

func TestFailures_Server(t *testing.T) {
	f := server(t)
	secretstorestest.RunTroubles(t, secretstorestest.Service{
		Fake: f, Open: func(t *testing.T) secretstores.Store { return open(t, pod(t, f)) }, Name: "db",
		Throttled: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "1")
			status(http.StatusTooManyRequests, "TooManyRequests", "the server has received too many requests")(w, r)
		},
		Denied:       status(http.StatusForbidden, "Forbidden", `secrets is forbidden: User cannot get resource`),
		Expired:      status(http.StatusUnauthorized, "Unauthorized", "Unauthorized"),
		Absent:       status(http.StatusNotFound, "NotFound", "secrets not found"),
		Down:         status(http.StatusInternalServerError, "InternalError", "etcd cannot be reached"),
		Confidential: []string{token, "hunter2"},
	})
}

func TestGet_ReadsPodTokenEachTime(t *testing.T) {
	f := server(t)
	o := pod(t, f)
	s := open(t, o)
	file := filepath.Join(o.ServiceAccountDir, "token")
	write(t, file, "expired")
	if _, err := s.Get(t.Context(), "db", nil); !fault.Is(err, fault.Denied) {
		t.Errorf("an expired token: %v", err)
	}
	write(t, file, token)
	if _, err := s.Get(t.Context(), "db", nil); err != nil {
		t.Errorf("a renewed token: %v", err)
	}
}

func TestGet_NamespaceOfComponentThenPod(t *testing.T) {
	f := server(t)
	o := pod(t, f)
	o.Namespace = "other"
	got, err := open(t, o).Get(t.Context(), "db", nil)
	if err != nil || got["password"] != "elsewhere" {
		t.Errorf("%v, %v", got, err)
	}
}

// kubeconfig writes a kubeconfig file with the fields of a cluster and a user. It returns the path of the file.
func kubeconfig(t testing.TB, cluster, user string) string {
	return write(t, filepath.Join(t.TempDir(), "config"), `apiVersion: v1
kind: Config
current-context: here
contexts:
- name: elsewhere
  context: {cluster: none, user: none}
- name: here
  context: {cluster: c, user: u, namespace: shop}
clusters:
- name: c
  cluster: {`+cluster+`}
users:
- name: u
  user: {`+user+`}
`)
}

func TestOpen_Kubeconfig(t *testing.T) {
	f := server(t)
	cluster := "server: '" + f.URL + "', certificate-authority-data: " + b64(authority(f))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), token)
	for name, path := range map[string]string{
		"token":      kubeconfig(t, cluster, "token: "+token),
		"token file": kubeconfig(t, cluster, "tokenFile: "+filepath.Join(dir, "token")+", token: stale"),
		"authority file": kubeconfig(t, "server: '"+f.URL+"', certificate-authority: "+write(t,
			filepath.Join(dir, "ca"), authority(f)), "token: "+token),
		"no check":    kubeconfig(t, "server: '"+f.URL+"', insecure-skip-tls-verify: true", "token: "+token),
		"server name": kubeconfig(t, cluster+", tls-server-name: example.com", "token: "+token),
	} {
		for _, o := range []kubernetes.Options{
			{Kubeconfig: path, Env: env(nil)}, {Env: env(map[string]string{"KUBECONFIG": path})},
		} {
			if _, err := open(t, o).Get(t.Context(), "db", nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestOpen_InvalidKubeconfigErrorHasNoTokens(t *testing.T) {
	const server = "server: 'https://k8s.example'"
	for name, c := range map[string]struct{ path, want string }{
		"a program":  {kubeconfig(t, server, "exec: {command: aws}"), "program"},
		"a plugin":   {kubeconfig(t, server, "auth-provider: {name: gcp}"), "program"},
		"plain http": {kubeconfig(t, "server: 'http://k8s.example'", "token: "+token), "not https"},
		"no server":  {kubeconfig(t, "", "token: "+token), "address"},
		"bad base64": {kubeconfig(t, server+", certificate-authority-data: '%'", "token: "+token), "base64"},
		"no PEM": {kubeconfig(t, server+", certificate-authority-data: "+b64("x"), "token: "+token),
			"no certificate"},
		"half a pair": {kubeconfig(t, server, "client-certificate-data: "+b64("x")), "belong together"},
		"no file":     {"/nowhere", "kubeconfig"},
		"not YAML":    {write(t, filepath.Join(t.TempDir(), "c"), "token: ["+token), "not a kubeconfig"},
		"no context":  {write(t, filepath.Join(t.TempDir(), "c"), "token: "+token), "current context"},
		"a stray user": {write(t, filepath.Join(t.TempDir(), "c"),
			"current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"+
				"clusters: [{name: c, cluster: {"+server+"}}]"), "user"},
		"no cluster": {write(t, filepath.Join(t.TempDir(), "c"),
			"current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]"), "cluster"},
	} {
		_, err := kubernetes.Open(kubernetes.Options{Kubeconfig: c.path, Env: env(nil)})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpen_WithoutCredentials(t *testing.T) {
	for name, variables := range map[string]map[string]string{
		"nothing": nil, "several files": {"KUBECONFIG": "/a:/b"},
		"no pod after all": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "an empty home": {"HOME": t.TempDir()},
	} {
		_, err := kubernetes.Open(kubernetes.Options{Env: env(variables), ServiceAccountDir: t.TempDir()})
		if code := fault.CodeOf(err); code != fault.Invalid && code != fault.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := server(t)
	o := pod(t, f)
	o.Namespace = "No"
	if _, err := kubernetes.Open(o); !fault.Is(err, fault.Invalid) {
		t.Errorf("a bad namespace: %v", err)
	}
}

func FuzzKubeconfig(f *testing.F) {
	f.Add("current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nclusters: [{name: c, " +
		"cluster: {server: 'https://x'}}]\nusers: [{name: u, user: {token: t}}]")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := kubernetes.Open(kubernetes.Options{Kubeconfig: write(t, filepath.Join(t.TempDir(), "c"), text),
			Env: env(nil)})
		if err == nil {
			_ = s.Close()
		}
	})
}
