package node_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

// changed returns a valid default configuration, modified by change.
func changed(change func(*node.Config)) node.Config {
	c := node.Config{Data: node.Data{StateDir: "/state"}}
	change(&c)
	return c.WithDefaults()
}

// problemsOf returns the single problems that Validate has joined.
func problemsOf(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // the join itself is wanted
		return joined.Unwrap()
	}
	return nil
}

func TestConfig_ZeroValueIsValid(t *testing.T) {
	c := changed(func(*node.Config) {})
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if c.App.ID != "default" || c.API.HTTP.Number != 3500 || c.API.Listen[0] != "127.0.0.1" ||
		c.Data.Dir != "/state/quorate/default/local" || !c.Data.Shared {
		t.Errorf("defaults: %+v", c)
	}
}

func TestConfigWithDefaults_IsIdempotentAndCopies(t *testing.T) {
	in := node.Config{Data: node.Data{StateDir: "/state"}, Apps: []node.AppEntry{{}}}
	once := in.WithDefaults()
	if diff := cmp.Diff(once, once.WithDefaults()); diff != "" {
		t.Error(diff)
	}
	if in.Apps[0].Address != "" {
		t.Error("WithDefaults wrote to the caller's applications")
	}
}

func TestConfigWithDefaults_ClusterPorts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*node.Config)
		bind   string
		fixed  bool
	}{
		"alone":        {func(*node.Config) {}, "127.0.0.1", false},
		"bind address": {func(c *node.Config) { c.Cluster.Bind = "127.0.0.1" }, "127.0.0.1", true},
		"token":        {func(c *node.Config) { c.Security.ClusterTokenFile = "t" }, "127.0.0.1", true},
		"join":         {func(c *node.Config) { c.Cluster.Join = []string{"a", "localhost"} }, "0.0.0.0", true},
		"join loopback": {func(c *node.Config) {
			c.Cluster.Join = []string{"localhost:1", "127.0.0.2"}
		}, "127.0.0.1", true},
		"join loopback6": {func(c *node.Config) { c.Cluster.Join = []string{"[::1]:1"} }, "::1", true},
		"join both": {func(c *node.Config) {
			c.Cluster.Join = []string{"[::1]:1", "localhost"}
		}, "127.0.0.1", true},
		"advertised": {func(c *node.Config) {
			c.Cluster.Join, c.Cluster.Advertise = []string{"localhost"}, "10.0.0.1"
		}, "0.0.0.0", true},
	} {
		got := changed(c.change).Cluster
		if got.Bind != c.bind || got.Gossip != (node.Port{Number: 7946, Given: c.fixed}) ||
			got.Peer != (node.Port{Number: 7947, Given: c.fixed}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestConfigWithDefaults_DataDirectory(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*node.Config)
		dir    string
		shared bool
	}{
		"alone":         {func(*node.Config) {}, "/state/quorate/default/local", true},
		"other cluster": {func(c *node.Config) { c.Cluster.Name = "blue" }, "/state/quorate/blue/local", true},
		"an id alone":   {func(c *node.Config) { c.Cluster.NodeID = "n1" }, "/state/quorate/default/local", true},
		"with join": {func(c *node.Config) {
			c.Cluster.Join, c.Cluster.NodeID = []string{"a"}, "n1"
		}, "/state/quorate/default/n1", false},
		"join without id": {func(c *node.Config) { c.Cluster.Join = []string{"a"} }, "", false},
		"given":           {func(c *node.Config) { c.Data.Dir = "/d" }, "/d", false},
		"no home":         {func(c *node.Config) { c.Data.StateDir = "" }, "", false},
	} {
		got := changed(c.change).Data
		if got.Dir != c.dir || got.Shared != c.shared {
			t.Errorf("%s: %q shared %v", name, got.Dir, got.Shared)
		}
	}
}

func TestConfigValidate_Accepts(t *testing.T) {
	for name, change := range map[string]func(*node.Config){
		"app id":             func(c *node.Config) { c.App.ID = "_Order-service_2" },
		"longest app id":     func(c *node.Config) { c.App.ID = strings.Repeat("a", 128) },
		"cluster with a dot": func(c *node.Config) { c.Cluster.Name = "eu.blue" },
		"largest body":       func(c *node.Config) { c.API.MaxBodySize = node.MaxEntry },
		"most partitions":    func(c *node.Config) { c.Cluster.Partitions = node.MaxPartitions },
		"free ports":         func(c *node.Config) { c.API.HTTP.Given, c.Metrics.Port.Given = true, true },
		"IPv6 loopback":      func(c *node.Config) { c.API.Listen = []string{"::1", "localhost"} },
		"exposed and insecure": func(c *node.Config) {
			c.API.Listen, c.Security.Insecure = []string{"0.0.0.0"}, true
		},
		"exposed with a token": func(c *node.Config) {
			c.API.Listen, c.Security.APITokens = []string{"0.0.0.0"}, []node.Secret{"t"}
		},
		"every origin": func(c *node.Config) { c.API.AllowedOrigins = []string{"*"} },
		"one origin": func(c *node.Config) {
			c.API.AllowedOrigins = []string{"https://app.example.com:8443"}
		},
		"a cluster of one that others may join": func(c *node.Config) {
			c.Cluster.BootstrapExpect, c.Cluster.Voters = 1, 3
		},
		"two voters": func(c *node.Config) { c.Cluster.Voters = 2 },
		"wal":        func(c *node.Config) { c.Data.LogStore = node.LogStoreWAL },
		"metrics off on one port": func(c *node.Config) {
			c.Metrics.Off, c.Metrics.Port = true, node.Port{Number: 3500, Given: true}
		},
		"a cluster on loopback": func(c *node.Config) {
			c.Data.LogStore = node.LogStoreWAL
			c.Cluster.Join, c.Cluster.NodeID, c.Cluster.Bind = []string{"127.0.0.1:7946"}, "n1", "127.0.0.1"
			c.Cluster.BootstrapExpect, c.Cluster.Voters = 3, 5
		},
		"a cluster beyond loopback that is insecure on purpose": func(c *node.Config) {
			c.Cluster.Join, c.Cluster.NodeID, c.Security.Insecure = []string{"node2"}, "n1", true
		},
		"default metrics port api": func(c *node.Config) { c.API.HTTP = node.Port{Number: 9090, Given: true} },
	} {
		if err := changed(change).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfigValidate_NamesFlagValueAndFix(t *testing.T) {
	given := func(n int) node.Port { return node.Port{Number: n, Given: true} }
	for want, change := range map[string]func(*node.Config){
		`--app-id "a.b" is refused (use letters`: func(c *node.Config) { c.App.ID = "a.b" },
		`--app-id "a||b" is refused`:             func(c *node.Config) { c.App.ID = "a||b" },
		`--app-id "ä" is refused`:                func(c *node.Config) { c.App.ID = "ä" },
		`--app-id "` + strings.Repeat("a", 129): func(c *node.Config) {
			c.App.ID = strings.Repeat("a", 129)
		},
		`--namespace "a/b" is refused`:                        func(c *node.Config) { c.Namespace = "a/b" },
		`--http-port "70000" is refused (give a port`:         func(c *node.Config) { c.API.HTTP = given(70000) },
		`--metrics-port "3500" is refused (--http-port has`:   func(c *node.Config) { c.Metrics.Port = given(3500) },
		`--app-port "3500" is refused (--http-port has`:       func(c *node.Config) { c.App.Port = 3500 },
		`--app-protocol "tcp" is refused (give one of http, `: func(c *node.Config) { c.App.Protocol = "tcp" },
		`--app-health-probe-timeout "6s" is refused (give at most`: func(c *node.Config) {
			c.App.Health.Timeout = 6 * time.Second
		},
		`--listen-address "node1" is refused (give an IP`: func(c *node.Config) {
			c.API.Listen = []string{"node1"}
		},
		`--listen-address "0.0.0.0" is refused (others could`: func(c *node.Config) {
			c.API.Listen = []string{"0.0.0.0"}
		},
		`--listen-address "10.0.0.1" is refused (others`: func(c *node.Config) {
			c.API.Listen = []string{"127.0.0.1", "10.0.0.1"}
		},
		`--bind-address "0.0.0.0" is refused (others could`: func(c *node.Config) { c.Cluster.Join = []string{"a"} },
		`--bind-address "10.0.0.1" is refused (others could join the cluster: give every node the same ` +
			`--cluster-token-file (quorate token create`: func(c *node.Config) {
			c.Cluster.Bind = "10.0.0.1"
		},
		`--cluster-key-file "" is refused (--cluster-cert-file, --cluster-key-file and`: func(c *node.Config) {
			c.Security.ClusterCertFile = "c"
		},
		`--cluster-cert-file "c" is refused (certificates secure connections, ` +
			`but gossip packets need`: func(c *node.Config) {
			c.Security.ClusterCertFile = "c"
		},
		`--request-timeout "-1s" is refused`: func(c *node.Config) {
			c.API.RequestTimeout = -time.Second
		},
		`--allowed-origins "example.com" is refused`: func(c *node.Config) {
			c.API.AllowedOrigins = []string{"example.com"}
		},
		`--allowed-origins "https://a/b" is refused`: func(c *node.Config) {
			c.API.AllowedOrigins = []string{"https://a/b"}
		},
		`--data-dir "" is refused (neither HOME`: func(c *node.Config) { c.Data.StateDir = "" },
		`--node-id "" is refused (with --join`: func(c *node.Config) {
			c.Cluster.Join = []string{"a"}
		},
		`--log-store "lmdb" is refused (give one of boltdb`:   func(c *node.Config) { c.Data.LogStore = "lmdb" },
		`--cluster "../x" is refused`:                         func(c *node.Config) { c.Cluster.Name = "../x" },
		`--cluster ".." is refused`:                           func(c *node.Config) { c.Cluster.Name = ".." },
		`--node-id "local" is refused (this name is reserved`: func(c *node.Config) { c.Cluster.NodeID = "local" },
		`--role "voter" is refused`:                           func(c *node.Config) { c.Cluster.Role = "voter" },
		`--partitions "257" is refused (give a number from 1`: func(c *node.Config) { c.Cluster.Partitions = 257 },
		`--min-free-disk "67108864" is refused (give at least 128Mi: the log needs 64 MiB`: func(c *node.Config) {
			c.Data.MinFree = 64 << 20
		},
		`--min-free-disk "1048576" is refused (give at least 32Mi`: func(c *node.Config) {
			c.Data.MinFree, c.Data.LogStore = 1<<20, node.LogStoreBolt
		},
		`--voters "-3" is refused`: func(c *node.Config) { c.Cluster.Voters = -3 },
		`--voters "4" is refused (4 voters survive no more failures than 3: give 3 or 5)`: func(c *node.Config) {
			c.Cluster.Voters = 4
		},
		`--voters "5" is refused (without --join this node is a cluster of one`: func(c *node.Config) {
			c.Cluster.Voters = 5
		},
		`--bootstrap-expect "3" is refused (without --join`: func(c *node.Config) { c.Cluster.BootstrapExpect = 3 },
		`backup: command "put" is refused (give either`: func(c *node.Config) {
			c.Backup.Directory, c.Backup.Command = "/b", []string{"put"}
		},
		`backup "" is refused (give a directory or a command`: func(c *node.Config) { c.Backup.Every = time.Hour },
		`backup: directory "b" is refused (give an absolute`:  func(c *node.Config) { c.Backup.Directory = "b" },
		`backup: every "1ns" is refused`: func(c *node.Config) {
			c.Backup = node.Backup{Directory: "/b", Every: 1}
		},
		`backup: keep "-1" is refused`: func(c *node.Config) {
			c.Backup = node.Backup{Directory: "/b", Keep: -1}
		},
		`apps: id "default" is refused`: func(c *node.Config) { c.Apps = []node.AppEntry{{}} },
		`apps: id "a|b" is refused`:     func(c *node.Config) { c.Apps = []node.AppEntry{{App: node.App{ID: "a|b"}}} },
		`apps: httpPort of b "" is refused`: func(c *node.Config) {
			c.Apps = []node.AppEntry{{App: node.App{ID: "b"}}}
		},
		`apps: httpPort "3500" is refused`: func(c *node.Config) {
			c.Apps = []node.AppEntry{{App: node.App{ID: "b"}, HTTPPort: given(3500)}}
		},
	} {
		err := changed(change).Validate()
		if !contains(problemsOf(err), fault.Invalid, want) {
			t.Errorf("no problem %q in: %v", want, err)
		}
	}
}

func contains(problems []error, code fault.Code, text string) bool {
	for _, p := range problems {
		if fault.Is(p, code) && strings.Contains(fault.Text(p), text) && !strings.Contains(p.Error(), "\n") {
			return true
		}
	}
	return false
}

func TestConfigValidate_ReportsEveryProblem(t *testing.T) {
	err := changed(func(c *node.Config) {
		c.App.ID, c.Cluster.Partitions, c.Data.LogStore = "a b", 999, "x"
	}).Validate()
	if n := len(problemsOf(err)); n != 3 {
		t.Errorf("%d problems in: %v", n, err)
	}
}

func TestConfig_StringHidesSecrets(t *testing.T) {
	s := node.Security{APITokens: []node.Secret{"hunter2"}}
	j, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%+v %#v %s %q", s, s, s.APITokens[0], s.APITokens),
		string(j)} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("printed: %s", text)
		}
	}
	if node.Secret("").String() != "" {
		t.Error("an empty secret looks like one")
	}
}
