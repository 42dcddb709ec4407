package node

import (
	"github.com/quorate/quorate/internal/fault"
)

// notYet is a setting whose feature this version does not have.
type notYet struct {
	flag string
	used func(Config) bool
	what string // the feature, with its verb
	mend string // what to do meanwhile
}

// notYets is the one list of settings that are refused because the code behind them does
// not exist. A start that ignored them would run something other than what was asked for.
func notYets() []notYet {
	const alone = "leave it out: the node is a complete cluster of one"
	const noCalls = "leave it out: the application calls the node, the node does not call back"
	plain := Config{}.WithDefaults()
	return []notYet{
		{"--log-store wal with --join", func(c Config) bool { return c.Data.LogStore == LogStoreWAL && c.Cluster.joining() }, "raft-wal in a cluster is", "use boltdb: a replica on raft-wal may fail to take a snapshot in"},
		{"--role sidecar", func(c Config) bool { return c.Cluster.Role == RoleSidecar }, "a node without data is", "use --role server"},
		{"--cluster-token-file", func(c Config) bool { return c.Security.ClusterTokenFile != "" }, "a cluster token is", alone},

		{"--app-port", func(c Config) bool { return c.App.Port != 0 }, "calling the application is", noCalls},
		{"--app-protocol", func(c Config) bool { return c.App.Protocol != plain.App.Protocol }, "calling the application is", noCalls},
		{"--app-channel-address", func(c Config) bool { return c.App.Address != plain.App.Address }, "calling the application is", noCalls},
		{"--app-max-concurrency", func(c Config) bool { return c.App.MaxConcurrency > 0 }, "calling the application is", noCalls},
		{"--enable-app-health-check", func(c Config) bool { return c.App.Health != plain.App.Health }, "probing the application is", noCalls},
		{"a command after --", func(c Config) bool { return len(c.App.Command) > 0 }, "running the application as a child is", "start it beside the node"},
		{"apps:", func(c Config) bool { return len(c.Apps) > 0 }, "serving several applications is", "start one node for each, with --app-id, --http-port and --data-dir"},

		{"--grpc-port", func(c Config) bool { return c.API.GRPC.Given }, "the gRPC API is", "leave it out and use the HTTP API"},
		{"--config", func(c Config) bool { return len(c.Components.ConfigFiles) > 0 }, "a Configuration resource is", "leave it out"},
	}
}

// NotYet lists the settings that this version refuses because their features do not
// exist, as a person writes them.
func NotYet() []string {
	var out []string
	for _, n := range notYets() {
		out = append(out, n.flag)
	}
	return out
}

// refuseNotYet adds a problem for each setting of c that nothing would act on.
func (c Config) refuseNotYet(p *problems) {
	for _, n := range notYets() {
		if n.used(c) {
			*p = append(*p, &fault.Error{Code: fault.Unimplemented, Op: "node.Config",
				Msg: n.flag + ": " + n.what + " not available in this version", Hint: n.mend})
		}
	}
}
