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

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// scriptedNode answers the requests for a configuration store with the next of the given texts.
type scriptedNode struct {
	t       *testing.T
	watches []string // lines of the watches; a text that begins with ! is the answer of a request that fails
	items   []string // items that exist
}

func (n *scriptedNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	queue := &n.items
	if strings.HasSuffix(r.URL.Path, "/watch") {
		queue = &n.watches
	}
	if len(*queue) == 0 {
		n.t.Errorf("%s was not expected", r.URL)
		w.WriteHeader(http.StatusTeapot)
		return
	}
	text := (*queue)[0]
	*queue = (*queue)[1:]
	if failure, failed := strings.CutPrefix(text, "!"); failed {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = failure
	}
	_, _ = io.WriteString(w, text)
}

// watchOf returns a watch of the node, and what the watch prints.
func watchOf(t *testing.T, n *scriptedNode) (w *itemWatch, out, log *strings.Builder) {
	t.Helper()
	dir, err := os.MkdirTemp("", "q") // paths of t.TempDir are too long for a socket
	testutil.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	out, log = &strings.Builder{}, &strings.Builder{}
	w = &itemWatch{client: &itemsClient{&command.AdminClient{DataDir: dir}, "configstore"}, known: map[string]string{},
		out: out, log: log}
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
			`{}{"items":[{"key":"a","value":"1","version":"1"},{"key":"b","value":"1","version":"2"}]}`,
			`{}{"items":[{"key":"b","value":"1","version":"2"},{"key":"c","value":"1","version":"3"}]}` +
				`{"items":[{"key":"a","delete":true}]}`,
			denied,
		},
		items: []string{`[{"key":"b","value":"1","version":"2"},{"key":"c","value":"1","version":"3"}]`},
	})
	if err := w.run(t.Context()); !fault.Is(err, fault.Denied) {
		t.Errorf("run returned %v", err)
	}
	if want := "1        a = 1\n2        b = 1\n-        a (deleted)\n3        c = 1\n"; out.String() != want {
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
