package daprd_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/quorate/quorate/cmd/internal/daprd"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/node"
)

// parse returns the configuration of a command line of daprd, and its notes.
func parse(t *testing.T, args ...string) (node.Config, []string, error) {
	t.Helper()
	set := settings.New()
	bound := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	set.Bind(bound)
	line := daprd.New(bound)
	flags := pflag.NewFlagSet("daprd", pflag.ContinueOnError)
	line.Bind(flags)
	args = settings.DoubleDash(args, func(name string) bool { return flags.Lookup(name) != nil })
	if err := flags.Parse(args); err != nil {
		return node.Config{}, nil, settings.FlagError(flags, err)
	}
	if err := line.Finish(); err != nil {
		return node.Config{}, nil, err
	}
	none := func(string) string { return "" }
	c, err := set.Resolve(settings.Input{Flags: bound, Getenv: none, StateDir: "/state"})
	return c, line.Notes(flags.Args(), none), err
}

// sample returns a value that daprd accepts for a flag, which is not its default.
func sample(f daprd.Flag) string {
	switch f.Kind {
	case "duration":
		return "7s"
	case "seconds", "milliseconds", "number", "MB", "KB":
		return "7"
	case "port":
		return "4321"
	case "size":
		return "8Mi"
	case "origins":
		return "https://a.example"
	case "address", "addresses":
		return "127.0.0.9"
	case "path", "paths":
		return "/some/path"
	}
	switch f.Name {
	case "app-protocol":
		return "h2c"
	case "log-level":
		return "debug"
	}
	return "word"
}

func TestParse_EveryFlagWorksOrIsListed(t *testing.T) {
	plain, _, err := parse(t, "--app-id=a")
	if err != nil {
		t.Fatal(err)
	}
	same := []string{ // daprd's flags that need no other setting
		"build-info", "version", "wait", "disable-builtin-k8s-secret-store",
	}
	for _, f := range daprd.Flags() {
		for _, dash := range []string{"-", "--"} {
			arg := dash + f.Name
			switch {
			case f.Kind != "bool":
				arg += "=" + sample(f)
			case f.Name == "enable-metrics":
				arg += "=false"
			}
			c, notes, err := parse(t, "--app-id=a", arg)
			if err != nil {
				t.Errorf("%s: %v", arg, err)
				continue
			}
			listed := strings.Contains(strings.Join(notes, "\n"), "--"+f.Name)
			if listed != (f.Effect == daprd.Ignored) {
				t.Errorf("%s: effect %s, but notes are %q", arg, f.Effect, notes)
			}
			changes := !cmp.Equal(plain, c)
			if want := f.Effect != daprd.Ignored && !slices.Contains(same, f.Name); changes != want {
				t.Errorf("%s: changes the configuration = %v, want %v", arg, changes, want)
			}
		}
	}
}

func TestParse_ValuesThatDaprdTreatsAsDefault(t *testing.T) {
	plain, _, err := parse(t, "--app-id=a")
	if err != nil {
		t.Fatal(err)
	}
	for _, arg := range []string{
		"--app-health-probe-interval=0", "--app-health-probe-timeout=0", "--app-health-threshold=0", "--app-port=",
		"--app-port=0", "--app-port=-1", "--app-max-concurrency=-1", "--app-protocol=", "--app-protocol=HTTP",
		"--dapr-public-port=", "--dapr-listen-addresses=", "--resources-path=", "--config=", "--allowed-origins=",
		"--enable-mtls=false", "--max-body-size=-1", "--max-body-size=4Mi", "--read-buffer-size=0",
		"--dapr-http-max-request-size=-1", "--dapr-block-shutdown-duration=0s", "--app-binding-options-timeout=0s",
		"--unix-domain-socket=", "--placement-host-address=", "--enable-api-logging=false", "--metrics-listen-address=",
	} {
		c, notes, err := parse(t, "--app-id=a", arg)
		if err != nil || len(notes) > 0 {
			t.Errorf("%s: error %v, notes %q", arg, err, notes)
		}
		if arg == "--app-max-concurrency=-1" {
			c.App.MaxConcurrency = 0 // both are no limit
		}
		if arg == "--max-body-size=4Mi" && c.API.MaxBodySize != 4<<20 {
			t.Errorf("%s: %d bytes", arg, c.API.MaxBodySize)
		}
		if diff := cmp.Diff(plain, c); diff != "" {
			t.Errorf("%s changes the configuration: %s", arg, diff)
		}
	}
}

func TestParse_OlderAndCombinedFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		ok   func(node.Config) bool
	}{
		{"--app-ssl", func(c node.Config) bool { return c.App.Protocol == node.ProtocolHTTPS }},
		{"--app-ssl --app-protocol grpc", func(c node.Config) bool { return c.App.Protocol == node.ProtocolGRPCS }},
		{"--app-protocol h2c --app-ssl", func(c node.Config) bool { return c.App.Protocol == node.ProtocolH2C }},
		{"--app-ssl=false", func(c node.Config) bool { return c.App.Protocol == node.ProtocolHTTP }},
		{"--dapr-http-max-request-size 16", func(c node.Config) bool { return c.API.MaxBodySize == 16<<20 }},
		{"--max-body-size 1Mi --dapr-http-max-request-size 16", func(c node.Config) bool {
			return c.API.MaxBodySize == 1<<20
		}},
		{"--max-body-size 100Mi", func(c node.Config) bool { return c.API.MaxBodySize == 100<<20 }},
		{"--max-body-size 0", func(c node.Config) bool { return c.API.MaxBodySize < 0 }},
		{"--dapr-http-read-buffer-size 16", func(c node.Config) bool { return c.API.MaxHeaderSize == 16<<10 }},
		{"--components-path x", func(c node.Config) bool { return slices.Equal(c.Components.Paths, []string{"x"}) }},
		{"--components-path x --resources-path y --resources-path z", func(c node.Config) bool {
			return slices.Equal(c.Components.Paths, []string{"y", "z"})
		}},
		{"--dapr-listen-addresses [::1],127.0.0.1", func(c node.Config) bool {
			return slices.Equal(c.API.Listen, []string{"::1", "127.0.0.1"})
		}},
		{"--dapr-public-port 3501", func(c node.Config) bool { return c.API.Health.Number == 3501 }},
		{"--dapr-graceful-shutdown-seconds 0", func(c node.Config) bool { return c.Grace == time.Second }},
		{"--dapr-block-shutdown-duration 1m", func(c node.Config) bool { return c.BlockShutdown == time.Minute }},
		{"--log-level FATAL", func(c node.Config) bool { return c.Log.Level == 8 }},
		{"--join 127.0.0.1 --bind-address 127.0.0.1 --data-dir d", func(c node.Config) bool {
			return c.Data.Dir == "d" && len(c.Cluster.Join) == 1
		}},
	} {
		got, _, err := parse(t, append([]string{"-app-id", "a"}, strings.Fields(c.args)...)...)
		if err != nil || !c.ok(got) {
			t.Errorf("%s: error %v, configuration %+v", c.args, err, got)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

func TestParse_RefusesWhatDaprdRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--dapr-http-port 3500":                       "--app-id is missing",
		"--app-id a --dapr-http-port x":               `--dapr-http-port "x" is refused (give a port`,
		"--app-id a --app-protocol soap":              `--app-protocol "soap" is refused (give one of http`,
		"--app-id a --max-body-size many":             `--max-body-size "many" is refused`,
		"--app-id a --dapr-http-max-request-size few": `--dapr-http-max-request-size "few" is refused (give a number)`,
		"--app-id a --dapr-http-prot 1":               "did you mean --dapr-http-port?",
	} {
		_, _, err := parse(t, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestNotes_OneLineForFlagsVariablesAndArguments(t *testing.T) {
	bound := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	settings.New().Bind(bound)
	line := daprd.New(bound)
	flags := pflag.NewFlagSet("daprd", pflag.ContinueOnError)
	line.Bind(flags)
	args := []string{"--mode", "standalone", "--enable-profiling", "--app-id=a", "--mode=x", "rest"}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"DAPR_TRUST_ANCHORS": "pem", "NAMESPACE": "prod"}
	got := line.Notes(flags.Args(), func(name string) string { return env[name] })
	want := []string{`ignored, without effect in Quorate: --enable-profiling, --mode, DAPR_TRUST_ANCHORS, "rest"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
