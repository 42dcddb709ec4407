package cli_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/cmd/internal/daprd"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node"
)

// configOf runs a command and returns the configuration that it passes to Open. The node does not start.
func (c *console) configOf(t *testing.T, program string, args ...string) (node.Config, result) {
	t.Helper()
	var got node.Config
	c.open = func(_ context.Context, conf node.Config, _ *slog.Logger) (cli.Node, error) {
		got = conf
		return nil, fault.New(fault.Unavailable, "test", "it does not start")
	}
	var stdout, stderr testutil.Output
	m := c.main(&stdout, &stderr, args)
	m.Program = program
	return got, result{m.Run(t.Context()), stdout.String(), stderr.String()}
}

func TestDaprd_CommandAndProgramName(t *testing.T) {
	c := newConsole(t)
	flags := []string{"-app-id", "orders", "--dapr-http-port=4500", "-mode", "standalone", "--app-port", "8080"}
	for program, args := range map[string][]string{
		"/usr/bin/quorate": append([]string{"daprd"}, flags...), "/home/u/.dapr/bin/daprd": flags, "daprd": flags} {
		got, r := c.configOf(t, program, args...)
		if got.App.ID != "orders" || got.API.HTTP.Number != 4500 || got.App.Port != 8080 {
			t.Errorf("%s: configuration %+v\n%s%s", program, got, r.stdout, r.stderr)
		}
		if !got.Dapr {
			t.Errorf("%s: the node does not have Dapr's defaults", program)
		}
		if !strings.Contains(r.stdout, "ignored, without effect in Quorate: --mode") { // the log of daprd
			t.Errorf("%s: the ignored flag is not listed:\n%s", program, r.stdout)
		}
	}
}

func TestDaprd_PrintsItsVersion(t *testing.T) {
	c := newConsole(t)
	for args, want := range map[string]string{"--version": "v1.2.3\n", "-version": "v1.2.3\n",
		"--build-info": "Version: v1.2.3\nGit Commit: abc\nGo: go"} {
		r := c.run("daprd", args)
		if r.code != 0 || !strings.HasPrefix(r.stdout, want) || r.stderr != "" {
			t.Errorf("%s: %+v, want %q", args, r, want)
		}
	}
}

func TestDaprd_RefusesAStartWithoutAppID(t *testing.T) {
	if r := newConsole(t).run("daprd"); r.code != 2 || r.stderr != "quorate: --app-id is missing\n" {
		t.Errorf("%+v", r)
	}
}

func TestDaprd_WaitsForOutbound(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1.0/healthz/outbound" {
			t.Errorf("path %s", r.URL.Path)
		}
		if asked.Add(1) < 3 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer s.Close()
	port := s.URL[strings.LastIndexByte(s.URL, ':')+1:]
	if r := newConsole(t).run("daprd", "--wait", "--dapr-http-port", port); r.code != 0 || asked.Load() != 3 {
		t.Errorf("%+v after %d requests", r, asked.Load())
	}
}

func TestDaprd_ReadsDaprVariables(t *testing.T) {
	c := newConsole(t)
	c.env = []string{"DAPR_HOST_IP=10.1.2.3", "DAPR_HTTP_DISABLE_H2C=true", "DAPR_API_TOKEN=secret", "NAMESPACE=prod",
		"DAPR_TRUST_ANCHORS=pem"}
	got, r := c.configOf(t, "daprd", "--app-id=a")
	if got.Cluster.Advertise != "" || !got.API.DisableH2C || len(got.Security.APITokens) != 1 ||
		got.Namespace != "prod" {
		t.Errorf("configuration %+v", got)
	}
	if !strings.Contains(r.stdout, "ignored, without effect in Quorate: DAPR_TRUST_ANCHORS") {
		t.Errorf("stdout: %s", r.stdout)
	}
	got, r = c.configOf(t, "daprd", "--app-id=a", "--join=10.1.2.4", "--insecure", "--data-dir",
		filepath.Join(c.home, "d"))
	if got.Cluster.Advertise != "10.1.2.3" {
		t.Errorf("with --join the node advertises %q: %s", got.Cluster.Advertise, r.stdout)
	}
}

func TestDaprd_StartsWithoutHome(t *testing.T) {
	c := newConsole(t)
	c.env = []string{"HOME="}
	got, r := c.configOf(t, "daprd", "--app-id=a")
	want := fmt.Sprintf("%s/quorate-", c.home)
	if !strings.HasPrefix(got.Data.Dir, want) || !got.Data.Shared {
		t.Errorf("data directory %q, want it below %s*", got.Data.Dir, want)
	}
	if !strings.Contains(r.stdout, "the data directory is temporary") {
		t.Errorf("stdout: %s", r.stdout)
	}
}

func TestRun_TakesTheHomeOfTheSystem(t *testing.T) {
	c := newConsole(t)
	c.env = []string{"HOME="}
	var stdout, stderr testutil.Output
	var got node.Config
	c.open = func(_ context.Context, conf node.Config, _ *slog.Logger) (cli.Node, error) {
		got = conf
		return nil, fault.New(fault.Unavailable, "test", "it does not start")
	}
	m := c.main(&stdout, &stderr, []string{"run"})
	m.Home = func() string { return c.home }
	m.Run(t.Context())
	if want := filepath.Join(c.home, ".local/state/quorate/default/local"); got.Data.Dir != want {
		t.Errorf("data directory %q, want %q: %s", got.Data.Dir, want, stderr.String())
	}
}

// TestDocs_FlagsOfDaprRun checks the table of the migration guide with the flags that Dapr's command line gives to the
// sidecar.
func TestDocs_FlagsOfDaprRun(t *testing.T) {
	page, err := os.ReadFile(docs + "migrate-from-dapr.md")
	if err != nil {
		t.Fatal(err)
	}
	effects := map[string]daprd.Effect{}
	for _, f := range daprd.Flags() {
		effects[f.Name] = f.Effect
	}
	rows := regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| .*\\| ([a-z]+) \\|$").FindAllStringSubmatch(string(page), -1)
	if len(rows) < 30 {
		t.Errorf("%d flags", len(rows))
	}
	for _, row := range rows {
		if string(effects[row[1]]) != row[2] {
			t.Errorf("--%s is %q, the page has %q", row[1], effects[row[1]], row[2])
		}
	}
}

func TestDocs_FlagsOfDaprd(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Flag | In Quorate | |\n| --- | --- | --- |\n")
	for _, f := range daprd.Flags() {
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, f.Effect, f.Note)
	}
	section(t, docs+"dapr-compatibility.md", "flags of daprd", b.String())
	b.Reset()
	b.WriteString("| Variable | In Quorate | |\n| --- | --- | --- |\n")
	for _, v := range daprd.Variables() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Name, v.Effect, v.Note)
	}
	section(t, docs+"dapr-compatibility.md", "variables of daprd", b.String())
}
