package api

import "time"

// The types of the admin API: what an operator sees of a node. They say nothing about how
// data is replicated, and their JSON names never change; programs read them.

// NodeStatus is everything a node tells about itself at one moment.
type NodeStatus struct {
	Node   NodeIdentity  `json:"node"`
	Ready  bool          `json:"ready"` // the start is complete, and every store and group serves reads and writes
	Issues []Issue       `json:"issues"`
	Groups []GroupStatus `json:"groups"` // in order of their ids
	Stores []StoreStatus `json:"stores"` // in order of their names
}

// Issue is something that is not as it should be.
type Issue struct {
	About  string `json:"about"`  // such as "group 0", "store orders", "application port"
	Reason string `json:"reason"` // what is wrong and, where it is known, how to mend it
}

// NodeIdentity says which node answers.
type NodeIdentity struct {
	ID         string      `json:"id"`       // persistent
	ServerID   string      `json:"serverId"` // of this data directory: another after the disk was wiped
	Cluster    string      `json:"cluster"`
	ClusterID  string      `json:"clusterId"` // made when the cluster was formed; empty before
	Role       string      `json:"role"`      // server or sidecar
	Version    string      `json:"version"`
	Started    time.Time   `json:"started"`
	UptimeMS   int64       `json:"uptimeMs"`
	DataDir    string      `json:"dataDir"`
	LogStore   string      `json:"logStore"`
	Partitions int         `json:"partitions"`
	Apps       []AppStatus `json:"apps"`
	Metrics    string      `json:"metrics,omitempty"` // host:port; empty = off
	Gossip     string      `json:"gossip,omitempty"`  // host:port that other nodes are told, to --join
	Peer       string      `json:"peer,omitempty"`    // host:port for replication and forwarding
}

// AppStatus is one application the node serves.
type AppStatus struct {
	ID        string   `json:"id"`
	Namespace string   `json:"namespace,omitempty"`
	API       []string `json:"api"` // host:port of its HTTP listeners
}

// GroupStatus is one replication group as this node sees it.
type GroupStatus struct {
	ID            uint64 `json:"id"`
	State         string `json:"state"`  // leader, follower, candidate or stopped
	Leader        string `json:"leader"` // node id; empty = none known
	Term          uint64 `json:"term"`
	CommitIndex   uint64 `json:"commitIndex"`
	AppliedIndex  uint64 `json:"appliedIndex"`
	LastLogIndex  uint64 `json:"lastLogIndex"`
	SnapshotIndex uint64 `json:"snapshotIndex"` // 0 = no snapshot yet
	Keys          uint64 `json:"keys"`
	DiskBytes     int64  `json:"diskBytes"` // of the data, without the log
	LogBytes      int64  `json:"logBytes"`
	ReadOnly      bool   `json:"readOnly"`
	Reads         bool   `json:"reads"`            // reads work now
	Writes        bool   `json:"writes"`           // writes work now
	Reason        string `json:"reason,omitempty"` // why one of them does not

	Servers []ServerStatus `json:"servers"` // the group's members, by node id
}

// ServerStatus is one member of a group. Lag and reason are known to the group's leader.
type ServerStatus struct {
	Node     string  `json:"node"` // node id
	ServerID string  `json:"serverId"`
	Voter    bool    `json:"voter"`
	Lag      *uint64 `json:"lag,omitempty"`    // log entries behind the leader
	Reason   string  `json:"reason,omitempty"` // why it votes or does not
}

// MemberStatus is one node of the cluster as the node that answers knows it. The address
// and the counts are those the member told last.
type MemberStatus struct {
	Node      string    `json:"node"`               // node id
	ServerID  string    `json:"serverId,omitempty"` // of its data directory; empty for a node without data
	Role      string    `json:"role"`               // server or sidecar
	State     string    `json:"state"`              // alive, left or failed
	Since     time.Time `json:"since"`              // when the answering node saw it enter State
	Peer      string    `json:"peer"`               // host:port for replication and forwarding
	Gossip    string    `json:"gossip"`             // host:port
	ClusterID string    `json:"clusterId"`          // empty while it belongs to no cluster
	Version   string    `json:"version"`
	Leads     uint32    `json:"leads"` // number of groups
	Self      bool      `json:"self"`  // it is the node that answers
}

// TransferRequest asks the leader of a group to hand leadership over.
type TransferRequest struct {
	To string `json:"to"` // node id of a voter; empty = the voter that is furthest ahead
}

// TransferResult says who led a group before and who leads it now.
type TransferResult struct {
	Group  uint64 `json:"group"`
	From   string `json:"from"`   // node id
	Leader string `json:"leader"` // node id; empty = none is known yet
}

// StoreStatus is one state store.
type StoreStatus struct {
	Name               string   `json:"name"`
	Type               string   `json:"type"`
	Version            string   `json:"version"`
	Ready              bool     `json:"ready"`
	Reason             string   `json:"reason,omitempty"` // why it is not ready
	Capabilities       []string `json:"capabilities"`     // such as ETAG, TRANSACTIONAL, TTL
	KeyPrefix          string   `json:"keyPrefix"`
	DefaultConsistency string   `json:"defaultConsistency"`
	DefaultTTLSeconds  int64    `json:"defaultTTLSeconds,omitempty"`
	MaxValueSize       int64    `json:"maxValueSize,omitempty"`
	ActorStore         bool     `json:"actorStateStore,omitempty"`
	Scopes             []string `json:"scopes,omitempty"` // app ids that may use it; empty = all
}
