package schema

import "time"

// The types of the admin API for backups and rescue.

// RestoreResult describes the data that a restore has installed.
type RestoreResult struct {
	Created   time.Time `json:"created"`   // of the backup
	ClusterID string    `json:"clusterId"` // that was backed up
	Groups    int       `json:"groups"`
	Keys      uint64    `json:"keys"`
	Bytes     uint64    `json:"bytes"` // of the groups in the backup
}

// RescueReport describes the cluster state on a stopped server, before or after a rescue.
type RescueReport struct {
	Node      string `json:"node"`
	ServerID  string `json:"serverId"`
	DataDir   string `json:"dataDir"`
	ClusterID string `json:"clusterId"`
	Epoch     uint64 `json:"epoch"`     // of the cluster: another after each rescue
	Alone     bool   `json:"alone"`     // it is the only voter of every group
	BrokenOff bool   `json:"brokenOff"` // a rescue of this directory has not finished
	// the cluster was rescued on another server: a second rescue makes a second cluster
	LeftBehind bool          `json:"leftBehind,omitempty"`
	Rescued    bool          `json:"rescued"`          // this call has made it the only voter
	Groups     []RescueGroup `json:"groups"`           // in order of their ids
	Others     []string      `json:"others,omitempty"` // server ids of the other voters it knew
}

// RescueGroup is one group of a RescueReport.
type RescueGroup struct {
	ID            uint64   `json:"id"`
	LastIndex     uint64   `json:"lastIndex"` // of its log; what others had above it is lost
	LastTerm      uint64   `json:"lastTerm"`
	Term          uint64   `json:"term"`
	AppliedIndex  uint64   `json:"appliedIndex"` // on disk in the database; the log holds the rest
	SnapshotIndex uint64   `json:"snapshotIndex"`
	Keys          uint64   `json:"keys"`
	Voters        []string `json:"voters"`    // server ids
	NonVoters     []string `json:"nonVoters"` // server ids
}

// BackupStatus describes the scheduled backups of the cluster, as this node is configured.
type BackupStatus struct {
	To           string      `json:"to"` // directory, or command
	EverySeconds int64       `json:"everySeconds"`
	Keep         int         `json:"keep"`
	Running      string      `json:"running,omitempty"` // node that writes one now
	Last         *BackupDone `json:"last,omitempty"`    // the last complete one of any node
}

// BackupDone describes a complete scheduled backup.
type BackupDone struct {
	Name     string    `json:"name"`
	Node     string    `json:"node"` // that wrote it
	Time     time.Time `json:"time"`
	Bytes    int64     `json:"bytes"`    // as it is stored
	Verified bool      `json:"verified"` // it was read back
}
