package kv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Broken returns nil if the machine can be read. Otherwise it returns the reason: damaged data, or storage that has
// failed permanently.
func (m *Machine) Broken() error { return m.health.readable() }

// CheckTables verifies the checksum of every block of the table files on disk, including blocks that Pebble has not
// read. It calls the function proceed before each table. If proceed returns false, CheckTables stops, and complete is
// false. CheckTables returns fault.Corrupt with the name of the first damaged table.
func (m *Machine) CheckTables(proceed func() bool) (complete bool, err error) {
	if err := m.use("kv.CheckTables"); err != nil {
		return false, err
	}
	defer m.gate.leave()
	levels, err := m.db.SSTables()
	if err != nil {
		return false, errStorage("kv.CheckTables", "cannot list the tables of the database in "+m.dir, err)
	}
	checked := map[uint64]bool{}
	for _, level := range levels {
		for i := range level {
			n := uint64(level[i].BackingSSTNum)
			if checked[n] {
				continue
			}
			if !proceed() {
				return false, nil
			}
			checked[n] = true
			path := m.fs.PathJoin(m.dir, fmt.Sprintf("%06d.sst", n))
			if err := checkTable(m.fs, path); errors.Is(err, fs.ErrNotExist) {
				continue // a compaction has replaced it meanwhile
			} else if err != nil {
				return false, errStorage("kv.CheckTables", "file "+path+" cannot be read", err)
			}
		}
	}
	return true, nil
}

// checkTable verifies the checksum of every block of a table file. It does not use the block cache.
func checkTable(disk vfs.FS, path string) error {
	f, err := disk.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	in, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), in, defaultOptions().MakeReaderOptions())
	if err != nil {
		return errors.Join(err, in.Close())
	}
	return errors.Join(r.ValidateBlockChecksums(), r.Close())
}

func defaultOptions() *pebble.Options {
	o := &pebble.Options{}
	o.EnsureDefaults()
	return o
}

// damagedOptions returns an error with the file name if Pebble's options file at the given path is damaged. It returns
// nil if the file is intact or cannot be opened. Pebble itself reports an options file that cannot be opened, but its
// error for a damaged options file has no file name.
func damagedOptions(disk vfs.FS, path string) error {
	if path == "" {
		return nil
	}
	f, err := disk.Open(path)
	if err != nil {
		return nil //nolint:nilerr // Pebble's own error has the reason
	}
	text, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err == nil {
		err = defaultOptions().CheckCompatibility("", string(text))
	}
	if err == nil {
		return nil
	}
	return errDamaged("kv.Open", "file "+path+" is damaged", err)
}
