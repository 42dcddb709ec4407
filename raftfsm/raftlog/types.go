package raftlog

// Position identifies an entry in the log of one group by its term and index.
type Position struct{ Term, Index uint64 }

// File names in the directory of a group: terms and votes, the log of engine BoltDB, and the folder of engine WAL.
const (
	StableName = "stable.db"
	BoltName   = "log.db"
	WalName    = "wal"
)

// Engine is the name of a log engine.
type Engine string

// Log engines. With both engines, raft-boltdb stores the terms and votes.
const (
	BoltDB Engine = "boltdb" // raft-boltdb/v2: two fsyncs per append
	WAL    Engine = "wal"    // raft-wal: one fsync per append
)

// FileName returns the name of the engine's file or folder in a group's directory.
func (e Engine) FileName() string {
	if e == WAL {
		return WalName
	}
	return BoltName
}

// Owner is the cluster that a group belongs to. An Owner is zero until the group belongs to a cluster.
type Owner struct {
	Cluster string `json:"cluster,omitempty"`
	Epoch   uint64 `json:"epoch,omitempty"`
}

// Seen is what a server knows about the terms, votes and entries that another server has on its disk.
type Seen struct {
	Term      uint64   `json:"term,omitempty"`
	Vote      uint64   `json:"vote,omitempty"`      // newest term in which it has voted
	Matched   Position `json:"matched,omitzero"`    // position up to which it has acknowledged entries to a leader
	Committed uint64   `json:"committed,omitempty"` // index up to which it has committed entries
}

// Merge combines s and o. For each field, the result has the newer one of the two values.
func (s Seen) Merge(o Seen) Seen {
	s.Term, s.Vote, s.Committed = max(s.Term, o.Term), max(s.Vote, o.Vote), max(s.Committed, o.Committed)
	if m := o.Matched; m.Term > s.Matched.Term || m.Term == s.Matched.Term && m.Index > s.Matched.Index {
		s.Matched = m
	}
	return s
}
