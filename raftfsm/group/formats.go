package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft-wal/metadb"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// CheckFormats says whether Open would understand what is in o.Dir, and changes nothing there.
// It returns invalid for a part that a newer version wrote, and names its file. What else
// may be wrong, Open finds. Nobody else may use the directory meanwhile.
func CheckFormats(o Options) error {
	o = o.withDefaults()
	man, err := loadManifest(o.volume, o.Dir)
	if err != nil || man == nil {
		if fault.Is(err, fault.Invalid) {
			return err
		}
		return nil
	}
	if err := examineBolt(filepath.Join(o.Dir, stableName)); err != nil {
		return err
	}
	if err := examineBolt(filepath.Join(o.Dir, boltName)); err != nil {
		return err
	}
	if err := examineWAL(filepath.Join(o.Dir, walName)); err != nil {
		return err
	}
	return kv.CheckFormat(machineOptions(o, filepath.Join(o.Dir, man.Database)))
}

// The formats of the engines of the log, as the libraries that are built in write them.
const (
	boltFormat = 2
	boltMagic  = 0xED0CDAED
	walFormat  = 0
	walMagic   = 0x58eb6b0d
)

// examineBolt looks at the two meta pages of a bbolt file.
func examineBolt(path string) error {
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

// examineWAL looks at the metadata of raft-wal and at the head of each of its segments.
func examineWAL(dir string) error {
	if err := examineBolt(filepath.Join(dir, metadb.FileName)); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := examineSegment(name); err != nil {
			return err
		}
	}
	return nil
}

func examineSegment(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskError(err, path)
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

func errNewer(path string, found, known uint64) error {
	return &fault.Error{Code: fault.Invalid, Op: "group.Open", Key: path,
		Msg:  fmt.Sprintf("%s has format %d, this version understands up to %d", path, found, known),
		Hint: "run the version that wrote it, or a newer one; nothing was changed"}
}
