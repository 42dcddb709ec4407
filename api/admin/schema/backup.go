package schema

import "time"

// The types of the admin API for backups and rescue.

// RestoreResult describes the data that a restore has installed.
type RestoreResult struct {
	Created   time.Time `json:"created"`   // when the backup was made
	ClusterID string    `json:"clusterId"` // the cluster that was backed up
	Groups    int       `json:"groups"`
	Keys      uint64    `json:"keys"`
	Bytes     uint64    `json:"bytes"` // size of the groups in the backup
}

// RescueReport describes the cluster state on a stopped server, before or after a rescue.
type RescueReport struct {
	Node      string `json:"node"`
	ServerID  string `json:"serverId"`
	DataDir   string `json:"dataDir"`
	ClusterID string `json:"clusterId"`
	Epoch     uint64 `json:"epoch"`     // epoch of the cluster; each rescue raises it
	Alone     bool   `json:"alone"`     // the server is the only voter of every group
	BrokenOff bool   `json:"brokenOff"` // a rescue of this directory has not finished
	// the cluster was rescued on another server, so a rescue here would make a second cluster
	LeftBehind bool          `json:"leftBehind,omitempty"`
	Rescued    bool          `json:"rescued"`          // this call has made the server the only voter
	Groups     []RescueGroup `json:"groups"`           // in order of their ids
	Others     []string      `json:"others,omitempty"` // server ids of the other voters
}

// RescueGroup is one group of a RescueReport.
type RescueGroup struct {
	ID            uint64   `json:"id"`
	LastIndex     uint64   `json:"lastIndex"` // end of the log; later entries of other servers are lost
	LastTerm      uint64   `json:"lastTerm"`
	Term          uint64   `json:"term"`
	AppliedIndex  uint64   `json:"appliedIndex"` // of the database on disk; the log has the later entries
	SnapshotIndex uint64   `json:"snapshotIndex"`
	Keys          uint64   `json:"keys"`
	Voters        []string `json:"voters"`    // server ids
	NonVoters     []string `json:"nonVoters"` // server ids
}

// BackupStatus describes the scheduled backups of the cluster, as this node is configured.
type BackupStatus struct {
	To           string      `json:"to"` // directory or command that receives the backups
	EverySeconds int64       `json:"everySeconds"`
	Keep         int         `json:"keep"`
	Running      string      `json:"running,omitempty"` // node that is writing a backup now
	Last         *BackupDone `json:"last,omitempty"`    // the last complete backup of any node
}

// BackupDone describes a complete scheduled backup.
type BackupDone struct {
	Name     string    `json:"name"`
	Node     string    `json:"node"` // node that wrote the backup
	Time     time.Time `json:"time"`
	Bytes    int64     `json:"bytes"`    // size as stored
	Verified bool      `json:"verified"` // the backup was read back
}
