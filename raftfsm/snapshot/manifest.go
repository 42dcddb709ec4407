package snapshot

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
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// manifestVersion is the version of the manifest that this build writes, and the highest version that it reads.
const manifestVersion = 1

// ManifestName is the file name of the manifest in the directory of a group.
const ManifestName = "manifest.json"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Manifest names the directory of the live database, and the snapshot from which raft starts. Both are in one file, so
// that one rename replaces both. With two files, a crash between the two renames could leave a snapshot with a greater
// index than the database has.
//
// Invariant: the named database contains every command up to Snapshot.Index. The database is complete on disk before
// the manifest that names it is written.
type Manifest struct {
	Version  int    `json:"version"`
	Database string `json:"database"` // directory next to the manifest
	Snapshot *Info  `json:"snapshot,omitempty"`
	// why the database serves no requests; nil = it serves them
	Doubt *Doubt `json:"doubt,omitempty"`
}

// Info is what raft needs to start after the entries that a snapshot covers.
type Info struct {
	Index              uint64 `json:"index"`
	Term               uint64 `json:"term"`
	Configuration      []byte `json:"configuration"`
	ConfigurationIndex uint64 `json:"configurationIndex"`
	// Applied is the index of the newest entry that the database on disk contains. Applied may be below Index, because
	// no-ops and barriers never reach the machine.
	Applied uint64 `json:"applied"`
}

func (s *Info) meta(id string) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: raft.SnapshotVersionMax, ID: id, Index: s.Index, Term: s.Term,
		Configuration: raft.DecodeConfiguration(s.Configuration), ConfigurationIndex: s.ConfigurationIndex,
	}
}

// LoadManifest reads the manifest of dir. It returns nil, nil if there is none.
func LoadManifest(v raftlog.Volume, dir string) (*Manifest, error) {
	path := filepath.Join(dir, ManifestName)
	body, err := v.Read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, durable.ErrDamaged):
		return nil, raftlog.CorruptFile(path, err.Error())
	case err != nil:
		return nil, &fault.Error{Code: fault.Internal, Op: "group.manifest", Msg: "cannot read " + path, Err: err}
	}
	var m Manifest
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, raftlog.CorruptFile(path, err.Error())
	}
	if m.Version > manifestVersion {
		return nil, &fault.Error{Code: fault.Invalid, Op: "group.manifest", Key: path,
			Msg:  fmt.Sprintf("%s has format %d, this version understands up to %d", path, m.Version, manifestVersion),
			Hint: "run the version that wrote it, or a newer one"}
	}
	if !plainName(m.Database) {
		return nil, raftlog.CorruptFile(path, "it names no database directory")
	}
	return &m, nil
}

// StoreManifest replaces the manifest. The new manifest is durable when StoreManifest returns nil.
func StoreManifest(v raftlog.Volume, dir string, m *Manifest, process Process) error {
	m.Version = manifestVersion
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return v.Write(filepath.Join(dir, ManifestName), body, func(done string) { process.Step("manifest-" + done) })
}

// plainName reports whether name is a single element of a path, for example "db-000001".
func plainName(name string) bool {
	return name != "." && filepath.IsLocal(name) && !strings.ContainsAny(name, "/\\\x00")
}
