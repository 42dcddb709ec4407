package loader

import (
	"os"
	"syscall"
)

// inode returns the number of a file, which differs when the file was replaced by another.
func inode(info os.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
