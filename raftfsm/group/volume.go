package group

import (
	"io"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/quorate/quorate/internal/durable"
)

// volume is what a group stands on: its files, its terms and votes, its log. There is one,
// the operating system's; simulations put one in its place that is in memory and forgets, in
// a crash, what was not forced to it.
type volume interface {
	read(path string) ([]byte, error)                        // as durable.Read
	write(path string, body []byte, step func(string)) error // as durable.Write
	open(path string) (io.ReadCloser, error)                 // a file
	create(path string) (syncedFile, error)                  // a new file; an error if there is one
	list(dir string) ([]fs.FileInfo, error)                  // what is in a directory
	exists(path string) bool                                 //
	mkdir(dir string) error                                  //
	mkdirAll(dir string) error                               //
	removeAll(path string) error                             //
	syncDir(dir string) error                                // forces the names in a directory to the disk
	database() vfs.FS                                        // where databases are; nil = the operating system's
	stable(path string) (stableStore, error)                 // terms and votes
	log(o Options) (logStore, error)                         // entries
}

// syncedFile is a file that can be forced to the disk.
type syncedFile interface {
	io.WriteCloser
	Sync() error
}

// stableStore keeps terms and votes: what it has returned from is durable.
type stableStore interface {
	raft.StableStore
	io.Closer
}

// osVolume is the operating system's.
type osVolume struct{}

func (osVolume) read(path string) ([]byte, error) { return durable.Read(path) }

func (osVolume) write(path string, body []byte, step func(string)) error {
	return durable.Write(path, body, step)
}

func (osVolume) open(path string) (io.ReadCloser, error) { return os.Open(path) }

func (osVolume) create(path string) (syncedFile, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (osVolume) list(dir string) ([]fs.FileInfo, error) {
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

func (osVolume) exists(path string) bool { return exists(path) }

func (osVolume) mkdir(dir string) error { return os.Mkdir(dir, 0o700) }

func (osVolume) mkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

func (osVolume) removeAll(path string) error { return os.RemoveAll(path) }

func (osVolume) syncDir(dir string) error { return durable.SyncDir(dir) }

func (osVolume) database() vfs.FS { return nil }

func (osVolume) stable(path string) (stableStore, error) {
	return raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
}

func (osVolume) log(o Options) (logStore, error) { return openEngine(o) }
