package settings

import (
	"time"

	"github.com/quorate/quorate/component/pluggable"
	"github.com/quorate/quorate/node"
)

// table returns all settings. Each setting writes to its field of c or f. Names of settings are only in this table.
// The names of environment variables and file keys are derived from them.
func table(c *node.Config, f *files) []*Setting {
	all := [][]*Setting{
		applicationTable(c), apiTable(c), componentsTable(c), dataTable(c), clusterTable(c), securityTable(c, f),
		metricsTable(c), processTable(c, f),
	}
	var out []*Setting
	for i, g := range Groups() {
		for _, s := range all[i] {
			s.Group = g
			out = append(out, s)
		}
	}
	return out
}

func applicationTable(c *node.Config) []*Setting {
	a := &c.App
	return []*Setting{
		{Name: "app-id", value: text("id", &a.ID), Default: "default",
			Usage: "id of the application; its keys are stored under it"},
		{Name: "namespace", value: text("name", &c.Namespace), Env: []string{"NAMESPACE"},
			Usage: "namespace of the application"},
		{Name: "app-port", value: number("port", &a.Port, 1), Usage: "port of the application"},
		{Name: "app-protocol", value: choice(&a.Protocol, node.Protocols()...), Default: "http",
			Usage: "protocol of the application"},
		{Name: "app-channel-address", value: text("address", &a.Address), Default: "127.0.0.1",
			Usage: "address of the application"},
		{Name: "app-max-concurrency", value: number("number", &a.MaxConcurrency, -1), Default: "0",
			Usage: "maximum number of concurrent calls to the application; 0 or -1 = no limit"},
		{Name: "enable-app-health-check", value: flag(&a.Health.Enabled, true), Default: "false",
			Usage: "probe the application"},
		{Name: "app-health-check-path", value: text("path", &a.Health.Path), Default: "/healthz",
			Usage: "path of the probe"},
		{Name: "app-health-probe-interval", value: duration(&a.Health.Interval, time.Second), Default: "5s",
			Usage: "interval between probes; a bare number is seconds"},
		{Name: "app-health-probe-timeout", value: duration(&a.Health.Timeout, time.Millisecond), Default: "500ms",
			Usage: "timeout of one probe; a bare number is milliseconds"},
		{Name: "app-health-threshold", value: number("number", &a.Health.Threshold, 1), Default: "3",
			Usage: "consecutive failed probes after which the application is unhealthy"},
		{Name: "app-binding-options-timeout", value: duration(&a.OptionsTimeout, time.Second), Default: "3s",
			Usage: "timeout of the request that finds out which input bindings the application handles"},
		{Name: "disable-init-endpoints", value: list("word", &a.InitOff),
			Usage: "requests at the start that the application does not get: config (GET /dapr/config, so it hosts " +
				"no actors over HTTP), subscribe (never sent)"},
	}
}

func apiTable(c *node.Config) []*Setting {
	a := &c.API
	return []*Setting{
		{Name: "http-port", Aliases: []string{"dapr-http-port"}, value: port(&a.HTTP), Default: "3500",
			Usage: "port of the HTTP API; 0 picks a free one"},
		{Name: "grpc-port", Aliases: []string{"dapr-grpc-port"}, value: port(&a.GRPC), Default: "50001",
			Usage: "port of the gRPC API; 0 picks a free one"},
		{Name: "enable-grpc", value: flag(&a.GRPCOff, false), Default: "true", Usage: "serve the gRPC API"},
		{Name: "listen-address", Aliases: []string{"dapr-listen-addresses"}, value: hosts(&a.Listen),
			Default: "127.0.0.1", Usage: "addresses that the API listens on"},
		{Name: "unix-domain-socket", value: text("path", &a.SocketDir),
			Usage: "directory for Unix sockets that replace the TCP ports of both APIs: dapr-<app id>-http.socket " +
				"and dapr-<app id>-grpc.socket"},
		{Name: "health-port", Aliases: []string{"dapr-public-port", "public-port"}, value: optionalPort(&a.Health),
			Usage: "further port that serves only health probes, without a token; 0 picks a free one"},
		{Name: "health-listen-address", Aliases: []string{"dapr-public-listen-address"},
			value: text("address", &a.HealthListen),
			Usage: "address that the health port listens on; all interfaces by default"},
		{Name: "max-body-size", value: bodySize(&a.MaxBodySize), Default: "4Mi",
			Usage: `largest request body; "unlimited" = no limit. A value is also limited by the largest log entry`},
		{Name: "read-buffer-size", value: size(&a.MaxHeaderSize), Default: "4Ki",
			Usage: "largest header of a request, and of an answer of an application if it is more than 64Ki"},
		{Name: "request-timeout", value: duration(&a.RequestTimeout, time.Second), Default: "10s",
			Usage: "timeout of a request"},
		{Name: "allowed-origins", value: list("origin", &a.AllowedOrigins),
			Usage: `web origins whose pages may use the API; "*" allows all`},
		{Name: "allow-any-http-endpoint", value: flag(&a.AnyEndpoint, true), Default: "false",
			Usage: "let applications call every http:// and https:// address, not only those of HTTPEndpoint " +
				"resources"},
		{Name: "rebalance-actors", value: flag(&a.KeepActors, false), Default: "true",
			Usage: "move active actors from this node to nodes with fewer, such as one that joins"},
		{Name: "enable-api-logging", value: flag(&a.LogCalls, true), Default: "false",
			Usage: "log every request of the API, without its body"},
	}
}

func componentsTable(c *node.Config) []*Setting {
	return []*Setting{
		{Name: "resources-path", Aliases: []string{"components-path"}, value: list("path", &c.Components.Paths),
			Usage: "directory with component files; may be repeated"},
		{Name: "config", value: list("path", &c.Components.ConfigFiles),
			Usage: "file with a Configuration resource; may be repeated"},
		{Name: "components-sockets-folder", value: text("path", &c.Components.Sockets),
			Env: []string{"DAPR_COMPONENTS_SOCKETS_FOLDER"},
			Usage: "directory with the sockets of pluggable components; daprd uses " + pluggable.DefaultFolder +
				" if it exists"},
		{Name: "reload-interval", Aliases: []string{"hot-reload-reconcile-interval"},
			value: interval(&c.Components.Reload), Default: "1s",
			Usage: "interval at which changed files of --resources-path and --config are looked for; 0 = only after " +
				"SIGHUP"},
	}
}

func dataTable(c *node.Config) []*Setting {
	return []*Setting{
		{Name: "data-dir", value: text("path", &c.Data.Dir),
			Default: "<state>/quorate/<cluster>/local, with --join <node id>", Usage: "directory for all durable data"},
		{Name: "log-store", value: choice(&c.Data.LogStore, node.LogStoreBolt, node.LogStoreWAL),
			Default: "the one in the data directory, otherwise wal",
			Usage:   "library that stores the log entries; fixed when the data directory is created"},
		{Name: "min-free-disk", value: size(&c.Data.MinFree), Default: "256Mi",
			Usage: "free disk space below which no values are stored"},
	}
}

func clusterTable(c *node.Config) []*Setting {
	k := &c.Cluster
	return []*Setting{
		{Name: "cluster", value: text("name", &k.Name), Default: "default",
			Usage: "name of the cluster; selects the data directory"},
		{Name: "node-id", value: text("id", &k.NodeID),
			Usage: "id of this node; default: the id in the data directory, or for a new node with --join the host " +
				"name"},
		{Name: "role", value: choice(&k.Role, node.RoleServer, node.RoleSidecar), Default: "server",
			Usage: "a server holds data; a sidecar only routes to servers"},
		{Name: "partitions", value: number("number", &k.Partitions, 1),
			Default: "the number of the data directory or of the cluster to join, otherwise 1",
			Usage:   "number of partitions; fixed when the cluster is created"},
		{Name: "join", value: list("host", &k.Join), Usage: "nodes of the cluster to join; may be repeated"},
		{Name: "bootstrap-expect", value: number("number", &k.BootstrapExpect, 0), Default: "0",
			Usage: "number of servers that form a new cluster together; 0 = only join"},
		{Name: "voters", value: number("number", &k.Voters, 1), Default: "3",
			Usage: "number of voters when the cluster forms; later, quorate voters changes it"},
		{Name: "bind-address", value: text("address", &k.Bind),
			Default: "127.0.0.1, with --join of other machines 0.0.0.0",
			Usage:   "address that this node listens on for other nodes"},
		{Name: "advertise-address", value: text("address", &k.Advertise),
			Usage: "address that other nodes use to reach this one; detected by default"},
		{Name: "gossip-port", value: port(&k.Gossip), Default: "7946", Usage: "port for gossip"},
		{Name: "peer-port", value: port(&k.Peer), Default: "7947", Usage: "port for replication and forwarding"},
	}
}

func securityTable(c *node.Config, f *files) []*Setting {
	s := &c.Security
	return []*Setting{
		{Name: "api-token", noFlag: true, value: token(&s.APITokens), Env: []string{"DAPR_API_TOKEN"},
			Usage: "token that every API request must have"},
		{Name: "api-token-file", value: text("path", &f.tokens),
			Usage: "file with API tokens, one per line; a request must have one of them"},
		{Name: "cluster-token-file", value: text("path", &s.ClusterTokenFile),
			Usage: "file with the token that secures traffic between nodes; a second line may contain another " +
				"token that is accepted, too"},
		{Name: "cluster-cert-file", value: text("path", &s.ClusterCertFile),
			Usage: "file with your own certificate of this node, for connections between nodes"},
		{Name: "cluster-key-file", value: text("path", &s.ClusterKeyFile), Usage: "its key"},
		{Name: "cluster-ca-file", value: text("path", &s.ClusterCAFile),
			Usage: "file with the CA certificates that other nodes are verified against"},
		{Name: "insecure", value: flag(&s.Insecure, true), Default: "false",
			Usage: "listen beyond loopback without credentials"},
	}
}

// consoleSetting is the name of the setting that enables the web console. Its default depends on other settings.
const consoleSetting = "console"

func metricsTable(c *node.Config) []*Setting {
	m := &c.Metrics
	return []*Setting{
		{Name: "enable-metrics", value: flag(&m.Off, false), Default: "true", Usage: "serve metrics"},
		{Name: "metrics-port", value: port(&m.Port), Default: "9090",
			Usage: "port of /metrics; 0 picks a free one, as does the default port if it is in use"},
		{Name: "metrics-listen-address", value: text("address", &m.Listen), Default: "127.0.0.1",
			Usage: "address that /metrics and the web console listen on"},
		{Name: consoleSetting, value: flag(&c.Console.On, true), Default: "true",
			Usage: "serve the web console, which quorate console opens; the default is false for a node with " +
				"--join or beyond loopback"},
		{Name: "console-port", value: port(&c.Console.Port), Default: "9091",
			Usage: "port of the web console; 0 picks a free one, as does the default port if it is in use"},
		{Name: "console-write", value: flag(&c.Console.Write, true), Default: "false",
			Usage: "let the web console change state and transfer leadership"},
	}
}

func processTable(c *node.Config, f *files) []*Setting {
	return []*Setting{
		{Name: "log-level", value: level(&c.Log.Level), Default: "info", Usage: "debug, info, warn or error"},
		{Name: "log-as-json", value: flag(&c.Log.JSON, true), Default: "false", Usage: "log JSON lines"},
		{Name: "memory-limit", value: size(&c.MemoryLimit),
			Default: "90 % of the limit of the cgroup, at most half of the machine's memory",
			Usage:   "soft limit of the memory of the process; GOMEMLIMIT has precedence"},
		{Name: "graceful-shutdown-seconds", Aliases: []string{"dapr-graceful-shutdown-seconds"},
			value: duration(&c.Grace, time.Second), Default: "5s",
			Usage: "time limit of a graceful shutdown; a bare number is seconds"},
		{Name: "block-shutdown-duration", Aliases: []string{"dapr-block-shutdown-duration"},
			value: duration(&c.BlockShutdown, time.Second), Default: "0s",
			Usage: "how long the node serves after SIGTERM before it stops; less if the application becomes unhealthy"},
		{Name: "pprof", value: flag(&c.Profiles, true), Default: "false",
			Usage: "serve profiles of the Go runtime at /debug/pprof/ of the admin socket"},
		{Name: "config-file", value: text("path", &f.settings), Usage: "YAML file with settings"},
	}
}

// backupTable returns the settings of backup:, bound to b.
func backupTable(b *node.Backup) []*Setting {
	return []*Setting{
		{Key: "directory", value: text("path", &b.Directory)},
		{Key: "command", value: words(&b.Command)},
		{Key: "every", value: duration(&b.Every, time.Second)},
		{Key: "keep", value: number("number", &b.Keep, 1)},
		{Key: "verify", value: flag(&b.NoVerify, false)},
		{Key: "keyFile", value: text("path", &b.KeyFile)},
	}
}

// appTable returns the settings of one element of apps:, bound to a.
func appTable(a *node.AppEntry) []*Setting {
	return []*Setting{
		{Key: "id", value: text("id", &a.ID)},
		{Key: "port", value: number("port", &a.Port, 1)},
		{Key: "protocol", value: choice(&a.Protocol, node.Protocols()...)},
		{Key: "httpPort", value: port(&a.HTTPPort)},
		{Key: "grpcPort", value: port(&a.GRPCPort)},
		{Key: "token", value: secret(&a.Token)},
	}
}
