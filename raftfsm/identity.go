package raftfsm

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/internal/durable"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
)

// The versions of the identity. The second is that of a directory with log entries above
// the first version, so that a build which knows of neither refuses it here.
const (
	identityName       = "node.json"
	identityVersion    = 1
	identityWithFormat = 2
	identityVersionMax = identityWithFormat
)

// Identity is what a data directory says about itself. It is written once, when the
// directory is made, and wins over flags; a disagreeing flag is refused.
type Identity struct {
	Version    int             `json:"version"`
	Node       string          `json:"node"`    // node id
	Server     string          `json:"server"`  // node id and a random id made with the directory: a wiped disk is a new server
	Cluster    string          `json:"cluster"` // random id of the cluster; empty until the node is part of one
	Partitions uint32          `json:"partitions"`
	Engine     group.LogEngine `json:"logStore"`
	Forming    bool            `json:"forming,omitempty"`  // this server makes the cluster and has not finished
	Promised   string          `json:"promised,omitempty"` // server that may form a cluster with this one
	Made       bool            `json:"made"`               // every group was made: one that is missing was lost
	Epoch      uint64          `json:"epoch,omitempty"`    // of the cluster: another after each rescue. Servers of different epochs do not talk
	Rescuing   uint64          `json:"rescuing,omitempty"` // epoch of a rescue that has not finished; 0 = none
	Role       string          `json:"role,omitempty"`     // RoleSidecar: no replicas; empty: a server
	Removed    bool            `json:"removed,omitempty"`  // the cluster has removed this server for good
	// Format is the highest version of log entries that the directory may hold, or of those
	// its databases were made by; 0 stands for command.First. It never falls, and is durable
	// before the first of those entries is.
	Format uint32 `json:"format,omitempty"`
}

// readIdentity returns nil, nil for a directory that holds nothing of ours.
func readIdentity(dir string) (*Identity, error) {
	path := filepath.Join(dir, identityName)
	body, err := durable.Read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, foreign(dir)
	case errors.Is(err, durable.ErrDamaged):
		return nil, badIdentity(path, err.Error())
	case err != nil:
		return nil, dirError(err, dir)
	}
	var id Identity
	if err := json.Unmarshal(body, &id); err != nil {
		return nil, badIdentity(path, err.Error())
	}
	if id.Version > identityVersionMax {
		return nil, errNewer(path, fmt.Sprintf("%s has format %d, this version understands up to %d", path, id.Version, identityVersionMax))
	}
	if id.Format > command.Version {
		return nil, errNewer(path, fmt.Sprintf("%s: the cluster uses format %d of log entries, this version understands up to %d", path, id.Format, command.Version))
	}
	if id.Node == "" || id.Role != RoleSidecar && (id.Server == "" || id.Partitions == 0) {
		return nil, badIdentity(path, "fields are missing")
	}
	return &id, nil
}

func errNewer(path, msg string) error {
	return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: path, Msg: msg,
		Hint: "run the version that wrote it, or a newer one; nothing was changed"}
}

// foreign refuses a directory that holds files but no identity: it is somebody else's.
func foreign(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return dirError(err, dir)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockName, identityName + durable.Suffix, "lost+found", "admin.sock":
		default:
			return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: dir,
				Msg:  fmt.Sprintf("%s is not empty and holds no data of this program (found %s)", dir, e.Name()),
				Hint: "choose an empty directory with --data-dir"}
		}
	}
	return nil
}

func badIdentity(path, why string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "raftfsm.Open", Key: path, Msg: fmt.Sprintf("%s is damaged: %s", path, why),
		Hint: "restore the directory from a backup, or empty it to start as a new server"}
}

// write makes the identity durable.
func (id *Identity) write(dir string) error {
	id.Version = identityVersion
	if id.Format > command.First {
		id.Version = identityWithFormat
	}
	body, err := json.Marshal(id)
	if err != nil {
		return err
	}
	if err := durable.Write(filepath.Join(dir, identityName), body, nil); err != nil {
		return dirError(err, dir)
	}
	return nil
}

// randomID is 16 random hex digits.
func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: it aborts the program instead
	return hex.EncodeToString(b[:])
}

// newNodeID is the node id of an empty directory.
func (o Options) newNodeID() string {
	return cmp.Or(o.NodeID, o.DefaultID, "node-"+randomID()[:8])
}

// newIdentity makes the identity of an empty directory.
func newIdentity(o Options) *Identity {
	id := &Identity{Node: o.newNodeID(), Partitions: o.Partitions, Engine: o.Engine}
	if id.Partitions == 0 {
		id.Partitions = 1
	}
	if id.Engine == "" {
		id.Engine = group.BoltDB
	}
	id.Server = id.Node + "." + randomID()
	return id
}

// agree refuses options that contradict the directory.
func (id *Identity) agree(o Options) error {
	refuse := func(what, flag string, have, asked any) error {
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: o.Dir,
			Msg:  fmt.Sprintf("the data directory %s was made with %s %v, but %s %v is asked for", o.Dir, what, have, flag, asked),
			Hint: fmt.Sprintf("drop the flag or set it to %v; it is fixed when the directory is made", have)}
	}
	switch {
	case id.Rescuing != 0:
		return errHalfRescued(o.Dir)
	case o.NodeID != "" && o.NodeID != id.Node:
		return refuse("node id", "--node-id", id.Node, o.NodeID)
	case id.Role == RoleSidecar:
		return nil // the rest is the cluster's
	case o.Partitions != 0 && o.Partitions != id.Partitions:
		return refuse("partitions", "--partitions", id.Partitions, o.Partitions)
	case o.Engine != "" && o.Engine != id.Engine:
		return refuse("log store", "--log-store", id.Engine, o.Engine)
	}
	return nil
}
