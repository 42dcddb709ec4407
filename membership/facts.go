package membership

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
)

// Role is whether a node stores data.
type Role uint8

// The roles.
const (
	Server  Role = iota + 1 // holds replicas
	Sidecar                 // holds none, and routes to servers
)

// String returns the name of the role in flags and metrics.
func (r Role) String() string {
	switch r {
	case Server:
		return "server"
	case Sidecar:
		return "sidecar"
	default:
		return fmt.Sprintf("role(%d)", uint8(r))
	}
}

// Facts are what a node reports about itself to the other nodes. Their encoding has at most memberlist.MetaMaxSize
// (512) bytes.
type Facts struct {
	NodeID          string // letters, digits, '-', '_' and '.', at most 128; outlives restarts
	ServerID        string // node id, a dot, and the random id of the data directory; empty for a sidecar
	BootID          string // id of this run, see NewBootID; if it is empty in Options, Open makes one
	Role            Role
	PeerAddr        string // host:port of the peer port (raft and calls between nodes)
	ClusterID       string // empty while the node belongs to no cluster
	Epoch           uint32 // epoch of the cluster; each rescue raises it
	Partitions      uint32 // number of partitions; 0 = the node adopts that of the cluster
	BootstrapExpect uint32 // 0 = does not form a cluster
	Format          uint32 // format of log entries that is needed to read its data; 0 = no data
	NewestFormat    uint32 // newest format of log entries that the node understands
	Voters          uint32 // --voters: number of voters for the groups that the node leads; 0 = unknown
	Leads           uint32 // number of groups that the node leads
	DiskSlow        bool   // the disk of the node delays writes
	DiskLow         bool   // the disk of the node has less free space than --min-free-disk
	Version         string // version of the program
	MetricsAddr     string // host:port where Prometheus reads its metrics; empty = it serves none
}

// maxNodeID is the maximum length of a node id in bytes. bootIDLen is the length of a boot id in bytes: 11 hexadecimal
// digits for the start time and 8 random hexadecimal digits.
const (
	maxNodeID = 128
	bootIDLen = 11 + 8
)

// NewBootID returns a boot id for a process that starts now: the time in milliseconds and a random part, both in
// hexadecimal. Boot ids of later processes sort after earlier ones, unless the clock was set back.
func NewBootID() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: it aborts the program instead
	return fmt.Sprintf("%011x%s", time.Now().UnixMilli(), hex.EncodeToString(b[:]))
}

// Name returns the gossip name of this incarnation of the node.
func (f *Facts) Name() string { return f.NodeID + "/" + f.BootID }

// check returns an error for facts that are invalid or cannot be encoded.
func (f *Facts) check() error {
	switch {
	case !isNodeID(f.NodeID):
		return invalid("node id %.150q: use letters, digits, -, _ and ., at most %d, and start with a letter "+
			"or a digit", f.NodeID, maxNodeID)
	case !isBootID(f.BootID):
		return invalid("boot id %.150q: %d hexadecimal digits are wanted", f.BootID, bootIDLen)
	case f.Role != Server && f.Role != Sidecar:
		return invalid("node %s has no role", f.NodeID)
	case (f.Role == Server) != (f.ServerID != ""):
		return invalid("node %s is a %s with server id %.150q: servers have one, sidecars have none", f.NodeID,
			f.Role, f.ServerID)
	case f.ServerID != "" && f.disk() == "":
		return invalid("server id %.150q: it is node id %.150q, a dot, and the id of the data directory", f.ServerID,
			f.NodeID)
	}
	return f.checkValues()
}

func (f *Facts) checkValues() error {
	if !isHostPort(f.PeerAddr) {
		return invalid("peer address %.150q of node %s: host:port is wanted", f.PeerAddr, f.NodeID)
	}
	if err := f.checkMetrics(); err != nil {
		return err
	}
	if len(f.ClusterID) > maxClusterID {
		return invalid("cluster id %.150q of node %s: at most %d bytes are allowed", f.ClusterID, f.NodeID,
			maxClusterID)
	}
	return nil
}

func (f *Facts) checkMetrics() error {
	if f.MetricsAddr != "" && !isHostPort(f.MetricsAddr) {
		return invalid("metrics address %.150q of node %s: host:port is wanted", f.MetricsAddr, f.NodeID)
	}
	return nil
}

// isHostPort reports whether s is host:port.
func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && n != 0 && host != ""
}

// disk returns the id of the data directory: the part of the server id after the node id and a dot. It returns "" if
// the server id has another form.
func (f *Facts) disk() string {
	disk, ok := strings.CutPrefix(f.ServerID, f.NodeID+".")
	if !ok || strings.Contains(disk, ".") {
		return ""
	}
	return disk
}

// fits returns fault.TooLarge if the encoded facts could become too long for gossip. Some facts, such as Leads and
// ClusterID, change while the node runs. For these facts, fits assumes the longest possible values.
func (f *Facts) fits() error {
	longest := *f
	longest.Leads, longest.DiskSlow, longest.Epoch, longest.Format = 1<<32-1, true, 1<<32-1, 1<<8-1
	longest.Voters = 1<<32 - 1
	longest.ClusterID += strings.Repeat("x", max(0, maxClusterID-len(f.ClusterID)))
	if n := len(longest.encode()); n > memberlist.MetaMaxSize {
		return &fault.Error{Code: fault.TooLarge, Op: "membership.Facts",
			Msg: fmt.Sprintf("the facts of node %s take up to %d bytes, and gossip allows %d", f.NodeID, n,
				memberlist.MetaMaxSize),
			Hint: fmt.Sprintf("shorten the peer address (%d bytes), the version (%d) or the server id (%d)",
				len(f.PeerAddr), len(f.Version), len(f.ServerID))}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, "membership.Facts", fmt.Sprintf(format, args...))
}

func isNodeID(s string) bool {
	return s != "" && len(s) <= maxNodeID && madeOf(s, "-_.") && madeOf(s[:1], "")
}

func isBootID(s string) bool {
	return len(s) == bootIDLen && strings.Trim(s, "0123456789abcdef") == ""
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
