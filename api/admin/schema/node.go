package schema

import "time"

// NodeStatus is the full status of a node at one moment.
type NodeStatus struct {
	Node     NodeIdentity   `json:"node"`
	Security SecurityStatus `json:"security"`
	Ready    bool           `json:"ready"` // the start is complete, and every store and group serves reads and writes
	Issues   []Issue        `json:"issues"`
	Notes    []Issue        `json:"notes"`  // unwanted differences between nodes; everything still works
	Groups   []GroupStatus  `json:"groups"` // in order of their ids
	Stores   []StoreStatus  `json:"stores"` // in order of their names
	Backup   *BackupStatus  `json:"backup,omitempty"`
	Disk     *DiskStatus    `json:"disk,omitempty"` // nil on a node without data
}

// DiskStatus is the free space on the disk of the data directory, in bytes.
type DiskStatus struct {
	FreeBytes    int64 `json:"freeBytes"`
	ReserveBytes int64 `json:"reserveBytes"` // with less free space, the node does not lead
	Low          bool  `json:"low"`          // free space fell below the reserve and has not recovered enough
}

// SecurityStatus says how traffic between nodes is secured.
type SecurityStatus struct {
	Nodes string `json:"nodes"` // token, certificates or none
	// fingerprints of cluster tokens: the first is used, the second is also accepted
	Tokens          []string   `json:"tokens,omitempty"`
	CertificateEnds *time.Time `json:"certificateEnds,omitempty"`
}

// Issue is one problem of a node.
type Issue struct {
	About  string `json:"about"`  // such as "group 0", "store orders", "application port"
	Reason string `json:"reason"` // what is wrong and, if known, how to fix it
}

// NodeIdentity identifies the answering node.
type NodeIdentity struct {
	ID         string      `json:"id"`       // persistent
	ServerID   string      `json:"serverId"` // id of the data directory: changes when the disk is wiped
	Cluster    string      `json:"cluster"`
	ClusterID  string      `json:"clusterId"`       // made when the cluster was formed; empty before
	Epoch      uint64      `json:"epoch,omitempty"` // epoch of the cluster; each rescue raises it
	Role       string      `json:"role"`            // server or sidecar
	Version    string      `json:"version"`
	Started    time.Time   `json:"started"`
	UptimeMS   int64       `json:"uptimeMs"`
	DataDir    string      `json:"dataDir"`
	LogStore   string      `json:"logStore"`
	Partitions int         `json:"partitions"`
	Apps       []AppStatus `json:"apps"`
	Metrics    string      `json:"metrics,omitempty"` // host:port; empty = off
	Gossip     string      `json:"gossip,omitempty"`  // host:port advertised to other nodes, for --join
	Peer       string      `json:"peer,omitempty"`    // host:port for replication and forwarding
	Front      *FrontNode  `json:"front,omitempty"`   // nil = the node itself serves applications
}

// FrontNode describes the front node of a process that has two nodes. The front node serves the applications. The other
// node serves none, and only holds the data directory that the nodes of one user share. The status of the other node
// contains the FrontNode. Both nodes have the same components.
type FrontNode struct {
	DataDir string   `json:"dataDir"` // for commands to that node, with --data-dir
	Apps    []string `json:"apps"`    // ids of the applications
}

// AppStatus is one application the node serves.
type AppStatus struct {
	ID        string   `json:"id"`
	Namespace string   `json:"namespace,omitempty"`
	API       []string `json:"api"`            // host:port of its HTTP listeners
	GRPC      []string `json:"grpc,omitempty"` // host:port of its gRPC listeners
}

// GroupStatus is one replication group as this node sees it.
type GroupStatus struct {
	ID uint64 `json:"id"`
	// leader, follower, candidate or shutdown; routed on a sidecar, which holds no replica
	State         string `json:"state"`
	Leader        string `json:"leader"` // node id; empty = none known
	Term          uint64 `json:"term"`
	CommitIndex   uint64 `json:"commitIndex"`
	AppliedIndex  uint64 `json:"appliedIndex"`
	LastLogIndex  uint64 `json:"lastLogIndex"`
	SnapshotIndex uint64 `json:"snapshotIndex"` // 0 = no snapshot yet
	Keys          uint64 `json:"keys"`
	DiskBytes     int64  `json:"diskBytes"` // size of the data, without the log
	LogBytes      int64  `json:"logBytes"`
	ReadOnly      bool   `json:"readOnly"`
	Reads         bool   `json:"reads"`            // reads work now
	Writes        bool   `json:"writes"`           // writes work now
	Reason        string `json:"reason,omitempty"` // why reads or writes do not work

	Nearest         string `json:"nearest,omitempty"`         // on a sidecar: node to which eventual reads go
	RoundTripMicros int64  `json:"roundTripMicros,omitempty"` // round-trip time to Nearest

	Servers []ServerStatus `json:"servers"` // the group's members, by node id
}

// ServerStatus is one member of a group. Only the leader of the group knows Lag and Reason.
type ServerStatus struct {
	Node     string `json:"node"` // node id
	ServerID string `json:"serverId"`
	Voter    bool   `json:"voter"`
	// alive, left, failed, replaced (its node has another data directory now) or unknown, as the answering node sees
	// it
	State  string  `json:"state,omitempty"`
	Lag    *uint64 `json:"lag,omitempty"`    // log entries behind the leader
	Reason string  `json:"reason,omitempty"` // why the server votes or does not
}

// MemberStatus describes one node of the cluster, as seen by the node that answers the request. Addresses and counts
// are the latest that the described node has reported.
type MemberStatus struct {
	Node      string    `json:"node"`               // node id
	ServerID  string    `json:"serverId,omitempty"` // id of the data directory; empty for a node without data
	Role      string    `json:"role"`               // server or sidecar
	State     string    `json:"state"`              // alive, left or failed
	Since     time.Time `json:"since"`              // when the answering node saw it enter State
	Peer      string    `json:"peer"`               // host:port for replication and forwarding
	Gossip    string    `json:"gossip"`             // host:port
	ClusterID string    `json:"clusterId"`          // empty while the node belongs to no cluster
	Version   string    `json:"version"`
	Leads     uint32    `json:"leads"` // number of groups that the node leads
	Self      bool      `json:"self"`  // this is the node that answers
}

// AppInstance is one application on one node, as the node that answers knows it.
type AppInstance struct {
	App       string `json:"app"`
	Namespace string `json:"namespace,omitempty"` // empty = the default one
	Node      string `json:"node"`                // node id
	Boot      string `json:"boot,omitempty"`      // names one incarnation of the node, from start to exit
	Protocol  string `json:"protocol,omitempty"`  // protocol of calls to the instance; empty = no calls
	// healthy or unhealthy, as its node reports; demoted after failed calls from the answering node; or uncalled
	State string `json:"state"`
	// as its node reports: 0 is idle, one more for each doubling of calls in flight
	Load  int   `json:"load"`
	Calls int64 `json:"calls"` // calls in flight from the answering node
	Self  bool  `json:"self"`  // the instance is on the node that answers
}

// TransferRequest asks the leader of a group to transfer leadership.
type TransferRequest struct {
	To string `json:"to"` // node id of a voter; empty = the voter that is furthest ahead
}

// TransferResult names the previous and the current leader of a group.
type TransferResult struct {
	Group  uint64 `json:"group"`
	From   string `json:"from"`   // node id
	Leader string `json:"leader"` // node id; empty = none is known yet
}

// Comparison is the result of a comparison of the replicas of a group.
type Comparison struct {
	Group    uint64          `json:"group"`
	Index    uint64          `json:"index"`    // log entry after which the states are compared
	Majority string          `json:"majority"` // hash that more than half of the voters have; empty = there is none
	Replicas []ReplicaDigest `json:"replicas"` // by node id
}

// ReplicaDigest is the state of one replica in a Comparison.
type ReplicaDigest struct {
	Node   string `json:"node"`
	Voter  bool   `json:"voter"`
	Digest string `json:"digest,omitempty"` // hash of the state; empty = not known, see Reason
	Reason string `json:"reason,omitempty"`
}

// VotersRequest asks for another number of voters.
type VotersRequest struct {
	Voters int `json:"voters"` // number of voters of each group
}

// VotersStatus describes the configured number of voters per group, and the servers that vote now.
type VotersStatus struct {
	Voters int           `json:"voters"`
	Before int           `json:"before,omitempty"` // the previous number; 0 = none was recorded
	Groups []VotersGroup `json:"groups"`           // as the answering node knows them; empty on a node without data
}

// VotersGroup are the servers of one group, by node id.
type VotersGroup struct {
	Group     uint64   `json:"group"`
	Voters    []string `json:"voters"`
	NonVoters []string `json:"nonVoters"`
	// the states of servers that are not alive, by node id: left, failed, replaced or unknown
	States map[string]string `json:"states,omitempty"`
}

// ConsoleLink is a link that signs one browser in to the web console.
type ConsoleLink struct {
	URL     string    `json:"url"`
	Expires time.Time `json:"expires"`
}

// RemoveRequest names a server to remove permanently.
type RemoveRequest struct {
	Target string `json:"target"` // node id or server id
}

// RemoveResult reports the progress of a removal, which continues in the background.
type RemoveResult struct {
	Node     string        `json:"node"`
	ServerID string        `json:"serverId,omitempty"` // empty for a node without data
	Done     bool          `json:"done"`               // the server is in no group any more
	Groups   []RemoveGroup `json:"groups"`
}

// RemoveGroup is one group of a RemoveResult.
type RemoveGroup struct {
	Group  uint64 `json:"group"`
	Done   bool   `json:"done"`
	Reason string `json:"reason,omitempty"` // why the removal is not done
}

// CheckLevel is the outcome of one check of the doctor.
type CheckLevel string

// The outcomes.
const (
	CheckOK   CheckLevel = "ok"
	CheckWarn CheckLevel = "warn" // works, but may fail soon
	CheckFail CheckLevel = "fail"
)

// CheckResult is one check of the doctor.
type CheckResult struct {
	Check string     `json:"check"`           // such as "disk sync", "peer port"
	About string     `json:"about,omitempty"` // what was checked, such as a node or a directory
	Level CheckLevel `json:"level"`
	Text  string     `json:"text"`          // what was found
	Fix   string     `json:"fix,omitempty"` // how to fix the problem
}

// Checkup has the results of all checks of the doctor.
type Checkup struct {
	Node   string        `json:"node,omitempty"` // empty where no node runs
	Checks []CheckResult `json:"checks"`
}

// Worst returns the worst outcome of all checks.
func (c Checkup) Worst() CheckLevel {
	worst := CheckOK
	for _, r := range c.Checks {
		if r.Level == CheckFail || r.Level == CheckWarn && worst == CheckOK {
			worst = r.Level
		}
	}
	return worst
}

// StoreStatus is one state store.
type StoreStatus struct {
	Name               string   `json:"name"`
	Type               string   `json:"type"`
	Version            string   `json:"version"`
	Ready              bool     `json:"ready"`
	Reason             string   `json:"reason,omitempty"` // why the store is not ready
	Capabilities       []string `json:"capabilities"`     // such as ETAG, TRANSACTIONAL, TTL
	KeyPrefix          string   `json:"keyPrefix"`
	DefaultConsistency string   `json:"defaultConsistency"`
	DefaultTTLSeconds  int64    `json:"defaultTTLSeconds,omitempty"`
	MaxValueSize       int64    `json:"maxValueSize,omitempty"`
	ActorStore         bool     `json:"actorStateStore,omitempty"`
	Scopes             []string `json:"scopes,omitempty"` // app ids that may use the store; empty = all
}
