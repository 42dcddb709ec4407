// Package node is the composition root: it turns a Config into a running node.
//
// It owns the order in which subsystems are built and closed, and readiness. It must
// never know flags, files of settings or the environment: those belong to the command,
// which fills a Config. What each subsystem does is that subsystem's own affair.
package node

import (
	"cmp"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Limits of the configuration.
const (
	MaxPartitions = 256
	// MaxEntry is the largest log entry in bytes, and so the largest request body.
	MaxEntry = 64 << 20
)

// sharedDir is the last element of the data directory that nodes without --join and
// --data-dir share. No node id may take it.
const sharedDir = "local"

// Config is everything a node needs to know before it starts. It is a value: copy it
// freely; nothing keeps a reference. The zero value with WithDefaults is a complete
// single-node cluster, once Data.StateDir or Data.Dir says where its data lives.
type Config struct {
	Version    string // of the program; shown by status and metadata
	Namespace  string // empty = none: components of every namespace load
	App        App
	Apps       []AppEntry // applications beside App, each with a listener of its own
	API        API
	Metrics    Metrics
	Components Components
	Data       Data
	Cluster    Cluster
	Security   Security
	Log        Log
	Grace      time.Duration // how long Close may take; 0 = 5 s
}

// App is the application that the node serves.
type App struct {
	ID             string   // letters, digits, - and _; default "default"
	Port           int      // 0 = the application is not called
	Protocol       Protocol // default ProtocolHTTP
	Address        string   // default 127.0.0.1
	MaxConcurrency int      // calls at a time; 0 or less = no limit
	Health         AppHealth
	Command        []string // run as a child of the node; empty = none
}

// AppHealth says how the application is probed.
type AppHealth struct {
	Enabled   bool
	Path      string        // default /healthz
	Interval  time.Duration // default 5 s
	Timeout   time.Duration // default 500 ms
	Threshold int           // failures in a row that make it unhealthy; default 3
}

// AppEntry is one more application of the same host.
type AppEntry struct {
	App
	HTTPPort Port   // of its API listener, which is its identity
	GRPCPort Port   // of its gRPC API; zero and not given = it has none
	Token    Secret // that its requests must carry; empty = none
}

// Protocol is how an application is called.
type Protocol string

// The protocols.
const (
	ProtocolHTTP  Protocol = "http"
	ProtocolHTTPS Protocol = "https"
	ProtocolH2C   Protocol = "h2c"
	ProtocolGRPC  Protocol = "grpc"
	ProtocolGRPCS Protocol = "grpcs"
)

// Protocols lists every Protocol.
func Protocols() []Protocol {
	return []Protocol{ProtocolHTTP, ProtocolHTTPS, ProtocolH2C, ProtocolGRPC, ProtocolGRPCS}
}

// API is the face towards the application.
type API struct {
	Listen         []string      // IP addresses or localhost; default 127.0.0.1
	HTTP           Port          // default 3500
	GRPC           Port          // default 50001
	GRPCOff        bool          // no gRPC API, for any application
	MaxBodySize    int64         // bytes; default 4 MiB; at most MaxEntry
	RequestTimeout time.Duration // default 10 s
	AllowedOrigins []string      // web origins beside the API's own, or "*"
}

// Metrics is the listener that Prometheus reads.
type Metrics struct {
	Off    bool
	Listen string // IP address; default 127.0.0.1
	Port   Port   // default 9090
}

// Components says where components and configurations are declared.
type Components struct {
	Paths       []string // directories or files with components, in order
	ConfigFiles []string // files with configurations, later ones on top
}

// Data is what the node keeps on this machine.
type Data struct {
	Dir        string   // default StateDir/quorate/<cluster>/local, or /<node id> with Cluster.Join
	Shared     bool     // Dir is the default that nodes of one user share; set by WithDefaults
	StateDir   string   // the user's directory for durable state; only Dir is derived from it
	RuntimeDir string   // the user's directory for sockets; holds those whose path would be too long in Dir
	LogStore   LogStore // empty = what the directory was made with, boltdb for a new one
	MinFree    int64    // free bytes of the disk below which values are refused; default 256 MiB
}

// LogStore is the library that keeps the entries of the raft log.
type LogStore string

// The log stores.
const (
	LogStoreBolt LogStore = "boltdb"
	LogStoreWAL  LogStore = "wal"
)

// Cluster is the node's place among others.
type Cluster struct {
	Name            string // default "default"; selects the data directory, and labels gossip
	NodeID          string // empty = that of the data directory; a new one takes Host with Join, else a random one
	Host            string // name of this machine; empty = unknown
	Role            Role   // default RoleServer
	Join            []string
	BootstrapExpect int    // servers that form a new cluster together; 0 = never form one
	Voters          int    // default 3
	Partitions      int    // fixed when the cluster is created; 1 to MaxPartitions; 0 = what the data directory was made with, 1 for a new one
	Bind            string // default 127.0.0.1, with Join 0.0.0.0
	Advertise       string // empty = the address that faces the seed
	Gossip          Port   // default 7946
	Peer            Port   // default 7947

	Timing group.Timing     // of the raft groups; zero = defaults
	Bounds group.Bounds     // of the raft groups; zero = defaults
	Limits placement.Limits // of changes to the groups; zero = defaults
	Fast   bool             // gossip as fast as one machine allows
}

// Role is what a node is for.
type Role string

// The roles.
const (
	RoleServer  Role = "server"  // holds replicas
	RoleSidecar Role = "sidecar" // holds no data; routes to servers
)

// Security is who may talk to the node.
type Security struct {
	APITokens        []Secret // any of them opens the API; empty = no token is asked for
	APITokenFile     string   // where the last FileTokens of them come from; read again when it changes. Empty = nowhere
	FileTokens       int
	ClusterTokenFile string // one token, or two while they are exchanged; empty = traffic between nodes is not secured
	ClusterCertFile  string // certificates made elsewhere, for connections between nodes; all three or none
	ClusterKeyFile   string
	ClusterCAFile    string
	Insecure         bool // listeners beyond loopback may go without credentials

	Certificates trust.Timing  // of those issued from a token; zero = a day
	Look         time.Duration // between looks at the files; 0 = 2 s
	Drain        time.Duration // what is under way has so long before what is not trusted any more is cut; 0 = 10 s
}

// Log is how the process logs.
type Log struct {
	Level slog.Level
	JSON  bool
}

// Port is a TCP port; 0 picks a free one. Given says that a person asked for it: such a
// port is never exchanged for another.
type Port struct {
	Number int
	Given  bool
}

// or returns p, or the default port n where nobody asked for one.
func (p Port) or(n int) Port {
	if p.Given || p.Number != 0 {
		return p
	}
	return Port{Number: n}
}

// Secret is text that is never printed. Convert it to a string to use it.
type Secret string

const redacted = "(redacted)"

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the secret from logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the secret from JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Addresses tells where a running node is found.
type Addresses struct {
	API     []string // host:port of the HTTP API of the first application, one per listen address
	GRPC    []string // host:port of its gRPC API, one per listen address; empty = off
	Apps    []AppAddress
	Metrics string // host:port; empty = off
	Admin   string // path of the admin socket
	Gossip  string // host:port that other nodes are told, to --join
	Peer    string // host:port for replication and forwarding
	DataDir string
}

// AppAddress is where the APIs of one application are found.
type AppAddress struct {
	ID   string
	API  []string // host:port of HTTP, one per listen address
	GRPC []string // host:port of gRPC, one per listen address; empty = off
}

// WithDefaults fills what was left open. It is idempotent and does no I/O.
func (c Config) WithDefaults() Config {
	c.App = c.App.withDefaults()
	c.Apps = slices.Clone(c.Apps) // the caller's slice stays as it is
	for i, a := range c.Apps {
		c.Apps[i].App = a.App.withDefaults()
	}
	c.API = c.API.withDefaults()
	c.Metrics.Listen = cmp.Or(c.Metrics.Listen, "127.0.0.1")
	c.Metrics.Port = c.Metrics.Port.or(9090)
	c.Cluster = c.Cluster.withDefaults()
	c.Data = c.Data.withDefaults(c.Cluster)
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	return c
}

func (a App) withDefaults() App {
	a.ID = cmp.Or(a.ID, "default")
	a.Protocol = cmp.Or(a.Protocol, ProtocolHTTP)
	a.Address = cmp.Or(a.Address, "127.0.0.1")
	a.Health.Path = cmp.Or(a.Health.Path, "/healthz")
	a.Health.Interval = cmp.Or(a.Health.Interval, 5*time.Second)
	a.Health.Timeout = cmp.Or(a.Health.Timeout, 500*time.Millisecond)
	a.Health.Threshold = cmp.Or(a.Health.Threshold, 3)
	return a
}

func (a API) withDefaults() API {
	if len(a.Listen) == 0 {
		a.Listen = []string{"127.0.0.1"}
	}
	a.HTTP = a.HTTP.or(3500)
	a.GRPC = a.GRPC.or(50001)
	a.MaxBodySize = cmp.Or(a.MaxBodySize, 4<<20)
	a.RequestTimeout = cmp.Or(a.RequestTimeout, 10*time.Second)
	return a
}

func (c Cluster) withDefaults() Cluster {
	c.Name = cmp.Or(c.Name, "default")
	c.Role = cmp.Or(c.Role, RoleServer)
	c.Voters = cmp.Or(c.Voters, 3)
	bind := "127.0.0.1"
	if len(c.Join) > 0 {
		bind = "0.0.0.0"
	}
	c.Bind = cmp.Or(c.Bind, bind)
	c.Gossip = c.Gossip.or(7946)
	c.Peer = c.Peer.or(7947)
	return c
}

// withDefaults leaves Dir empty where nothing says what it should be; Validate then asks for it.
func (d Data) withDefaults(c Cluster) Data {
	d.MinFree = cmp.Or(d.MinFree, 256<<20)
	if d.Dir != "" || d.StateDir == "" {
		return d
	}
	name := cmp.Or(c.NodeID, c.defaultID())
	if len(c.Join) == 0 {
		name, d.Shared = sharedDir, true
	}
	if name != "" {
		d.Dir = filepath.Join(d.StateDir, "quorate", c.Name, name)
	}
	return d
}
