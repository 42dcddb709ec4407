package group

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/durable"
	"github.com/quorate/quorate/internal/fault"
)

// manifestVersion is the newest form of the manifest this build reads and the one it writes.
const manifestVersion = 1

const manifestName = "manifest.json"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// manifest names, in one file switched by one rename, both the database directory and
// the snapshot that raft starts from. Were they two files, a crash between two renames
// could leave raft at an index over an older database.
//
// Invariant: the named database holds every command up to Snapshot.Index, and it is
// complete on disk before the manifest that names it is written.
type manifest struct {
	Version  int           `json:"version"`
	Database string        `json:"database"` // directory beside the manifest
	Snapshot *snapshotInfo `json:"snapshot,omitempty"`
	Doubt    *Doubt        `json:"doubt,omitempty"` // why the database is not served; a build that does not know it serves it
}

// snapshotInfo is what raft needs to start above the entries a snapshot replaced.
type snapshotInfo struct {
	Index              uint64 `json:"index"`
	Term               uint64 `json:"term"`
	Configuration      []byte `json:"configuration"`
	ConfigurationIndex uint64 `json:"configurationIndex"`
	// Applied is the machine's own index at the snapshot. It may be below Index: no-ops
	// and barriers never reach the machine.
	Applied uint64 `json:"applied"`
}

func (s *snapshotInfo) meta(id string) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: raft.SnapshotVersionMax, ID: id, Index: s.Index, Term: s.Term,
		Configuration: raft.DecodeConfiguration(s.Configuration), ConfigurationIndex: s.ConfigurationIndex,
	}
}

// loadManifest returns nil, nil if dir has none.
func loadManifest(v volume, dir string) (*manifest, error) {
	path := filepath.Join(dir, manifestName)
	body, err := v.read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, durable.ErrDamaged):
		return nil, corruptFile(path, err.Error())
	case err != nil:
		return nil, &fault.Error{Code: fault.Internal, Op: "group.manifest", Msg: "cannot read " + path, Err: err}
	}
	var m manifest
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, corruptFile(path, err.Error())
	}
	if m.Version > manifestVersion {
		return nil, &fault.Error{Code: fault.Invalid, Op: "group.manifest", Key: path,
			Msg:  fmt.Sprintf("%s has format %d, this version understands up to %d", path, m.Version, manifestVersion),
			Hint: "run the version that wrote it, or a newer one"}
	}
	if !plainName(m.Database) {
		return nil, corruptFile(path, "it names no database directory")
	}
	return &m, nil
}

// storeManifest replaces the manifest durably: it is on disk, whole, when it returns nil.
func storeManifest(v volume, dir string, m *manifest, step func(string)) error {
	m.Version = manifestVersion
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return v.write(filepath.Join(dir, manifestName), body, func(done string) { step("manifest-" + done) })
}

// plainName reports whether name is that of something in a directory, and not of the
// directory itself or of anything elsewhere.
func plainName(name string) bool {
	return name != "." && filepath.IsLocal(name) && !strings.ContainsAny(name, "/\\\x00")
}

func corruptFile(path, why string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "group.manifest", Key: path,
		Msg:  fmt.Sprintf("%s is damaged: %s", path, why),
		Hint: "restore the directory from a backup, or empty it to let this node join again as a new server"}
}
