package nodetest

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
)

// Poll calls check repeatedly until it returns nil. If this takes too long, Poll fails the test, see
// testutil.Eventually.
func Poll(t testing.TB, check func() error) { t.Helper(); testutil.Eventually(t, check) }

// AnyPort returns a setting that picks a free port.
func AnyPort() node.Port { return node.Port{Given: true} }

// SparePort returns a port that no other test gets until this test ends. Use it only if a test must know the address
// before the listener is opened. Otherwise use AnyPort.
func SparePort(t testing.TB) int { t.Helper(); return testutil.SparePort(t) }

// Config returns the configuration of a single node on free ports, with its own data directory.
func Config(t testing.TB) node.Config {
	t.Helper()
	c := node.Config{Version: "test"}
	runtime, err := os.MkdirTemp("", "q") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(runtime) })
	c.Data.Dir, c.Data.RuntimeDir = filepath.Join(t.TempDir(), "data"), runtime
	c.Data.MinFree, c.Data.AnyMinFree = 1, true // a machine that runs tests may have a full disk
	c.App.ID = "shop"
	c.API.HTTP, c.API.GRPC, c.Metrics.Port = AnyPort(), AnyPort(), AnyPort()
	return c
}

// Deps returns the dependencies for a node in a test. They discard the log. They fail the test if the node calls Fatal
// or Exit.
func Deps(t testing.TB) node.Deps {
	return node.Deps{
		Logger: slog.New(slog.DiscardHandler), Env: os.LookupEnv,
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
		Exit:  func(code int) { t.Errorf("exit %d", code) },
	}
}

// Open starts a node, which is closed when the test ends.
func Open(t testing.TB, c node.Config) *node.Node {
	t.Helper()
	return OpenWith(t, c, Deps(t))
}

// OpenWith is Open with the given Deps.
func OpenWith(t testing.TB, c node.Config, d node.Deps) *node.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	n, err := node.Open(ctx, c, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(t, n) })
	return n
}

// OpenLogged is Open with a log that is written to w as text.
func OpenLogged(t testing.TB, c node.Config, w io.Writer) *node.Node {
	t.Helper()
	d := Deps(t)
	d.Logger = slog.New(slog.NewTextHandler(w, nil))
	return OpenWith(t, c, d)
}

// OpenAt is Open with the given clock.
func OpenAt(t testing.TB, c node.Config, now func() time.Time) *node.Node {
	t.Helper()
	d := Deps(t)
	d.Now = now
	return OpenWith(t, c, d)
}

// Close closes a node. It may be called more than once.
func Close(t testing.TB, n *node.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// Resources writes component files to a new temporary directory. It returns a list with the path of this directory, for
// Components.Paths.
func Resources(t testing.TB, files map[string]string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{dir}
}

// Store returns the text of a component file that declares a store. The parameter metadata has the elements of the YAML
// list spec.metadata, without its brackets.
func Store(name, typ, metadata string) string {
	return "apiVersion: quorate.dev/v1alpha1\nkind: Component\nmetadata:\n  name: " + name +
		"\nspec:\n  type: " + typ + "\n  version: v1\n  metadata: [" + metadata + "]\n"
}

// TokenFile writes cluster tokens to the file at path, or to a new file if path is empty. It returns the path of the
// file.
func TokenFile(t testing.TB, path string, tokens ...trust.Token) string {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "token")
	}
	var b strings.Builder
	for _, token := range tokens {
		b.WriteString(token.Reveal() + "\n")
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Ask sends one request to the HTTP API of a node and returns the answer.
func Ask(t testing.TB, n *node.Node, method, path, body string) (code int, answer string, header http.Header) {
	t.Helper()
	return AskAt(t, n.Addresses().API[0], method, path, body, "")
}

// AskAt sends one request to the HTTP API at addr and returns the answer. If token is not empty, AskAt sends it as the
// API token.
func AskAt(t testing.TB, addr, method, path, body, token string) (code int, answer string, header http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("dapr-api-token", token)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// Save writes a value into the store named statestore with strong consistency.
func Save(t testing.TB, n *node.Node, key, value string) (code int, answer string) {
	t.Helper()
	code, answer, _ = Ask(t, n, http.MethodPost, "/v1.0/state/statestore", `[{"key":"`+key+`","value":"`+value+
		`","options":{"consistency":"strong"}}]`)
	return code, answer
}

// Status returns the status of a node.
func Status(t testing.TB, n *node.Node) schema.NodeStatus {
	t.Helper()
	s, err := n.Admin().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Members returns the members that a node knows, by node id.
func Members(t testing.TB, n *node.Node) map[string]schema.MemberStatus {
	t.Helper()
	list, err := n.Admin().Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]schema.MemberStatus{}
	for _, m := range list {
		out[m.Node] = m
	}
	return out
}

// Results returns the results of the check with the given name in c, by their field About.
func Results(c schema.Checkup, check string) map[string]schema.CheckResult {
	out := map[string]schema.CheckResult{}
	for _, r := range c.Checks {
		if r.Check == check {
			out[r.About] = r
		}
	}
	return out
}
