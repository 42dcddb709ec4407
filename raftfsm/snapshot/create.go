package snapshot

import (
	"path/filepath"

	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// firstDB is the directory of the first database.
const firstDB = DatabasePrefix + "000001"

// FirstManifest returns a manifest that names the first database and no snapshot.
func FirstManifest() *Manifest { return &Manifest{Database: firstDB} }

// Create creates an empty database in the directory of a group, and the manifest that names it.
func Create(v raftlog.Volume, dir string, database kv.Options, process Process) error {
	if err := v.RemoveAll(filepath.Join(dir, firstDB)); err != nil {
		return raftlog.DiskError(err, dir)
	}
	database.Dir = filepath.Join(dir, firstDB)
	m, err := kv.Create(database)
	if err != nil {
		return err
	}
	if err := m.Close(); err != nil {
		return err
	}
	if err := v.SyncDir(dir); err != nil {
		return raftlog.DiskError(err, dir)
	}
	process.Step("database-created")
	if err := StoreManifest(v, dir, FirstManifest(), process); err != nil {
		return raftlog.DiskError(err, dir)
	}
	return nil
}
