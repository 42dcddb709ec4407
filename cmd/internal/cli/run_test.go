package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func TestRun_PrintsAddressesAndEndsOnASignal(t *testing.T) {
	c := newConsole(t)
	s := c.start("--app-id", "orders")
	if code := c.stop(s); code != 0 {
		t.Errorf("exit code %d: %s", code, s.stderr)
	}
	for _, want := range []string{`running for application "orders"`, "http://" + s.api(),
		filepath.Join(c.home, ".local/state/quorate/default/local/admin.sock"), "http://127.0.0.1:9191/metrics"} {
		if !strings.Contains(s.stdout.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, s.stdout)
		}
	}
	for _, want := range []string{`reason="signal terminated"`, "msg=stopped"} {
		if !strings.Contains(s.stderr.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, s.stderr)
		}
	}
}

func TestRun_ReportsAReplacedMetricsPort(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	c.stop(s)
	if !strings.Contains(s.stderr.String(), "the default port is in use, another one was chosen") {
		t.Errorf("stderr:\n%s", s.stderr)
	}
	s = c.start("--metrics-port", "9191")
	c.stop(s)
	if strings.Contains(s.stderr.String(), "taken") {
		t.Errorf("stderr:\n%s", s.stderr)
	}
}

func TestRun_PrintsOnlyJSONWithJSONLogs(t *testing.T) {
	c := newConsole(t)
	s := c.start("--log-as-json", "--mode", "standalone")
	c.stop(s)
	if s.stdout.String() != "" {
		t.Errorf("stdout: %s", s.stdout)
	}
	warned := false
	for line := range strings.Lines(s.stderr.String()) {
		var record struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		warned = warned || record.Level == "WARN" && strings.Contains(record.Msg, "--mode")
	}
	if !warned {
		t.Errorf("the flag without a meaning is not named in:\n%s", s.stderr)
	}
}

func TestRun_EndsOnShutdownThroughTheAPI(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	post(t, "http://"+s.api()+"/v1.0/shutdown", "")
	if code := s.wait(t); code != 0 || !strings.Contains(s.stderr.String(), "requested through the API") {
		t.Errorf("exit code %d:\n%s", code, s.stderr)
	}
}

func TestRun_FailsWhenTheNodeFails(t *testing.T) {
	c := newConsole(t)
	var n *memoryNode
	c.open = func(ctx context.Context, config node.Config, log *slog.Logger) (cli.Node, error) {
		var err error
		n, err = openMemoryNode(ctx, config, log)
		return n, err
	}
	s := c.start()
	n.stopped <- fault.New(fault.Corrupt, "kv.Apply", "entry 7 cannot be read")
	if code := s.wait(t); code != 1 || !strings.Contains(s.stderr.String(), "quorate: entry 7 cannot be read") {
		t.Errorf("exit code %d:\n%s", code, s.stderr)
	}
}

// stuckNode does not close before release.
type stuckNode struct {
	*memoryNode
	release chan struct{}
}

func (n *stuckNode) Close(ctx context.Context) error {
	<-n.release
	return n.memoryNode.Close(ctx)
}

func TestRun_SecondSignalEndsImmediately(t *testing.T) {
	c := newConsole(t)
	release := make(chan struct{})
	c.open = func(ctx context.Context, config node.Config, log *slog.Logger) (cli.Node, error) {
		n, err := openMemoryNode(ctx, config, log)
		return &stuckNode{n, release}, err
	}
	s := c.start()
	c.signals <- syscall.SIGINT
	eventually(t, func() bool { return strings.Contains(s.stderr.String(), "msg=stopping") })
	c.signals <- syscall.SIGINT
	if code := <-c.exited; code != 1 {
		t.Errorf("ended with %d", code)
	}
	close(release)
	s.wait(t)
}

func TestRun_SignalInterruptsTheStart(t *testing.T) {
	c := newConsole(t)
	c.open = func(ctx context.Context, _ node.Config, _ *slog.Logger) (cli.Node, error) {
		c.signals <- syscall.SIGTERM
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if r := c.run("run"); r.code != 0 || !strings.Contains(r.stderr, "the start was interrupted") {
		t.Errorf("%+v", r)
	}
}

func TestRun_PrintsARefusedStartOnOneLineWithAHint(t *testing.T) {
	c := newConsole(t)
	taken := c.start()
	defer c.stop(taken)
	_, port, _ := strings.Cut(taken.api(), ":")
	failing := newConsole(t)
	failing.open = func(context.Context, node.Config, *slog.Logger) (cli.Node, error) {
		return nil, &fault.Error{Code: fault.Unavailable, Op: "node.Open",
			Msg: "another process holds the data directory", Hint: "stop it", Err: errors.New("locked")}
	}
	for want, r := range map[string]result{
		": stop it, or choose a port with --http-port; 0 picks a free one": c.run("run", "--http-port", port,
			"--data-dir", "other"),
		"quorate: another process holds the data directory: locked (stop it)\n": failing.run(
			"run"),
	} {
		if r.code != 1 || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%+v\nwant %s", r, want)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for want, args := range map[string][]string{
		`quorate has no command "rum"; did you mean run? (quorate --help lists them)`: {"rum"},
		`quorate state has no command "pet"; did you mean`:                            {"state", "pet"},
		`quorate backup has no command "create"; did you mean save?`:                  {"backup", "create"},
		`quorate backup has no command "take"; did you mean save?`:                    {"backup", "take", "--to", "x"},
		`quorate has no command "backups"; did you mean backup?`:                      {"backups", "--to", "x"},
		`unknown flag: --to`: {"backup", "--to", "save"},
		`"orders" is not a flag (put a command to run beside the node after --)`: {"run", "orders"},
		`unknown flag: --app-di (did you mean --app-id?)`:                        {"run", "--app-di", "x"},
		`--http-port "x" is refused (give a port from 0 to 65535`: {"run", "--http-port",
			"x"},
		`--app-id "a.b" is refused (use letters`: {"run", "--app-id",
			"a.b"},
		`accepts 2 arg(s), received 1 (usage: quorate state get store key [flags])`: {"state", "get", "x"},
		`the value is not JSON (save text with --text, bytes with --binary)`: {"state", "set", "s",
			"k", "{"},
		`--ttl 1.5s is refused (give whole seconds`: {"state", "set", "s",
			"k", "1", "--ttl", "1500ms"},
		`--limit -1 is refused`: {"state", "list", "s",
			"--limit", "-1"},
		`unknown command "x" for "quorate version"`:     {"version", "x"},
		`--output "xml" is refused (give text or json)`: {"version", "-o", "xml"},
		`"http://\x7f" is not the address of an API`: {"state", "get",
			"s", "k", "--address", "\x7f"},
		`--text and --binary exclude each other`: {"state", "set", "s",
			"k", "1", "--text", "--binary"},
		`--etag and --create-only exclude each other`: {"state", "set", "s",
			"k", "1", "--etag", "1", "--create-only"},
		`the settings file cannot be read: open /nonexistent.yaml: no such file or directory`: {"run",
			"--config-file", "/nonexistent.yaml"},
	} {
		r := newConsole(t).run(args...)
		if r.code != 2 || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 || r.stdout != "" {
			t.Errorf("%q: %+v\nwant %s", args, r, want)
		}
	}
}

func TestUsageErrors_OneLinePerProblem(t *testing.T) {
	r := newConsole(t).run("run", "--app-id", "a b", "--partitions", "999")
	if r.code != 2 || strings.Count(r.stderr, "quorate: ") != 2 || strings.Count(r.stderr, "\n") != 2 {
		t.Errorf("%+v", r)
	}
}

func TestDefaultDataDirectory(t *testing.T) {
	c := newConsole(t)
	for want, env := range map[string][]string{
		filepath.Join(c.home, ".local/state/quorate/default/local"): nil,
		"/xdg/quorate/default/local":                                {"XDG_STATE_HOME=/xdg"},
		filepath.Join(c.home, ".local/state/quorate/blue/local"): {"XDG_STATE_HOME=relative",
			"QUORATE_CLUSTER=blue"},
		"/elsewhere": {"QUORATE_DATA_DIR=/elsewhere"},
	} {
		c.env = env
		if r := c.run("config", "print"); !strings.Contains(r.stdout, " "+want+" ") {
			t.Errorf("%v: %s is missing in:\n%s", env, want, r.stdout)
		}
	}
	c.env = []string{"HOME="}
	if r := c.run("run"); r.code != 2 || !strings.Contains(r.stderr, "neither HOME nor XDG_STATE_HOME") {
		t.Errorf("%+v", r)
	}
}
