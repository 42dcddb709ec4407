package raftfsm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/quorate/quorate/internal/fault"
)

const lockName = "LOCK"

// dirLock locks a data directory while a process uses it. The kernel releases the lock when the process ends for
// any reason.
type dirLock struct{ f *os.File }

// lockDir locks a data directory. It does not wait. If another process holds the lock, it returns an error that
// names that process.
func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, dirError(err, dir)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 64))
		return nil, errors.Join(&fault.Error{Code: fault.Unavailable, Op: "raftfsm.Open", Key: dir,
			Msg:  fmt.Sprintf("the data directory %s is in use%s", dir, byWhom(holder)),
			Hint: "stop that process, or choose another --data-dir"}, f.Close())
	}
	if err := f.Truncate(0); err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		if err != nil {
			return nil, errors.Join(dirError(err, dir), f.Close())
		}
	}
	return &dirLock{f: f}, nil
}

func byWhom(content []byte) string {
	if pid := strings.TrimSpace(string(content)); pid != "" {
		return " by process " + pid
	}
	return ""
}

// release releases the lock explicitly. Closing the file is not enough, because a child process that is just being
// started has a copy of the descriptor.
func (l *dirLock) release() error {
	return errors.Join(syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN), l.f.Close())
}

// dirError explains why a data directory cannot be used.
func dirError(err error, dir string) error {
	e := &fault.Error{Code: fault.Internal, Op: "raftfsm.Open", Key: dir, Msg: "cannot use the data directory " +
		dir, Err: err}
	switch {
	case errors.Is(err, syscall.EROFS), errors.Is(err, os.ErrPermission):
		e.Hint = "the disk is mounted read-only or this user may not write there; fix that, or choose another " +
			"--data-dir"
	case errors.Is(err, syscall.ENOSPC):
		e.Hint = "the disk is full; free some space and start again, nothing acknowledged is lost"
	}
	return e
}
