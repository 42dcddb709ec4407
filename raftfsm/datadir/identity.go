package datadir

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
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/quorate/quorate/internal/durable"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

const (
	identityName    = "node.json"
	identityVersion = 1
)

// RoleSidecar is the Role in the identity of a directory without replicas.
const RoleSidecar = "sidecar"

// Identity is the stored identity of a data directory. It is written when the directory is created, and updated later.
// The node refuses to start if a setting contradicts the identity.
type Identity struct {
	Version int    `json:"version"`
	Node    string `json:"node"` // node id
	// node id, a dot and a random id. So a node whose disk was wiped is a new server
	Server     string         `json:"server"`
	Cluster    string         `json:"cluster"` // random id of the cluster; empty until the node joins one
	Partitions uint32         `json:"partitions"`
	Engine     raftlog.Engine `json:"logStore"`
	Forming    bool           `json:"forming,omitempty"` // this server is forming the cluster and has not finished
	// id of the server that this server has promised to let form the cluster; empty = none
	Promised string `json:"promised,omitempty"`
	Made     bool   `json:"made"` // every group and its floor file were created, so a missing file was lost
	// epoch of the cluster, which each rescue raises. Servers of different epochs refuse each other
	Epoch    uint64 `json:"epoch,omitempty"`
	Rescuing uint64 `json:"rescuing,omitempty"` // epoch of an unfinished rescue; 0 = none
	Role     string `json:"role,omitempty"`     // RoleSidecar: no replicas; empty: a server
	Removed  bool   `json:"removed,omitempty"`  // the cluster has permanently removed this server
	// Format is the highest version of log entries that the directory may hold, or that were used to build its
	// databases. It never decreases, and is durable before the first entry of that version. A build that does not
	// know the version refuses the directory.
	Format uint32 `json:"format,omitempty"`
	// Superseded is the newest epoch of the cluster that other servers have shown.
	Superseded uint64 `json:"superseded,omitempty"`
}

// LeftBehind reports whether the cluster was rescued without this server. The data of this server then belongs to an
// old epoch. The server must not be rescued, because that would create a second cluster.
func (id *Identity) LeftBehind() bool { return id.Superseded > id.Epoch }

// Tag returns a hash of the cluster id and the epoch, which is part of every session token. A rescue can lose log
// entries to which earlier tokens refer. Every rescue therefore raises the epoch, so that the tag no longer matches
// these tokens.
func (id *Identity) Tag() uint64 {
	if id.Epoch == 0 {
		return xxhash.Sum64String(id.Cluster)
	}
	return xxhash.Sum64String(id.Cluster + "/" + strconv.FormatUint(id.Epoch, 10))
}

// ReadIdentity reads the identity of a directory. It returns nil without an error for an empty directory. It returns
// fault.Corrupt if node.json is damaged, and fault.Internal if node.json or the directory cannot be read. It returns
// fault.Invalid in these cases:
//
//   - A newer version of Quorate wrote node.json.
//   - The cluster uses a format of log entries that this build does not know.
//   - The directory contains other files but no identity.
func ReadIdentity(dir string) (*Identity, error) {
	path := filepath.Join(dir, identityName)
	body, err := durable.Read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, foreign(dir)
	case errors.Is(err, durable.ErrDamaged):
		return nil, badIdentity(path, err.Error())
	case err != nil:
		return nil, unusable(err, dir)
	}
	var id Identity
	if err := json.Unmarshal(body, &id); err != nil {
		return nil, badIdentity(path, err.Error())
	}
	if id.Version > identityVersion {
		return nil, errNewer(path, fmt.Sprintf("%s has format %d, this version understands up to %d", path, id.Version,
			identityVersion))
	}
	if id.Format > command.Version {
		return nil, errNewer(path, fmt.Sprintf("%s: the cluster uses format %d of log entries, this version "+
			"understands up to %d", path, id.Format, command.Version))
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

// foreign returns an error if a directory without an identity contains any other files. It ignores the folder
// lost+found, and the files that an interrupted first start leaves behind.
func foreign(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return unusable(err, dir)
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
	return &fault.Error{Code: fault.Corrupt, Op: "raftfsm.Open", Key: path, Msg: fmt.Sprintf("%s is damaged: %s", path,
		why),
		Hint: "restore the directory from a backup, or empty it to start as a new server"}
}

// Write writes the identity to the data directory dir. The identity is durable when Write returns nil.
func (id *Identity) Write(dir string) error {
	id.Version = identityVersion
	body, err := json.Marshal(id)
	if err != nil {
		return err
	}
	if err := durable.Write(filepath.Join(dir, identityName), body, nil); err != nil {
		return unusable(err, dir)
	}
	return nil
}

// RandomID returns 16 random hex digits.
func RandomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails; it aborts the program instead
	return hex.EncodeToString(b[:])
}

// newNodeID returns the node id for an empty directory.
func (s Settings) newNodeID() string {
	return cmp.Or(s.NodeID, s.DefaultID, "node-"+RandomID()[:8])
}

// newIdentity creates the identity of an empty directory.
func newIdentity(s Settings) *Identity {
	id := &Identity{Node: s.newNodeID(), Partitions: s.Partitions, Engine: s.Engine, Format: command.First}
	if id.Partitions == 0 {
		id.Partitions = 1
	}
	if id.Engine == "" {
		id.Engine = raftlog.WAL
	}
	id.Server = id.Node + "." + RandomID()
	return id
}

// agree returns fault.Invalid if the settings contradict the identity, or if a rescue of the directory has not
// finished.
func (id *Identity) agree(s Settings) error {
	refuse := func(what, flag string, have, asked any) error {
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: s.Dir,
			Msg: fmt.Sprintf("the data directory %s was made with %s %v, but the settings say %s %v", s.Dir, what,
				have, flag, asked),
			Hint: fmt.Sprintf("drop the flag or set it to %v; it is fixed when the directory is created", have)}
	}
	switch {
	case id.Rescuing != 0:
		return errHalfRescued(s.Dir)
	case s.NodeID != "" && s.NodeID != id.Node:
		return refuse("node id", "--node-id", id.Node, s.NodeID)
	case id.Role == RoleSidecar:
		return nil // the other settings are those of the cluster
	case s.Partitions != 0 && s.Partitions != id.Partitions:
		return refuse("partitions", "--partitions", id.Partitions, s.Partitions)
	case s.Engine != "" && s.Engine != id.Engine:
		return refuse("log store", "--log-store", id.Engine, s.Engine)
	}
	return nil
}

func errHalfRescued(dir string) error {
	return &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: dir,
		Msg:  fmt.Sprintf("a rescue of the data directory %s has not finished", dir),
		Hint: "run quorate rescue on it again"}
}
