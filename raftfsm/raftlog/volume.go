package raftlog

import (
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/quorate/quorate/internal/durable"
)

// Volume is the storage of a group: its files, its terms and votes, and its log. Servers use OSVolume. Simulations
// use a Volume in memory, which loses unsynced data in a simulated crash.
type Volume interface {
	Read(path string) ([]byte, error)                        // like durable.Read
	Write(path string, body []byte, step func(string)) error // like durable.Write
	Open(path string) (io.ReadCloser, error)                 // opens a file for reading
	Create(path string) (SyncedFile, error)                  // creates a file; an error if it exists
	List(dir string) ([]fs.FileInfo, error)                  // the content of a directory
	Exists(path string) bool                                 // whether path exists
	// whether the file of terms and votes, or the log, at path contains data; an error if it is damaged
	Holds(path string) (bool, error)
	OtherLog(dir string, e Engine) error // an error if dir has a log of the other engine
	Mkdir(dir string) error              // makes a directory
	MkdirAll(dir string) error           // makes a directory and its parents
	RemoveAll(path string) error         // removes path and everything in it
	SyncDir(dir string) error            // syncs the names in a directory
	// the file system for databases; nil = the file system of the operating system
	Database() vfs.FS
	Stable(path string) (StableStore, error)                   // opens the file of terms and votes
	Log(dir string, e Engine, l *slog.Logger) (Backend, error) // opens the log
}

// SyncedFile is a file that can be synced.
type SyncedFile interface {
	io.WriteCloser
	Sync() error
}

// StableStore stores terms and votes. A method that stores a value returns only when the value is durable.
type StableStore interface {
	raft.StableStore
	io.Closer
}

// OSVolume is the Volume that uses files of the operating system.
type OSVolume struct{}

// Read reads a file that Write has written, and verifies its checksum.
func (OSVolume) Read(path string) ([]byte, error) { return durable.Read(path) }

// Write replaces a file durably. It adds a checksum to the content.
func (OSVolume) Write(path string, body []byte, step func(string)) error {
	return durable.Write(path, body, step)
}

// Open opens a file for reading.
func (OSVolume) Open(path string) (io.ReadCloser, error) { return os.Open(path) }

// Create creates a new file. It is an error if the file exists.
func (OSVolume) Create(path string) (SyncedFile, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// List returns the content of a directory.
func (OSVolume) List(dir string) ([]fs.FileInfo, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	infos := make([]fs.FileInfo, len(entries))
	for i, e := range entries {
		if infos[i], err = e.Info(); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// Exists reports whether path exists.
func (OSVolume) Exists(path string) bool { return exists(path) }

// Holds reports whether a file contains data. The parameter path names the log, or the file of terms and votes. Holds
// returns false if the file is absent, empty or all zeros. It returns an error if the file is damaged, cannot be read,
// or was written by a newer version. The error for a damaged file describes the damage.
func (OSVolume) Holds(path string) (bool, error) {
	if filepath.Base(path) == WalName {
		path = filepath.Join(path, metadb.FileName)
	}
	return checkBolt(path)
}

// OtherLog returns an error if dir has a log of another engine than e.
func (OSVolume) OtherLog(dir string, e Engine) error { return refuseOtherLog(dir, e) }

// Mkdir makes a directory.
func (OSVolume) Mkdir(dir string) error { return os.Mkdir(dir, 0o700) }

// MkdirAll makes a directory and its parents.
func (OSVolume) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

// RemoveAll removes a directory and its content.
func (OSVolume) RemoveAll(path string) error { return os.RemoveAll(path) }

// SyncDir makes the names in a directory durable.
func (OSVolume) SyncDir(dir string) error { return durable.SyncDir(dir) }

// Database returns nil. Databases then use the file system of the operating system.
func (OSVolume) Database() vfs.FS { return nil }

// Stable opens the file of terms and votes.
func (OSVolume) Stable(path string) (StableStore, error) {
	return raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
}

// Log opens the log.
func (OSVolume) Log(dir string, e Engine, l *slog.Logger) (Backend, error) {
	return openEngine(dir, e, l)
}
