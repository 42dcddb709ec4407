package loader

import (
	"os"
	"syscall"
)

// inode returns the inode number of a file, or 0 if it is unknown. When a file is replaced by a new one, the inode
// number usually changes.
func inode(info os.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
