package cli

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// scriptedNode answers each watch of a configuration store with the next of the given texts.
type scriptedNode struct {
	t       *testing.T
	watches []string // lines of the watches; a text that begins with ! is the answer of a request that fails
}

func (n *scriptedNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/watch") || len(n.watches) == 0 {
		n.t.Errorf("%s was not expected", r.URL)
		w.WriteHeader(http.StatusTeapot)
		return
	}
	text := n.watches[0]
	n.watches = n.watches[1:]
	if failure, failed := strings.CutPrefix(text, "!"); failed {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = failure
	}
	_, _ = io.WriteString(w, text)
}

// watchOf returns a watch of the node, and what the watch prints.
func watchOf(t *testing.T, n http.Handler) (w *itemWatch, out, log *strings.Builder) {
	t.Helper()
	dir, err := os.MkdirTemp("", "q") // paths of t.TempDir are too long for a socket
	testutil.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	out, log = &strings.Builder{}, &strings.Builder{}
	w = &itemWatch{client: &itemsClient{&command.AdminClient{DataDir: dir}, "configstore"}, out: out, log: log,
		known: map[string]configurations.Change{}}
	if n == nil {
		return w, out, log
	}
	server := httptest.NewUnstartedServer(n)
	_ = server.Listener.Close()
	server.Listener, err = net.Listen("unix", filepath.Join(dir, "admin.sock"))
	testutil.Must(t, err)
	server.Start()
	t.Cleanup(server.Close)
	return w, out, log
}

const (
	noLeader = `{"code":"unavailable","msg":"no leader"}`
	denied   = `!{"code":"denied","msg":"end of the test"}`
)

func TestItemWatch_ShowsWhatWasDeletedDuringAnOutage(t *testing.T) {
	w, out, _ := watchOf(t, &scriptedNode{t: t,
		watches: []string{
			`{"items":[{"key":"a","value":"1","version":"1"},{"key":"b","value":"1","version":"2"}]}`,
			`{"items":[{"key":"b","value":"1","version":"2"},{"key":"c","value":"1","version":"3"}]}` +
				`{"items":[{"key":"a","delete":true}]}{"items":[{"key":"b","delete":true}]}`,
			`{}`,
			denied,
		},
	})
	if err := w.run(t.Context()); !fault.Is(err, fault.Denied) {
		t.Errorf("run returned %v", err)
	}
	if want := "1        a = 1\n2        b = 1\n-        a (deleted)\n3        c = 1\n-        b (deleted)\n" +
		"-        c (deleted)\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

// TestItemWatch_ShowsChangesWithoutANewVersion checks that a change is shown although the application that made it has
// kept the version. The rows of a PostgreSQL table are an example.
func TestItemWatch_ShowsChangesWithoutANewVersion(t *testing.T) {
	w, out, _ := watchOf(t, &scriptedNode{t: t, watches: []string{
		`{"items":[{"key":"a","value":"1","version":"1"}]}{"items":[{"key":"a","value":"2","version":"1"}]}` +
			`{"items":[{"key":"a","value":"2","version":"1","metadata":{"x":"y"}}]}`,
		`{"items":[{"key":"a","value":"2","version":"1","metadata":{"x":"y"}}]}`,
		denied,
	}})
	if err := w.run(t.Context()); !fault.Is(err, fault.Denied) {
		t.Errorf("run returned %v", err)
	}
	if want := "1        a = 1\n1        a = 2\n1        a = 2\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

func TestItemWatch_ReportsAnOutageOnce(t *testing.T) {
	w, _, log := watchOf(t, &scriptedNode{t: t, watches: []string{
		`{}{"error":` + noLeader + `}`, "!" + noLeader, "!" + noLeader, `{}{"error":` + noLeader + `}`, "!" + noLeader,
		denied,
	}})
	if err := w.run(t.Context()); !fault.Is(err, fault.Denied) {
		t.Errorf("run returned %v", err)
	}
	if want := strings.Repeat("connecting again: no leader\n", 2); log.String() != want {
		t.Errorf("got\n%swant\n%s", log, want)
	}
}

func TestItemWatch_FailsIfTheFirstAttemptFails(t *testing.T) {
	w, _, _ := watchOf(t, nil)
	if err := w.run(t.Context()); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "no node runs") {
		t.Errorf("without a node: %v", err)
	}
	w, _, log := watchOf(t, &scriptedNode{t: t, watches: []string{"!" + noLeader}})
	if err := w.run(t.Context()); !fault.Is(err, fault.Unavailable) || log.Len() > 0 {
		t.Errorf("without a leader: %v, %s", err, log)
	}
}
