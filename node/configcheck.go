package node

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/raftfsm/placement"
)

// maxName is the maximum length of ids and names in bytes. It is limited because ids and names become parts of
// directory names, metric labels and gossip messages.
const maxName = 128

// maxHeaderSize is the largest --read-buffer-size in bytes. Each connection may use that much memory.
const maxHeaderSize = 16 << 20

// problems collects the errors of a Config. Each error is a fault.Invalid that names the flag and its value, and says
// how to correct the value.
type problems []error

func (p *problems) add(flag string, value any, hint string) {
	msg := fmt.Sprintf("%s %q is refused", flag, fmt.Sprint(value))
	*p = append(*p, &fault.Error{Code: fault.Invalid, Op: "node.Config", Msg: msg, Hint: hint})
}

// check adds a problem if ok is false.
func (p *problems) check(ok bool, flag string, value any, hint string) {
	if !ok {
		p.add(flag, value, hint)
	}
}

func (p *problems) between(flag string, n, low, high int) {
	p.check(n >= low && n <= high, flag, n, fmt.Sprintf("give a number from %d to %d", low, high))
}

func (p *problems) port(flag string, port Port) {
	p.check(port.Number >= 0 && port.Number <= 65535, flag, port.Number,
		"give a port from 0 to 65535; 0 picks a free one")
}

func (p *problems) positive(flag string, d time.Duration) {
	p.check(d > 0, flag, d, "give a duration above zero, as 10s or 500ms")
}

func (p *problems) host(flag, host string) {
	p.check(isHost(host), flag, host, "give an IP address of this machine, or localhost")
}

// oneOf adds a problem unless value is in set.
func oneOf[T ~string](p *problems, flag string, value T, set ...T) {
	if slices.Contains(set, value) {
		return
	}
	words := make([]string, len(set))
	for i, s := range set {
		words[i] = string(s)
	}
	p.add(flag, value, "give one of "+strings.Join(words, ", "))
}

// Validate returns all problems of a Config, joined by errors.Join, or nil if there are none. It does no I/O. Call
// WithDefaults first.
func (c Config) Validate() error {
	var p problems
	if c.Namespace != "" {
		p.check(isID(c.Namespace), "--namespace", c.Namespace, idRule)
	}
	c.App.validate(&p, "--app-")
	c.API.validate(&p)
	c.Metrics.validate(&p)
	c.validateData(&p)
	c.Backup.validate(&p, c.Cluster.sidecar())
	c.Cluster.validate(&p)
	c.validateApps(&p)
	c.validatePorts(&p)
	c.validateExposure(&p)
	c.Security.validate(&p)
	p.check(c.Grace >= 0, "--graceful-shutdown-seconds", int64(c.Grace/time.Second),
		"give a number of seconds, 0 or more")
	return errors.Join(p...)
}

// validate checks the settings of an application and adds the problems to p. The parameter prefix is the beginning of
// the setting names in the error messages. For command-line flags, it is "--app-".
func (a App) validate(p *problems, prefix string) {
	p.check(isID(a.ID), prefix+"id", a.ID, idRule)
	p.between(prefix+"port", a.Port, 0, 65535)
	oneOf(p, prefix+"protocol", a.Protocol, Protocols()...)
	p.check(strings.HasPrefix(a.Health.Path, "/"), prefix+"health-check-path", a.Health.Path, "start it with /")
	p.positive(prefix+"binding-options-timeout", a.OptionsTimeout)
	for _, word := range a.InitOff {
		oneOf(p, "--disable-init-endpoints", word, InitConfig, InitSubscribe)
	}
	p.positive(prefix+"health-probe-interval", a.Health.Interval)
	p.positive(prefix+"health-probe-timeout", a.Health.Timeout)
	p.check(a.Health.Timeout <= a.Health.Interval, prefix+"health-probe-timeout", a.Health.Timeout,
		"give at most "+prefix+"health-probe-interval")
	p.between(prefix+"health-threshold", a.Health.Threshold, 1, 1000)
}

func (a API) validate(p *problems) {
	for _, h := range a.Listen {
		p.host("--listen-address", h)
	}
	p.port("--http-port", a.HTTP)
	p.port("--grpc-port", a.GRPC)
	p.port("--health-port", a.Health)
	if a.HealthListen != "" {
		p.host("--health-listen-address", a.HealthListen)
	}
	p.check(a.MaxHeaderSize >= 1 && a.MaxHeaderSize <= maxHeaderSize, "--read-buffer-size", a.MaxHeaderSize,
		fmt.Sprintf("give a size from 1 byte to %d MiB", maxHeaderSize>>20))
	p.positive("--request-timeout", a.RequestTimeout)
	for _, o := range a.AllowedOrigins {
		p.check(isOrigin(o), "--allowed-origins", o, `give origins as https://app.example.com, or "*"`)
	}
}

func (m Metrics) validate(p *problems) {
	p.host("--metrics-listen-address", m.Listen)
	p.port("--metrics-port", m.Port)
}

func (c Config) validateData(p *problems) {
	p.check(c.MemoryLimit == 0 || c.MemoryLimit >= MinMemory, "--memory-limit", strconv.FormatInt(c.MemoryLimit, 10),
		fmt.Sprintf("give a size of at least %d MiB, such as 512Mi", MinMemory>>20))
	if c.Data.LogStore != "" {
		oneOf(p, "--log-store", c.Data.LogStore, LogStoreBolt, LogStoreWAL)
	}
	if least, because := c.Data.leastFree(); !c.Data.AnyMinFree && !c.Cluster.sidecar() {
		p.check(c.Data.MinFree >= least, "--min-free-disk", strconv.FormatInt(c.Data.MinFree, 10),
			fmt.Sprintf("give at least %dMi: %s", least>>20, because))
	}
	switch d := c.Data; {
	case d.Dir != "":
	case d.StateDir == "":
		p.add("--data-dir", d.Dir, "neither HOME nor XDG_STATE_HOME says where state is kept: name a "+
			"directory on a durable disk")
	default:
		p.add("--node-id", c.Cluster.NodeID, "with --join the data directory is named after it, and the name "+
			"of this machine cannot be used: give one, or give --data-dir")
	}
}

// leastFree returns the smallest permitted value of MinFree in bytes, and the reason for it. The files of the node grow
// even while the node refuses new values, because the log store allocates space in large steps and memtables are
// written in the background. With a smaller MinFree, this growth could fill the disk.
func (d Data) leastFree() (size int64, because string) {
	if d.LogStore == LogStoreBolt {
		return 32 << 20, "the log grows by 16 MiB at once, and the database is written in the background"
	}
	return 128 << 20, "the log needs 64 MiB for its next segment, and the database is written in the background; " +
		"--log-store boltdb needs 32Mi"
}

func (b Backup) validate(p *problems, sidecar bool) {
	if !b.enabled() {
		p.check(reflect.DeepEqual(b, Backup{}), "backup", "", "give a directory or a command that stores the backups")
		return
	}
	p.check(!sidecar, "backup", b.Directory, "leave it out with --role sidecar: only servers write backups")
	p.check(b.Directory == "" || len(b.Command) == 0, "backup: command", strings.Join(b.Command, " "),
		"give either a directory or a command")
	p.check(b.Directory == "" || filepath.IsAbs(b.Directory), "backup: directory", b.Directory, absoluteRule)
	p.check(b.KeyFile == "" || filepath.IsAbs(b.KeyFile), "backup: keyFile", b.KeyFile, absoluteRule)
	p.check(b.Every >= time.Second, "backup: every", b.Every, "give a duration of at least a second, such as 6h")
	p.check(b.Keep >= 1, "backup: keep", b.Keep, "give a number of at least 1")
}

// absoluteRule is a hint for paths.
const absoluteRule = "give an absolute path"

func (c Cluster) validate(p *problems) {
	p.check(isName(c.Name), "--cluster", c.Name, nameRule)
	if c.NodeID != "" {
		p.check(isName(c.NodeID), "--node-id", c.NodeID, nameRule)
		p.check(c.NodeID != sharedDir, "--node-id", c.NodeID, "this name is reserved: choose another")
	}
	oneOf(p, "--role", c.Role, RoleServer, RoleSidecar)
	c.validateRole(p)
	if why, hint := placement.CheckVoters(c.Voters); why != "" {
		p.add("--voters", c.Voters, why+": "+hint)
	} else if c.Voters > defaultVoters && !c.joining() && !c.sidecar() {
		p.add("--voters", c.Voters, fmt.Sprintf("without --join this node is a cluster of one: leave --voters out, "+
			"let the other servers join, and run quorate voters %d", c.Voters))
	}
	p.check(c.Partitions >= 0 && c.Partitions <= MaxPartitions, "--partitions", c.Partitions,
		fmt.Sprintf("give a number from 1 to %d", MaxPartitions))
	p.between("--bootstrap-expect", c.BootstrapExpect, 0, 99)
	p.check(c.BootstrapExpect <= 1 || c.joining() || c.sidecar(), "--bootstrap-expect", c.BootstrapExpect,
		"without --join this node would form a cluster of its own, whose data cannot be taken to another: name the "+
			"servers with --join, the same on each of them")
	p.host("--bind-address", c.Bind)
	p.port("--gossip-port", c.Gossip)
	p.port("--peer-port", c.Peer)
}

func (c Config) validateApps(p *problems) {
	seen := map[string]bool{c.App.ID: true}
	for _, a := range c.Apps {
		a.validate(p, "apps: ")
		p.port("apps: httpPort", a.HTTPPort)
		p.port("apps: grpcPort", a.GRPCPort)
		p.check(a.HTTPPort.Given || a.HTTPPort.Number != 0, "apps: httpPort of "+a.ID, "",
			"give the port of its API: the port is the application's identity; 0 picks a free one")
		p.check(!seen[a.ID], "apps: id", a.ID, "give each application an id of its own")
		seen[a.ID] = true
	}
}

// validatePorts adds a problem for each port that is used twice, either by two listeners or by a listener and an
// application on this machine. It does not check the gossip port, the peer port and the console port.
func (c Config) validatePorts(p *problems) {
	seen := map[int]string{}
	claim := func(flag string, n int) {
		if other, taken := seen[n]; taken {
			p.add(flag, n, other+" has the same port: choose another")
		}
		if n != 0 {
			seen[n] = flag
		}
	}
	if c.API.SocketDir == "" {
		claim("--http-port", c.API.HTTP.Number)
		if !c.API.GRPCOff {
			claim("--grpc-port", c.API.GRPC.Number)
		}
	}
	if c.App.Port != 0 && listen.IsLoopback(c.App.Address) {
		claim("--app-port", c.App.Port)
	}
	if c.API.Health.Given {
		claim("--health-port", c.API.Health.Number)
	}
	if c.Metrics.Port.Given && !c.Metrics.Off {
		claim("--metrics-port", c.Metrics.Port.Number)
	}
	for _, a := range c.Apps {
		claim("apps: httpPort", a.HTTPPort.Number)
		if port, _, on := c.grpcPort(false, a); on {
			claim("apps: grpcPort", port.Number)
		}
		if a.Port != 0 && listen.IsLoopback(a.Address) {
			claim("apps: port", a.Port)
		}
	}
}

// validate adds a problem if only some of the three certificate files are set, or if they are set without a cluster
// token.
func (s Security) validate(p *problems) {
	files := []string{s.ClusterCertFile, s.ClusterKeyFile, s.ClusterCAFile}
	given := 0
	for _, f := range files {
		if f != "" {
			given++
		}
	}
	if given == 0 {
		return
	}
	for i, flag := range []string{"--cluster-cert-file", "--cluster-key-file", "--cluster-ca-file"} {
		p.check(files[i] != "", flag, files[i], "--cluster-cert-file, --cluster-key-file and "+
			"--cluster-ca-file belong together: give all three")
	}
	p.check(s.ClusterTokenFile != "", "--cluster-cert-file", s.ClusterCertFile,
		"certificates secure connections, but gossip packets need a key that all nodes share: give "+
			"--cluster-token-file too (quorate token create makes one)")
}

// validateExposure refuses listeners that other machines can reach without credentials.
func (c Config) validateExposure(p *problems) {
	if c.Security.Insecure {
		return
	}
	tokens := len(c.Security.APITokens) > 0
	for _, h := range c.API.Listen {
		p.check(tokens || listen.IsLoopback(h) || !isHost(h), "--listen-address", h,
			"others could read and write all state: set DAPR_API_TOKEN or --api-token-file, or say --insecure")
	}
	p.check(c.Security.secured() || listen.IsLoopback(c.Cluster.Bind) || !isHost(c.Cluster.Bind), "--bind-address",
		c.Cluster.Bind,
		"others could join the cluster: give every node the same --cluster-token-file (quorate token create "+
			"makes one), or say --insecure if only trusted hosts can reach it")
}

// Hints for isID and isName.
const (
	idRule   = "use letters, digits, - and _, at most 128"
	nameRule = "use letters, digits, -, _ and ., at most 128, and start with a letter or a digit"
)

// isID reports whether s is valid as an id in stored keys. A dot is not permitted, because stored keys have a dot
// between an id and its namespace.
func isID(s string) bool { return s != "" && len(s) <= maxName && madeOf(s, "-_") }

// isName reports whether s may become a directory name.
func isName(s string) bool {
	return s != "" && len(s) <= maxName && madeOf(s, "-_.") && madeOf(s[:1], "")
}

// madeOf reports whether s consists only of ASCII letters, digits and some extra characters, which the parameter also
// contains.
func madeOf(s, also string) bool {
	for _, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && !strings.ContainsRune(also, r) {
			return false
		}
	}
	return true
}

func isHost(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil || s == "localhost"
}

func isOrigin(s string) bool {
	if s == "*" {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && s == u.Scheme+"://"+u.Host
}
