package raftlog

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft-wal/metadb"
)

// Format versions and magic numbers of the files of bbolt and raft-wal.
const (
	boltFormat = 2
	boltMagic  = 0xED0CDAED
	walFormat  = 0
	walMagic   = 0x58eb6b0d
)

// CheckBoltFormat returns an error if a newer version of bbolt wrote the file at the given path. It reads only the
// two meta pages.
func CheckBoltFormat(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil //nolint:nilerr // absent or unreadable: Open says which is wrong
	}
	defer func() { _ = f.Close() }()
	at, size := int64(0), int64(0)
	for range 2 {
		var head [28]byte // page header (16), magic, version, page size
		if _, err := f.ReadAt(head[:], at); err != nil {
			return nil //nolint:nilerr // Open says it better
		}
		if binary.LittleEndian.Uint32(head[16:]) != boltMagic {
			return nil
		}
		if v := binary.LittleEndian.Uint32(head[20:]); v > boltFormat {
			return errNewer(path, uint64(v), boltFormat)
		}
		if size = int64(binary.LittleEndian.Uint32(head[24:])); size == 0 {
			return nil
		}
		at += size
	}
	return nil
}

// CheckWALFormat returns an error if a newer version of raft-wal wrote the log in dir. It reads only the log's
// metadata and the headers of its segments.
func CheckWALFormat(dir string) error {
	if err := CheckBoltFormat(filepath.Join(dir, metadb.FileName)); err != nil {
		return err
	}
	segments, err := segmentsIn(dir)
	if err != nil {
		return err
	}
	for _, segment := range segments {
		if err := examineSegment(segment); err != nil {
			return err
		}
	}
	return nil
}

// segmentsIn returns the paths of the segment files of raft-wal in dir, in the order of their entries. If dir does not
// exist, segmentsIn returns none. The name of a segment file begins with the index of its first entry.
func segmentsIn(dir string) ([]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, DiskError(err, dir)
	}
	var paths []string
	for _, f := range files {
		if filepath.Ext(f.Name()) == ".wal" {
			paths = append(paths, filepath.Join(dir, f.Name()))
		}
	}
	return paths, nil
}

func examineSegment(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return DiskError(err, path)
	}
	defer func() { _ = f.Close() }()
	var head [8]byte // magic, reserved, version
	if _, err := io.ReadFull(f, head[:]); err != nil || binary.LittleEndian.Uint32(head[:]) != walMagic {
		return nil //nolint:nilerr // Open says it better
	}
	if v := head[7]; v > walFormat {
		return errNewer(path, uint64(v), walFormat)
	}
	return nil
}
