package settings_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// world is the input of a configuration in a test.
type world struct {
	args []string
	env  map[string]string
	file string // content of quorate.yaml, given by --config-file; empty = none

	tokens string // content of every other file
}

func resolve(t *testing.T, w world) (*settings.Set, node.Config, error) {
	t.Helper()
	set := settings.New()
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	set.Bind(flags)
	args := w.args
	if w.file != "" {
		args = append(args, "--config-file", "quorate.yaml")
	}
	known := func(name string) bool { return flags.Lookup(name) != nil }
	if err := flags.Parse(settings.DoubleDash(args, known)); err != nil {
		return set, node.Config{}, settings.FlagError(flags, err)
	}
	c, err := set.Resolve(settings.Input{
		Flags:  flags,
		Getenv: func(name string) string { return w.env[name] },
		ReadFile: func(name string) ([]byte, error) {
			switch {
			case name == "quorate.yaml" && w.file != "":
				return []byte(w.file), nil
			case name != "quorate.yaml" && w.tokens != "":
				return []byte(w.tokens), nil
			}
			return nil, fs.ErrNotExist
		},
		StateDir: "/state",
		Version:  "v1",
	})
	return set, c, err
}

// sourceOf returns the source of the named setting.
func sourceOf(s *settings.Set, name string) string {
	for _, st := range s.All() {
		if st.Name == name {
			return st.Source().String() + " " + st.Value()
		}
	}
	return ""
}

func TestResolve_PrecedenceOfSources(t *testing.T) {
	const file = "# node one\nhttpPort: 1003\n"
	env := map[string]string{"QUORATE_HTTP_PORT": "1002"}
	flag := []string{"--http-port", "1001"}
	for want, w := range map[string]world{
		"flag --http-port 1001":      {args: flag, env: env, file: file},
		"env QUORATE_HTTP_PORT 1002": {env: env, file: file},
		"file quorate.yaml:2 1003":   {file: file},
		"default 3500":               {},
	} {
		set, c, err := resolve(t, w)
		if err != nil {
			t.Fatal(err)
		}
		if got := sourceOf(set, "http-port"); got != want {
			t.Errorf("http-port = %q, want %q", got, want)
		}
		if asked := want != "default 3500"; c.API.HTTP.Given != asked {
			t.Errorf("%s: given = %v", want, c.API.HTTP.Given)
		}
	}
}

func TestResolve_EverySourceReachesEveryField(t *testing.T) {
	want := node.Config{
		Version: "v1", Namespace: "prod",
		App: node.App{ID: "orders", Port: 8080, Protocol: node.ProtocolH2C, Address: "127.0.0.2", MaxConcurrency: 7,
			Health: node.AppHealth{
				Enabled: true, Path: "/up", Interval: 9 * time.Second, Timeout: 250 * time.Millisecond, Threshold: 4},
			OptionsTimeout: 6 * time.Second, InitOff: []string{"config", "subscribe"}},
		API: node.API{Listen: []string{"127.0.0.1", "::1"}, HTTP: node.Port{Number: 4500, Given: true},
			GRPC: node.Port{Number: 4501, Given: true}, GRPCOff: true,
			SocketDir: "/sock", Health: node.Port{Number: 3501, Given: true}, HealthListen: "127.0.0.6",
			MaxHeaderSize: 16 << 10, MaxBodySize: 8 << 20, RequestTimeout: 3 * time.Second,
			AllowedOrigins: []string{"https://a.example", "https://b.example"},
			AnyEndpoint:    true, KeepActors: true, LogCalls: true},
		Metrics: node.Metrics{Off: true, Listen: "127.0.0.3", Port: node.Port{Number: 0, Given: true}},
		Console: node.Console{On: true, Port: node.Port{Number: 0, Given: true}, Write: true},
		Components: node.Components{Paths: []string{"a", "b"}, ConfigFiles: []string{"c.yaml"}, Sockets: "/sockets",
			Reload: 7 * time.Second},
		Data: node.Data{Dir: "/data", StateDir: "/state", LogStore: node.LogStoreWAL, MinFree: 1 << 30},
		Cluster: node.Cluster{Name: "blue", NodeID: "n1", Role: node.RoleSidecar, Join: []string{"x", "y:1"},
			BootstrapExpect: 5, Voters: 5, Partitions: 4,
			Bind: "127.0.0.4", Advertise: "127.0.0.5", Gossip: node.Port{Number: 1, Given: true},
			Peer: node.Port{Number: 2, Given: true}},
		Security: node.Security{APITokens: []node.Secret{"one", "two"}, APITokenFile: "t1", FileTokens: 2,
			ClusterTokenFile: "t2", ClusterCertFile: "c", ClusterKeyFile: "k", ClusterCAFile: "ca", Insecure: true},
		Log:   node.Log{Level: -4, JSON: true},
		Grace: 8 * time.Second, BlockShutdown: time.Minute, MemoryLimit: 512 << 20, Profiles: true,
	}
	args := []string{"--namespace=prod", "--app-id=orders", "--app-port=8080", "--app-protocol=h2c",
		"--app-channel-address=127.0.0.2", "--app-max-concurrency=7",
		"--enable-app-health-check", "--app-health-check-path=/up", "--app-health-probe-interval=9",
		"--app-health-probe-timeout=250", "--app-health-threshold=4",
		"--listen-address=127.0.0.1,[::1]", "--http-port=4500", "--grpc-port=4501", "--enable-grpc=false",
		"--disable-init-endpoints=config,subscribe",
		"--app-binding-options-timeout=6", "--unix-domain-socket=/sock", "--health-port=3501",
		"--health-listen-address=127.0.0.6", "--read-buffer-size=16Ki", "--block-shutdown-duration=1m",
		"--allow-any-http-endpoint", "--rebalance-actors=false", "--enable-api-logging", "--reload-interval=7",
		"--max-body-size=8Mi", "--request-timeout=3s",
		"--allowed-origins=https://a.example", "--allowed-origins=https://b.example", "--enable-metrics=false",
		"--metrics-listen-address=127.0.0.3", "--metrics-port=0",
		"--pprof", "--console", "--console-port=0", "--console-write",
		"--components-sockets-folder=/sockets",
		"--resources-path=a", "--resources-path=b", "--config=c.yaml", "--data-dir=/data", "--log-store=wal",
		"--min-free-disk=1Gi", "--memory-limit=512Mi", "--cluster=blue", "--node-id=n1", "--role=sidecar",
		"--join=x,y:1", "--bootstrap-expect=5", "--voters=5", "--partitions=4", "--bind-address=127.0.0.4",
		"--advertise-address=127.0.0.5", "--gossip-port=1", "--peer-port=2",
		"--api-token-file=t1", "--cluster-token-file=t2", "--cluster-cert-file=c", "--cluster-key-file=k",
		"--cluster-ca-file=ca", "--insecure", "--log-level=debug", "--log-as-json", "--graceful-shutdown-seconds=8"}
	env, file := map[string]string{}, ""
	for _, a := range args {
		name, value, ok := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		if !ok {
			value = "true"
		}
		variable := "QUORATE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if env[variable] != "" {
			value = env[variable] + "," + value
		}
		env[variable] = value
	}
	set := settings.New()
	for _, st := range set.All() {
		if v, ok := env[st.Env[0]]; ok {
			file += st.Key + ": \"" + v + "\"\n"
		}
	}
	for name, w := range map[string]world{"flags": {args: args}, "environment": {env: env}, "file": {file: file}} {
		w.tokens = "# rotated monthly\none\n\n two \n"
		set, got, err := resolve(t, w)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for _, st := range set.All() {
			if st.Source().Kind == "default" && st.Flag() != "" && st.Name != "config-file" {
				t.Errorf("%s: this test does not set %s", name, st.Name)
			}
		}
	}
}

func TestResolve_AcceptsDaprFlags(t *testing.T) {
	set, c, err := resolve(t, world{args: []string{"-app-id", "orders", "-dapr-http-port=4500", "--components-path",
		"x", "--dapr-listen-addresses", "127.0.0.2",
		"--dapr-graceful-shutdown-seconds", "7", "--placement-host-address", "h:50005", "-mode", "standalone",
		"--enable-profiling", "--scheduler-host-address=", "--mode", "x"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.App.ID != "orders" || c.API.HTTP.Number != 4500 || c.Components.Paths[0] != "x" ||
		c.API.Listen[0] != "127.0.0.2" || c.Grace != 7*time.Second {
		t.Errorf("config = %+v", c)
	}
	want := []string{"ignored flags, which have no effect in Quorate: --enable-profiling, --mode, " +
		"--placement-host-address, --scheduler-host-address"}
	if diff := cmp.Diff(want, set.Warnings()); diff != "" {
		t.Error(diff)
	}
}

func TestResolve_AcceptsDaprVariables(t *testing.T) {
	set, c, err := resolve(t, world{env: map[string]string{"NAMESPACE": "prod", "DAPR_API_TOKEN": " one,two\n",
		"QUORATE_APP_ID": ""}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Namespace != "prod" || len(c.Security.APITokens) != 1 || string(c.Security.APITokens[0]) != "one,two" ||
		c.App.ID != "default" {
		t.Errorf("config = %+v", c)
	}
	if got := sourceOf(set, "api-token"); got != "env DAPR_API_TOKEN (redacted)" {
		t.Errorf("api-token: %q", got)
	}
	if _, c, _ = resolve(t, world{env: map[string]string{"NAMESPACE": "prod",
		"QUORATE_NAMESPACE": "ours"}}); c.Namespace != "ours" {
		t.Errorf("namespace = %q", c.Namespace)
	}
}

func TestResolve_WrongValuesNameTheirSourceAndAHint(t *testing.T) {
	for want, w := range map[string]world{
		`--http-port "abc" is refused (give a port from 0 to 65535; 0 picks a free one)`: {
			args: []string{"--http-port", "abc"}},
		`QUORATE_HTTP_PORT "65536" is refused (give a port from 0`: {
			env: map[string]string{"QUORATE_HTTP_PORT": "65536"}},
		`quorate.yaml:2: httpPort "x" is refused (give a port`: {
			file: "appId: a\nhttpPort: x\n"},
		`--app-id "" is refused (give a value, or omit`: {
			args: []string{"--app-id", ""}},
		`--role "boss" is refused (give one of server, sidecar)`: {
			args: []string{"--role", "boss"}},
		`--partitions "0" is refused (give an integer of at least 1)`: {
			args: []string{"--partitions", "0"}},
		`--join "a,,b" is refused (an element is empty`: {
			args: []string{"--join", "a,,b"}},
		`--insecure "maybe" is refused (give true or false)`: {
			args: []string{"--insecure=maybe"}},
		`--request-timeout "0s" is refused (give a duration above zero`: {
			args: []string{"--request-timeout", "0s"}},
		`--request-timeout "99999999999999" is refused`: {
			args: []string{"--request-timeout", "99999999999999"}},
		`--max-body-size "4Zi" is refused (give a size`: {
			args: []string{"--max-body-size", "4Zi"}},
		`--log-level "loud" is refused (give one of debug, info, warn, error)`: {
			args: []string{"--log-level", "loud"}},
		`unknown flag: --htpt-port (did you mean --http-port?)`: {
			args: []string{"--htpt-port", "1"}},
		`flag needs an argument: --http-port`: {
			args: []string{"--http-port"}},
		`quorate.yaml:1: there is no setting "http-port" (did you mean httpPort?)`: {
			file: "http-port: 1\n"},
		`quorate.yaml:1: there is no setting "zzz" (quorate run --help lists`: {file: "zzz: 1\n"},
		`quorate.yaml:1: there is no setting "configFile"`: {
			file: "configFile: x\n"},
		`quorate.yaml:1: there is no setting "apiToken"`: {
			file: "apiToken: x\n"},
		`quorate.yaml:3: "appId" is set twice, first in line 1 (keep one)`: {
			file: "appId: a\nhttpPort: 1\nappId: b\n"},
		`quorate.yaml:1: appId has no usable value (give a value`: {file: "appId:\n"},
		`quorate.yaml:1: appId has no usable value`: {
			file: "appId: [a, b]\n"},
		`quorate.yaml:2: join has no usable value`: {file: "join:\n" +
			"- {a: b}\n"},
		`quorate.yaml:1: a list of settings is expected here (write lines as`: {
			file: "- a\n"},
		`quorate.yaml is not YAML: yaml: `: {file: "a: [\n"},
		`quorate.yaml:2: a settings file has one document; this is a second one (keep one document)`: {
			file: "appId: a\n---\nappId: b\n"},
		`quorate.yaml:1: apps is a list (write`:                      {file: "apps: x\n"},
		`quorate.yaml:1: a list of settings is expected here (write`: {file: "backup: daily\n"},
		`quorate.yaml:2: there is no setting "evry" (did you mean every?)`: {file: "backup:\n" +
			"  evry: 1h\n"},
		`quorate.yaml:2: every "daily" is refused`: {file: "backup:\n  every: daily\n"},
		`quorate.yaml:2: an application has no id`: {file: "apps:\n" +
			"- port: 1\n"},
		`quorate.yaml:2: there is no setting "prot" (did you mean port?)`: {file: "apps:\n" +
			"- {id: a, prot: 1}\n"},
		`the file of --api-token-file cannot be read: file does not exist`: {
			args: []string{"--api-token-file", "t"}},
		`the file of --api-token-file holds no token: t (put one token`: {
			args: []string{"--api-token-file", "t"}, tokens: "# none\n"},
		`the settings file cannot be read: file does not exist`: {
			args: []string{"--config-file", "quorate.yaml"}},
	} {
		_, _, err := resolve(t, w)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(first(err)), want) {
			t.Errorf("error %v\n     want %s", err, want)
		}
	}
}

// first returns the first of the errors that err joins.
func first(err error) error {
	e, _ := errors.AsType[*fault.Error](err)
	return e
}

func TestResolve_ReportsEveryProblemOfAFile(t *testing.T) {
	_, _, err := resolve(t, world{args: []string{"--http-port", "1"}, file: "httpPort: x\nfoo: 1\nrole: y\n"})
	for _, want := range []string{"quorate.yaml:1", "quorate.yaml:2", "quorate.yaml:3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported in: %v", want, err)
		}
	}
}

func TestResolve_ByteOrderMarks(t *testing.T) {
	_, c, err := resolve(t, world{file: "\ufeff%YAML 1.2\n---\nhttpPort: 7\n", tokens: "\ufefffirst\nsecond\n",
		args: []string{"--api-token-file", "tokens"}})
	if err != nil || c.API.HTTP.Number != 7 || len(c.Security.APITokens) != 2 || c.Security.APITokens[0] != "first" {
		t.Errorf("port %d, tokens %q, %v", c.API.HTTP.Number, c.Security.APITokens, err)
	}
}

func TestResolve_ListsInAFile(t *testing.T) {
	for name, file := range map[string]string{"sequence": "join:\n- a\n- b\n", "words": "join: a, b\n",
		"flow": "join: [a, b]\n"} {
		_, c, err := resolve(t, world{file: file})
		if diff := cmp.Diff([]string{"a", "b"}, c.Cluster.Join); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	_, c, err := resolve(t, world{args: []string{"--join", "x"}, file: "join: [a, b]\n"})
	if diff := cmp.Diff([]string{"x"}, c.Cluster.Join); err != nil || diff != "" {
		t.Errorf("a flag adds to the file: %v %s", err, diff)
	}
}

func TestResolve_ApplicationsInAFile(t *testing.T) {
	_, c, err := resolve(t, world{file: "apps:\n- id: a\n  port: 80\n  protocol: grpc\n  httpPort: 3600\n" +
		"  token: hush\n- id: b\n"})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Apps) != 2 || c.Apps[1].ID != "b" || c.Apps[0].Port != 80 || c.Apps[0].Protocol != "grpc" ||
		c.Apps[0].HTTPPort.Number != 3600 || c.Apps[0].Token != "hush" {
		t.Errorf("apps = %+v", c.Apps)
	}
}

func TestResolve_BackupsInAFile(t *testing.T) {
	_, c, err := resolve(t, world{file: "backup:\n  command: [sh, -c, 'put a,b']\n  every: 6h\n  keep: 3\n" +
		"  verify: false\n  keyFile: /k\n"})
	want := node.Backup{Command: []string{"sh", "-c", "put a,b"}, Every: 6 * time.Hour, Keep: 3, NoVerify: true,
		KeyFile: "/k"}
	if diff := cmp.Diff(want, c.Backup); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	_, c, err = resolve(t, world{file: "backup:\n  directory: /b\n"})
	want = node.Backup{Directory: "/b", Every: 24 * time.Hour, Keep: 7}
	if diff := cmp.Diff(want, c.Backup); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestResolve_EmptyFileSetsNothing(t *testing.T) {
	for _, file := range []string{"# nothing\n", "---\n", "\n"} {
		if _, _, err := resolve(t, world{file: file}); err != nil {
			t.Errorf("%q: %v", file, err)
		}
	}
}

func TestDefaults_ShownAreUsed(t *testing.T) {
	set, _, err := resolve(t, world{})
	if err != nil {
		t.Fatal(err)
	}
	// The defaults of these settings depend on other settings, on the data or on the machine.
	special := map[string]bool{"data-dir": true, "bind-address": true, "log-store": true, "partitions": true,
		"memory-limit": true}
	for _, st := range set.All() {
		if !special[st.Name] && st.Default != st.Value() {
			t.Errorf("%s: help says %q, the value is %q", st.Name, st.Default, st.Value())
		}
	}
}

func TestDoubleDash(t *testing.T) {
	known := func(name string) bool { return name == "app-id" || name == "o" }
	in := []string{"-app-id", "x", "-app-id=y", "-o", "json", "-ojson", "-", "--app-id", "-zzz", "--", "-app-id"}
	want := []string{"--app-id", "x", "--app-id=y", "-o", "json", "-ojson", "-", "--app-id", "-zzz", "--", "-app-id"}
	if diff := cmp.Diff(want, settings.DoubleDash(in, known)); diff != "" {
		t.Error(diff)
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "4Mi": 4 << 20, "4MiB": 4 << 20, "500k": 500_000, "2KB": 2000,
		" 1Gi ": 1 << 30, "3T": 3e12, "1B": 1} {
		if n, err := settings.ParseSize(text); err != nil || n != want {
			t.Errorf("ParseSize(%q) = %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "4Zi", "Mi", "1.5Mi", "9999999Ti", "4 Mi x", "B"} {
		if n, err := settings.ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d", text, n)
		}
	}
	for n, want := range map[int64]string{0: "0", 1: "1", 1023: "1023", 1024: "1Ki", 4 << 20: "4Mi",
		5e9: "5000000000", 3 << 40: "3Ti"} {
		if got := settings.FormatSize(n); got != want {
			t.Errorf("FormatSize(%d) = %q", n, got)
		}
	}
}

func FuzzSize_RoundTrip(f *testing.F) {
	f.Add("4Mi")
	f.Add("1k")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := settings.ParseSize(text)
		if err != nil {
			return
		}
		if again, err := settings.ParseSize(settings.FormatSize(n)); err != nil || again != n {
			t.Fatalf("%q is %d, written %q, read %d, %v", text, n, settings.FormatSize(n), again, err)
		}
	})
}

func FuzzResolve_File(f *testing.F) {
	for _, s := range []string{"appId: a", "apps: [{id: a}]", "join: [a, b]", "a: &x [*x]", "? [a]\n: b",
		"<<: {appId: a}", "!!binary x: y", "{", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, file string) {
		_, _, err := resolve(t, world{file: file + "\n"})
		if err != nil && !strings.Contains(err.Error(), "quorate.yaml") {
			t.Fatalf("%q: %v", file, err)
		}
	})
}
