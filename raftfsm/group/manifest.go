package group

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"

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

// readManifest returns nil, nil if dir has none.
func readManifest(dir string) (*manifest, error) {
	path := filepath.Join(dir, manifestName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "group.manifest", Msg: "cannot read " + path, Err: err}
	}
	body, sum, ok := strings.Cut(string(b), "\n")
	if !ok || strings.TrimSpace(sum) != checksum(body) {
		return nil, corruptFile(path, "its checksum does not match")
	}
	var m manifest
	if err := json.Unmarshal([]byte(body), &m); err != nil {
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

// writeManifest replaces the manifest durably: it is on disk, whole, when it returns nil.
func writeManifest(dir string, m *manifest, step func(string)) error {
	m.Version = manifestVersion
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, manifestName+".tmp")
	if err := writeSynced(tmp, []byte(string(body)+"\n"+checksum(string(body))+"\n")); err != nil {
		return err
	}
	step("manifest-written")
	if err := os.Rename(tmp, filepath.Join(dir, manifestName)); err != nil {
		return err
	}
	step("manifest-renamed")
	return syncDir(dir)
}

// plainName reports whether name is that of something in a directory, and not of the
// directory itself or of anything elsewhere.
func plainName(name string) bool {
	return name != "." && filepath.IsLocal(name) && !strings.ContainsAny(name, "/\\\x00")
}

func checksum(s string) string {
	return fmt.Sprintf("crc32c:%08x", crc32.Checksum([]byte(s), castagnoli))
}

func corruptFile(path, why string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "group.manifest", Key: path,
		Msg:  fmt.Sprintf("%s is damaged: %s", path, why),
		Hint: "restore the directory from a backup, or empty it to let this node join again as a new server"}
}

// writeSynced writes a file and forces its content to disk. The name becomes durable
// with the directory.
func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir forces the names in dir to disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
