package raftfsm

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
)

const (
	identityName    = "node.json"
	identityVersion = 1
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
}

// readIdentity returns nil, nil for a directory that holds nothing of ours.
func readIdentity(dir string) (*Identity, error) {
	path := filepath.Join(dir, identityName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, foreign(dir)
	}
	if err != nil {
		return nil, dirError(err, dir)
	}
	body, sum, ok := strings.Cut(string(b), "\n")
	if !ok || strings.TrimSpace(sum) != identitySum(body) {
		return nil, badIdentity(path, "its checksum does not match")
	}
	var id Identity
	if err := json.Unmarshal([]byte(body), &id); err != nil {
		return nil, badIdentity(path, err.Error())
	}
	if id.Version > identityVersion {
		return nil, &fault.Error{Code: fault.Invalid, Op: "raftfsm.Open", Key: path,
			Msg:  fmt.Sprintf("%s has format %d, this version understands up to %d", path, id.Version, identityVersion),
			Hint: "run the version that wrote it, or a newer one"}
	}
	if id.Node == "" || id.Server == "" || id.Partitions == 0 {
		return nil, badIdentity(path, "fields are missing")
	}
	return &id, nil
}

// foreign refuses a directory that holds files but no identity: it is somebody else's.
func foreign(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return dirError(err, dir)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockName, identityName + ".tmp", "lost+found", "admin.sock":
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

func identitySum(body string) string {
	return fmt.Sprintf("crc32c:%08x", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)))
}

// write makes the identity durable.
func (id *Identity) write(dir string) error {
	id.Version = identityVersion
	body, err := json.Marshal(id)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, identityName)
	if err := writeDurably(path, []byte(string(body)+"\n"+identitySum(string(body))+"\n")); err != nil {
		return dirError(err, dir)
	}
	return nil
}

// writeDurably replaces a file; it is on disk, whole, when it returns nil.
func writeDurably(path string, b []byte) error {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// randomID is 16 random hex digits.
func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: it aborts the program instead
	return hex.EncodeToString(b[:])
}

// newIdentity makes the identity of an empty directory.
func newIdentity(o Options) *Identity {
	id := &Identity{Node: o.NodeID, Partitions: o.Partitions, Engine: o.Engine}
	if id.Node == "" {
		id.Node = "node-" + randomID()[:8]
	}
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
	case o.NodeID != "" && o.NodeID != id.Node:
		return refuse("node id", "--node-id", id.Node, o.NodeID)
	case o.Partitions != 0 && o.Partitions != id.Partitions:
		return refuse("partitions", "--partitions", id.Partitions, o.Partitions)
	case o.Engine != "" && o.Engine != id.Engine:
		return refuse("log store", "--log-store", id.Engine, o.Engine)
	}
	return nil
}
