// Package datadir manages the data directory of a node. It owns the lock and the identity of the directory. It also
// checks the permissions of the directory, and measures the free space on its disk. The package does not depend on
// Raft.
//
// The directory contains:
//
//   - LOCK, a file that is locked while a process uses the directory
//   - node.json, the Identity
//   - groups/N, one folder for each Raft group
//
// Other packages read and write the folders of the groups. This package deletes them in one case: a new server is about
// to join a cluster with a different number of partitions. The groups are still empty at that time.
package datadir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/quorate/quorate/internal/durable"
)

// Create creates a data directory if it does not exist. Only the current user has access to the new directory. Create
// also syncs the parent directories, so that a power loss cannot remove the directory.
func Create(dir string) error {
	made := missing(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return unusable(err, dir)
	}
	for _, d := range made {
		if err := durable.SyncDir(filepath.Dir(d)); err != nil {
			return unusable(err, dir)
		}
	}
	if len(made) > 0 {
		return nil
	}
	// The directory exists already. An earlier start may have created it, and may have been killed before the sync.
	// So sync it now. If this user cannot open the directory above, or if its file system has no such sync, another
	// program has created dir. The sync is then not needed.
	err := durable.SyncDir(filepath.Dir(dir))
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return unusable(err, dir)
	}
	return nil
}

// missing returns the directories among dir and its parents that do not exist, deepest first.
func missing(dir string) (out []string) {
	for up := filepath.Clean(dir); ; up = filepath.Dir(up) {
		if _, err := os.Stat(up); !errors.Is(err, fs.ErrNotExist) || up == filepath.Dir(up) {
			return out
		}
		out = append(out, up)
	}
}

// Group returns the path of the folder of a group. dir is the data directory.
func Group(dir string, gid uint32) string {
	return filepath.Join(groups(dir), strconv.FormatUint(uint64(gid), 10))
}

func groups(dir string) string { return filepath.Join(dir, "groups") }
