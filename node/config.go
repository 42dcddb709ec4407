package node

import (
	"cmp"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node/credentials"
	"github.com/quorate/quorate/node/network"
	"github.com/quorate/quorate/node/status"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
	"github.com/quorate/quorate/raftfsm/session"
)

// Limits of the configuration.
const (
	MaxPartitions = session.MaxGroups
	// MaxEntry is the maximum size of a log entry in bytes. A stored value must be smaller.
	MaxEntry = 64 << 20
	// MinMemory is the smallest permitted memory limit in bytes. A node that handles no requests uses about half of it.
	MinMemory = 64 << 20
)

// sharedDir is the name of the default data directory of a node that joins no other nodes. All such nodes of one user
// share this directory. Beside it are the directories of nodes that join others, each named after its node id.
// Therefore no node may have the id "local".
const sharedDir = "local"

// defaultVoters is the default number of voters of a cluster.
const defaultVoters = 3

// Config is the configuration of a node. It may be copied, because no part of the node keeps a reference to it. To run
// a cluster of one node, set only Data.StateDir or Data.Dir, and call WithDefaults.
type Config struct {
	Version    string // of the program; shown by status and metadata
	Namespace  string // empty = none: components of every namespace load
	App        App
	Apps       []AppEntry // applications beside App, each with a listener of its own
	API        API
	Metrics    Metrics
	Console    Console
	Components Components
	Data       Data
	Backup     Backup
	Cluster    Cluster
	Security   Security
	Log        Log
	Grace      time.Duration // how long Close may take; 0 = 5 s
	// how long Wait keeps serving after its context ended, unless the application becomes unhealthy; 0 = not at all
	BlockShutdown time.Duration

	// Dapr selects the defaults of Dapr's sidecar. Metrics also have Dapr's names, and the log goes to standard
	// output. An invalid Resiliency resource is logged and has no effect.
	Dapr bool

	Profiles bool // the admin socket serves profiles of the Go runtime

	MemoryLimit int64 // bytes that the process may use; the memory for requests derives from it; 0 = unknown
}

// App is the application that the node serves.
type App struct {
	ID             string   // letters, digits, - and _; default "default"
	Port           int      // 0 = no calls to the application
	Protocol       Protocol // default ProtocolHTTP
	Address        string   // default 127.0.0.1
	MaxConcurrency int      // concurrent calls; 0 or less = no limit
	Health         AppHealth
	OptionsTimeout time.Duration // timeout of the request for the input bindings of the application; default 3 s
	InitOff        []string      // requests at its start that the node omits; InitConfig or InitSubscribe
	Command        []string      // run as a child of the node; empty = none
}

// The requests that the node sends to an application when the application starts. InitConfig is GET /dapr/config, which
// returns the actor types of the application. InitSubscribe is GET /dapr/subscribe, which returns its subscriptions.
const (
	InitConfig    = "config"
	InitSubscribe = "subscribe"
)

// AppHealth configures the health probes of the application.
type AppHealth struct {
	Enabled   bool
	Path      string        // default /healthz
	Interval  time.Duration // default 5 s
	Timeout   time.Duration // default 500 ms
	Threshold int           // consecutive failures that make the application unhealthy; default 3
}

// AppEntry is an additional application that the node serves.
type AppEntry struct {
	App
	HTTPPort Port   // of its API listener; requests to this port come from the application
	GRPCPort Port   // of its gRPC API; zero and not given = none
	Token    Secret // API token of its requests; empty = Security.APITokens apply
}

// Protocol is the protocol of calls to an application.
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

// API configures the API for the application.
type API struct {
	Listen         []string      // IP addresses or localhost; default 127.0.0.1
	HTTP           Port          // default 3500
	GRPC           Port          // default 50001
	GRPCOff        bool          // no gRPC API, for any application
	SocketDir      string        // directory of Unix sockets, which replace the TCP ports; empty = none
	Health         Port          // of a listener that serves health probes only; zero and not given = none
	HealthListen   string        // IP address; empty = all interfaces
	MaxBodySize    int64         // bytes; default 4 MiB; negative = no limit
	MaxHeaderSize  int64         // bytes of the header of a request, see maxHead for answers; default 4 KiB
	DisableH2C     bool          // no HTTP/2 without TLS
	RequestTimeout time.Duration // default 10 s
	HostWait       time.Duration // how long a call waits if no node hosts the actor type; 0 = 5 s
	KeepActors     bool          // active actors stay on this node when other hosts have fewer
	AllowedOrigins []string      // web origins beside the API's own, or "*"
	AnyEndpoint    bool          // applications may call addresses that no HTTPEndpoint declares
	LogCalls       bool          // log every request
	DeclaredOnly   bool          // metadata omits built-in components, those that no file declares
}

// Metrics configures the listener from which Prometheus reads the metrics.
type Metrics struct {
	Off    bool
	Listen string // IP address; default 127.0.0.1
	Port   Port   // default 9090
}

// Console configures the web console. The console listens on the address in Metrics.Listen, but on its own port.
type Console struct {
	On    bool
	Port  Port // default 9091
	Write bool // pages may change state and transfer leadership
}

// Components lists the files that declare components and configurations. It also configures how often the node reads
// changed files and retries failed components.
type Components struct {
	Paths       []string // directories or files with components, in order
	ConfigFiles []string // files with configurations; later ones take precedence
	Sockets     string   // directory with the sockets of pluggable components; empty = there are none
	// how often changed files are looked for; default 1 s; negative = only after Node.Reload
	Reload time.Duration
	Retry  time.Duration // how often a component that could not be opened is tried again; default 30 s
}

// Data configures what the node stores on disk.
type Data struct {
	Dir        string   // default StateDir/quorate/<cluster>/local, or /<node id> with Cluster.Join
	Shared     bool     // Dir is the default that nodes of one user share; set by WithDefaults
	StateDir   string   // the user's directory for durable state; only Dir is derived from it
	RuntimeDir string   // the user's directory for sockets whose path in Dir would be too long
	LogStore   LogStore // empty = the one that the directory uses, or wal in a new directory
	MinFree    int64    // free disk bytes below which values are refused; default 256 MiB
	// AnyMinFree accepts a MinFree that is less than the log needs, for tests that fill a disk.
	AnyMinFree bool
}

// Backup configures scheduled backups. There are no scheduled backups unless Directory or Command is set. It is an
// error to set both.
type Backup struct {
	Directory string        // absolute path
	Command   []string      // stores, reads and removes backups
	Every     time.Duration // default 24 h
	Keep      int           // how many to keep; default 7
	NoVerify  bool          // do not read each backup back
	KeyFile   string        // absolute path of the file with the key that encrypts them; empty = not encrypted
}

func (b Backup) enabled() bool { return b.Directory != "" || len(b.Command) > 0 }

func (b Backup) withDefaults() Backup {
	if !b.enabled() {
		return b
	}
	b.Every = cmp.Or(b.Every, 24*time.Hour)
	b.Keep = cmp.Or(b.Keep, 7)
	return b
}

// LogStore is the library that stores the raft log.
type LogStore string

// The log stores.
const (
	LogStoreBolt LogStore = "boltdb"
	LogStoreWAL  LogStore = "wal"
)

// Cluster configures the membership of the node in a cluster.
type Cluster struct {
	Name string // default "default"; part of the default data directory, and the gossip label
	// empty = the id in the data directory. A new directory gets an id from Host if Join is set, otherwise a random
	// id.
	NodeID          string
	Host            string // name of this machine; empty = unknown
	Role            Role   // default RoleServer
	Join            []string
	BootstrapExpect int // servers that form a new cluster together; 0 = never form one
	Voters          int // number of voters of each group; 0 = defaultVoters
	// fixed when the cluster is created; 1 to MaxPartitions; 0 = the number in the data directory, or 1 for a new
	// one
	Partitions int
	Bind       string // default 0.0.0.0 with Join of other machines, otherwise 127.0.0.1
	Advertise  string // empty = the address that faces the seeds
	Gossip     Port   // default 7946
	Peer       Port   // default 7947

	Timing group.Timing     // of the raft groups; zero = defaults
	Bounds group.Bounds     // of the raft groups; zero = defaults
	Limits placement.Limits // for changes of the groups; zero = defaults
	Fast   bool             // use gossip timing for nodes of one machine
}

// Role says whether the node stores data.
type Role string

// The roles.
const (
	RoleServer  Role = "server"  // holds replicas
	RoleSidecar Role = "sidecar" // holds no data; routes to servers
)

// Security configures who may connect to the node.
type Security struct {
	APITokens []Secret // each of them opens the API; empty = no token is needed
	// file with the last FileTokens elements of APITokens; read again when it changes; empty = none
	APITokenFile string
	FileTokens   int
	// one token, or two during rotation; empty = traffic between nodes is not secured
	ClusterTokenFile string
	ClusterCertFile  string // own certificates for connections between nodes; all three or none
	ClusterKeyFile   string
	ClusterCAFile    string
	Insecure         bool // allow listeners beyond loopback without credentials

	Certificates trust.Timing  // validity of certificates issued from a token; zero = one day
	Look         time.Duration // polling interval of the files; 0 = 2 s
	Drain        time.Duration // time before connections that are no longer trusted are closed; 0 = 10 s
}

// secured reports whether traffic between nodes is encrypted and authenticated.
func (s Security) secured() bool { return s.ClusterTokenFile != "" }

// ParseTokens returns the API tokens in the text of a token file. The file has one token per line. Empty lines and
// lines that begin with # are ignored.
func ParseTokens(text []byte) []Secret {
	var out []Secret
	for _, t := range credentials.ParseAPITokens(text) {
		out = append(out, Secret(t))
	}
	return out
}

// reveal returns the secrets as strings.
func reveal(secrets []Secret) []string {
	out := make([]string, len(secrets))
	for i, s := range secrets {
		out[i] = string(s)
	}
	return out
}

// Log configures logging.
type Log struct {
	Level slog.Level
	JSON  bool
}

// Port is a TCP port to listen on. Number 0 means any free port. Given is true if the user has chosen the port, or if
// other nodes rely on it. The node never uses another port instead of a Given one.
type Port struct {
	Number int
	Given  bool
}

// or returns p if the user has chosen a port, and the default port n if not.
func (p Port) or(n int) Port {
	if p.Given || p.Number != 0 {
		return p
	}
	return Port{Number: n}
}

// Secret is a string that is never printed. Convert it to a string to use it.
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

// Addresses are the id and the addresses of a running node.
type Addresses struct {
	Node    string   // node id
	API     []string // host:port of the HTTP API of the first application, one per listen address
	GRPC    []string // host:port of its gRPC API, one per listen address; empty = off
	Apps    []AppAddress
	Metrics string // host:port; empty = off
	Console string // host:port; empty = off
	Admin   string // path of the admin socket
	Gossip  string // host:port for --join of other nodes
	Peer    string // host:port for replication and forwarding
	DataDir string
	// SharedDir is the shared data directory if another node of this user holds it, and this node is a sidecar of that
	// node. This process takes the directory over when that node ends. Otherwise SharedDir is empty, because the data
	// is in DataDir or on the servers of a cluster.
	SharedDir string
}

// AppAddress has the addresses of the APIs of one application.
type AppAddress struct {
	ID   string
	API  []string // host:port of HTTP, one per listen address
	GRPC []string // host:port of gRPC, one per listen address; empty = off
}

// status returns the addresses for the status.
func (a Addresses) status(namespace string) status.Addresses {
	out := status.Addresses{DataDir: a.DataDir, Metrics: a.Metrics, Gossip: a.Gossip, Peer: a.Peer}
	for _, one := range a.Apps {
		out.Apps = append(out.Apps, schema.AppStatus{ID: one.ID, Namespace: namespace, API: one.API, GRPC: one.GRPC})
	}
	return out
}

// WithDefaults returns c with defaults for unset fields. It is idempotent and does no I/O.
func (c Config) WithDefaults() Config {
	c.App = c.App.withDefaults()
	c.Apps = slices.Clone(c.Apps) // do not change the caller's slice
	for i, a := range c.Apps {
		c.Apps[i].App = a.App.withDefaults()
	}
	c.API = c.API.withDefaults()
	c.Metrics.Listen = cmp.Or(c.Metrics.Listen, "127.0.0.1")
	c.Metrics.Port = c.Metrics.Port.or(9090)
	c.Console.Port = c.Console.Port.or(9091)
	c.Cluster = c.Cluster.withDefaults(c.Security.secured())
	c.Data = c.Data.withDefaults(c.Cluster)
	c.Backup = c.Backup.withDefaults()
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	c.Components.Reload = cmp.Or(c.Components.Reload, time.Second)
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
	a.OptionsTimeout = cmp.Or(a.OptionsTimeout, 3*time.Second)
	return a
}

// maxHead returns the maximum size in bytes of the headers of a response from an application or an HTTPEndpoint. It is
// MaxHeaderSize, but at least atmostonce.DefaultMaxHead. As in Dapr, MaxHeaderSize applies to requests and responses
// alike.
func (a API) maxHead() int64 { return max(a.MaxHeaderSize, atmostonce.DefaultMaxHead) }

func (a API) withDefaults() API {
	if len(a.Listen) == 0 {
		a.Listen = []string{"127.0.0.1"}
	}
	a.HTTP = a.HTTP.or(3500)
	a.GRPC = a.GRPC.or(50001)
	a.MaxBodySize = cmp.Or(a.MaxBodySize, 4<<20)
	a.MaxHeaderSize = cmp.Or(a.MaxHeaderSize, 4<<10)
	a.RequestTimeout = cmp.Or(a.RequestTimeout, 10*time.Second)
	return a
}

// withDefaults returns c with defaults for unset fields. The parameter secured is true if there is a cluster token.
//
// The default ports are Given if other nodes may rely on them. This is the case if an address to listen on, nodes to
// join, or a cluster token is set.
func (c Cluster) withDefaults(secured bool) Cluster {
	clustered := c.Bind != "" || c.joining() || secured
	for port, n := range map[*Port]int{&c.Gossip: network.DefaultGossipPort, &c.Peer: network.DefaultPeerPort} {
		if *port == (Port{}) {
			*port = Port{Number: n, Given: clustered}
		}
	}
	c.Name = cmp.Or(c.Name, "default")
	c.Role = cmp.Or(c.Role, RoleServer)
	c.Voters = cmp.Or(c.Voters, defaultVoters)
	c.Bind = cmp.Or(c.Bind, c.defaultBind())
	return c
}

// defaultBind returns the default address to listen on. It is a loopback address in two cases:
//
//   - This node joins no other nodes.
//   - All nodes to join are on this machine, and this node advertises no address that other machines can reach.
//
// Otherwise it is 0.0.0.0.
func (c Cluster) defaultBind() string {
	if a := c.Advertise; c.joining() && a != "" && !listen.IsLoopback(a) {
		return "0.0.0.0"
	}
	six := c.joining()
	for _, seed := range c.Join {
		host := discovery.SeedHost(seed)
		if !listen.IsLoopback(host) {
			return "0.0.0.0"
		}
		six = six && strings.Contains(host, ":")
	}
	if six {
		return "::1"
	}
	return "127.0.0.1"
}

// withDefaults returns d with defaults for unset fields. The defaults of c must already be set. If the settings
// determine no data directory, Dir stays empty, which Validate reports.
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
