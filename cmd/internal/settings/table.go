package settings

import (
	"time"

	"github.com/quorate/quorate/node"
)

// table is every setting there is, bound to the fields of c. This is the only place where
// a setting gets its name; variables and keys of the file follow from it.
func table(c *node.Config, f *files) []*Setting {
	all := [][]*Setting{
		applicationTable(c), apiTable(c), componentsTable(c), dataTable(c), clusterTable(c), securityTable(c, f), metricsTable(c), processTable(c, f),
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
		{Name: "app-id", value: text("id", &a.ID), Default: "default", Usage: "id of the application; its keys are stored under it"},
		{Name: "namespace", value: text("name", &c.Namespace), Env: []string{"NAMESPACE"}, Usage: "namespace of the application"},
		{Name: "app-port", value: number("port", &a.Port, 1), Usage: "port on which the application is called"},
		{Name: "app-protocol", value: choice(&a.Protocol, node.Protocols()...), Default: "http", Usage: "how the application is called"},
		{Name: "app-channel-address", value: text("address", &a.Address), Default: "127.0.0.1", Usage: "address of the application"},
		{Name: "app-max-concurrency", value: number("number", &a.MaxConcurrency, -1), Default: "0", Usage: "calls to the application at a time; 0 or -1 is no limit"},
		{Name: "enable-app-health-check", value: flag(&a.Health.Enabled, true), Default: "false", Usage: "probe the application"},
		{Name: "app-health-check-path", value: text("path", &a.Health.Path), Default: "/healthz", Usage: "path of the probe"},
		{Name: "app-health-probe-interval", value: duration(&a.Health.Interval, time.Second), Default: "5s", Usage: "time between probes; a bare number is seconds"},
		{Name: "app-health-probe-timeout", value: duration(&a.Health.Timeout, time.Millisecond), Default: "500ms", Usage: "time for one probe; a bare number is milliseconds"},
		{Name: "app-health-threshold", value: number("number", &a.Health.Threshold, 1), Default: "3", Usage: "failed probes in a row that make the application unhealthy"},
	}
}

func apiTable(c *node.Config) []*Setting {
	a := &c.API
	return []*Setting{
		{Name: "http-port", Aliases: []string{"dapr-http-port"}, value: port(&a.HTTP), Default: "3500", Usage: "port of the HTTP API; 0 picks a free one"},
		{Name: "grpc-port", Aliases: []string{"dapr-grpc-port"}, value: port(&a.GRPC), Default: "50001", Usage: "port of the gRPC API; 0 picks a free one"},
		{Name: "enable-grpc", value: flag(&a.GRPCOff, false), Default: "true", Usage: "serve the gRPC API"},
		{Name: "listen-address", Aliases: []string{"dapr-listen-addresses"}, value: hosts(&a.Listen), Default: "127.0.0.1", Usage: "addresses on which the API listens"},
		{Name: "max-body-size", value: size(&a.MaxBodySize), Default: "4Mi", Usage: "largest request body"},
		{Name: "request-timeout", value: duration(&a.RequestTimeout, time.Second), Default: "10s", Usage: "time in which a request is answered"},
		{Name: "allowed-origins", value: list("origin", &a.AllowedOrigins), Usage: `web origins whose pages may use the API; "*" is all`},
	}
}

func componentsTable(c *node.Config) []*Setting {
	return []*Setting{
		{Name: "resources-path", Aliases: []string{"components-path"}, value: list("path", &c.Components.Paths), Usage: "directory with component files; may be repeated"},
		{Name: "config", value: list("path", &c.Components.ConfigFiles), Usage: "file with a Configuration resource; may be repeated"},
	}
}

func dataTable(c *node.Config) []*Setting {
	return []*Setting{
		{Name: "data-dir", value: text("path", &c.Data.Dir), Default: "<state>/quorate/<cluster>/local, with --join <node id>", Usage: "directory for everything durable"},
		{Name: "log-store", value: choice(&c.Data.LogStore, node.LogStoreBolt, node.LogStoreWAL), Default: "what the directory has, else boltdb", Usage: "library that keeps the log entries; fixed when the data directory is made"},
		{Name: "min-free-disk", value: size(&c.Data.MinFree), Default: "256Mi", Usage: "free space of the disk below which no values are stored"},
	}
}

func clusterTable(c *node.Config) []*Setting {
	k := &c.Cluster
	return []*Setting{
		{Name: "cluster", value: text("name", &k.Name), Default: "default", Usage: "name of the cluster; selects the data directory"},
		{Name: "node-id", value: text("id", &k.NodeID), Usage: "id of this node; left out, that of the data directory, and for a new one with --join the name of the machine"},
		{Name: "role", value: choice(&k.Role, node.RoleServer, node.RoleSidecar), Default: "server", Usage: "server holds data, sidecar only routes to servers"},
		{Name: "partitions", value: number("number", &k.Partitions, 1), Default: "what the directory has, or the cluster to join, else 1", Usage: "number of partitions; fixed when the cluster is created"},
		{Name: "join", value: list("host", &k.Join), Usage: "nodes of the cluster to join; may be repeated"},
		{Name: "bootstrap-expect", value: number("number", &k.BootstrapExpect, 0), Default: "0", Usage: "servers that form a new cluster together; 0 only joins"},
		{Name: "voters", value: number("number", &k.Voters, 1), Default: "3", Usage: "servers that vote; the rest are replicas"},
		{Name: "bind-address", value: text("address", &k.Bind), Default: "127.0.0.1, with --join 0.0.0.0", Usage: "address on which other nodes reach this one"},
		{Name: "advertise-address", value: text("address", &k.Advertise), Usage: "address that other nodes are told; found out where it is left out"},
		{Name: "gossip-port", value: port(&k.Gossip), Default: "7946", Usage: "port for gossip"},
		{Name: "peer-port", value: port(&k.Peer), Default: "7947", Usage: "port for replication and forwarding"},
	}
}

func securityTable(c *node.Config, f *files) []*Setting {
	s := &c.Security
	return []*Setting{
		{Name: "api-token", noFlag: true, value: token(&s.APITokens), Env: []string{"DAPR_API_TOKEN"}, Usage: "token that every API request must carry"},
		{Name: "api-token-file", value: text("path", &f.tokens), Usage: "file with tokens, one per line; a request must carry one of them"},
		{Name: "cluster-token-file", value: text("path", &s.ClusterTokenFile), Usage: "file with the token that secures traffic between nodes; a second line holds the one that is accepted as well"},
		{Name: "cluster-cert-file", value: text("path", &s.ClusterCertFile), Usage: "certificate of this node that was made elsewhere, for connections between nodes"},
		{Name: "cluster-key-file", value: text("path", &s.ClusterKeyFile), Usage: "its key"},
		{Name: "cluster-ca-file", value: text("path", &s.ClusterCAFile), Usage: "authorities whose certificates are accepted from other nodes"},
		{Name: "insecure", value: flag(&s.Insecure, true), Default: "false", Usage: "listen beyond loopback without credentials"},
	}
}

func metricsTable(c *node.Config) []*Setting {
	m := &c.Metrics
	return []*Setting{
		{Name: "enable-metrics", value: flag(&m.Off, false), Default: "true", Usage: "serve metrics"},
		{Name: "metrics-port", value: port(&m.Port), Default: "9090", Usage: "port of /metrics; 0 picks a free one, and so does a taken one that was not asked for"},
		{Name: "metrics-listen-address", value: text("address", &m.Listen), Default: "127.0.0.1", Usage: "address on which metrics are served"},
	}
}

func processTable(c *node.Config, f *files) []*Setting {
	return []*Setting{
		{Name: "log-level", value: level(&c.Log.Level), Default: "info", Usage: "debug, info, warn or error"},
		{Name: "log-as-json", value: flag(&c.Log.JSON, true), Default: "false", Usage: "log JSON lines"},
		{Name: "graceful-shutdown-seconds", Aliases: []string{"dapr-graceful-shutdown-seconds"}, value: duration(&c.Grace, time.Second), Default: "5s", Usage: "time for an orderly end; a bare number is seconds"},
		{Name: "config-file", value: text("path", &f.settings), Usage: "YAML file with settings"},
	}
}

// appTable is what one element of apps: can say, bound to a.
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
