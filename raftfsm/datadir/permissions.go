package datadir

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/quorate/quorate/internal/fault"
)

// CheckPrivate returns an error if other users can write to the data directory. If other users can write to a directory
// above the data directory, CheckPrivate logs a warning.
//
// CheckPrivate makes one exception: the group of the directory may have write access if another user owns the
// directory. Orchestrators provide such volumes, and this process is a member of the group.
func CheckPrivate(dir string, logger *slog.Logger) error {
	info, err := os.Stat(dir)
	if err != nil {
		return unusable(err, dir)
	}
	if why := writers(info); why == byAll || why == byGroup && owned(info) {
		return &fault.Error{Code: fault.Denied, Op: "raftfsm.Open", Key: dir,
			Msg: fmt.Sprintf("the data directory %s can be written by %s (mode %04o)", dir, why, info.Mode().Perm()),
			Hint: fmt.Sprintf("check its content, then run: chmod go-w %s; if you cannot change its mode, use a "+
				"directory below it as --data-dir", dir)}
	}
	for _, parent := range parents(dir) {
		info, err := os.Stat(parent)
		if err != nil || info.Mode()&fs.ModeSticky != 0 {
			continue // others cannot replace files in a sticky directory; an unreadable one cannot be checked
		}
		if why := writers(info); why != "" {
			logger.Warn("a directory above the data directory can be written by others, who could replace the data",
				"dir", dir, "above", parent, "by", why,
				"mode", fmt.Sprintf("%04o", info.Mode().Perm()), "hint", "chmod go-w "+parent)
		}
	}
	return nil
}

const (
	byAll   = "every user of this machine"
	byGroup = "its group"
)

// writers returns which other users can write to the file: byAll, byGroup, or "" if none can.
func writers(info fs.FileInfo) string {
	switch mode := info.Mode().Perm(); {
	case mode&0o002 != 0:
		return byAll
	case mode&0o020 != 0 && !ownGroup(info):
		return byGroup
	}
	return ""
}

func owned(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(s.Uid) == int64(os.Geteuid())
}

// ownGroup reports whether the group of a file is private. A private group is that of root, or one with the name of the
// current user. Many systems create a private group for each user, and by default let this group write the user's
// files.
func ownGroup(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	if s.Gid == 0 {
		return true
	}
	g, err := user.LookupGroupId(strconv.FormatUint(uint64(s.Gid), 10))
	if err != nil {
		return false
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	return err == nil && u.Username == g.Name
}

// parents returns all directories above dir. It includes the directories above the path as given, and those above the
// path with symbolic links resolved.
func parents(dir string) (out []string) {
	seen := map[string]bool{}
	add := func(path string) {
		for up := filepath.Dir(path); !seen[up]; up = filepath.Dir(up) {
			seen[up] = true
			out = append(out, up)
		}
	}
	if abs, err := filepath.Abs(dir); err == nil {
		add(abs)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		if real, err = filepath.Abs(real); err == nil {
			add(real)
		}
	}
	return out
}
