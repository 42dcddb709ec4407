package datadir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

const lockName = "LOCK"

// Lock is the lock that a process has on its data directory. The kernel releases the lock when the process ends,
// even after a crash.
type Lock struct{ f *os.File }

// Holder reports whether a process has the lock of a data directory. It also returns the id of that process, or "" if
// the id is not known. It changes nothing.
func Holder(dir string) (pid string, held bool) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err == nil {
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
		return "", false
	} else if !conflicts(err) {
		return "", false
	}
	text, _ := io.ReadAll(io.LimitReader(f, 64))
	return strings.TrimSpace(string(text)), true
}

// conflicts reports whether err, an error of flock, means that another process has the lock. On CIFS, flock reports
// this with EACCES.
func conflicts(err error) bool {
	return errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EACCES)
}

// lock locks f exclusively. If another process has an exclusive lock, lock returns an error at once. If other processes
// have only shared locks, lock retries for up to lockPatience, because Holder takes a shared lock only for a moment.
func lock(f *os.File) error {
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockPause) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !conflicts(err) || time.Now().After(end) {
			return err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
			return err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_UN); err != nil {
			return err
		}
	}
}

const (
	lockPatience = 5 * time.Second
	lockPause    = time.Millisecond
)

// LockDir locks a data directory. If another process has the lock, LockDir returns fault.Unavailable with the id of
// that process.
func LockDir(dir string) (*Lock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unusable(err, dir)
	}
	if err := lock(f); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 64))
		return nil, errors.Join(notLocked(err, dir, holder), f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(unusable(err, dir), f.Close())
	}
	return &Lock{f: f}, nil
}

// notLocked returns the error for a data directory that could not be locked because of err. holder is the content of
// the lock file.
func notLocked(err error, dir string, holder []byte) error {
	if !conflicts(err) {
		return unusable(err, dir)
	}
	return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Open", Key: dir,
		Msg:  fmt.Sprintf("the data directory %s is in use%s", dir, byWhom(holder)),
		Hint: "stop that process, or choose another --data-dir"}
}

func byWhom(content []byte) string {
	if pid := strings.TrimSpace(string(content)); pid != "" {
		return " by process " + pid
	}
	return ""
}

// Release releases the lock with an explicit unlock. Closing the file does not always release the lock: a child
// process that is just being started may have a copy of the file descriptor.
func (l *Lock) Release() error {
	return errors.Join(syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN), l.f.Close())
}

// unusable returns the error for a data directory that cannot be used, with a hint for common causes.
func unusable(err error, dir string) error {
	e := &fault.Error{Code: fault.Internal, Op: "raftfsm.Open", Key: dir, Msg: "cannot use the data directory " +
		dir, Err: err}
	switch {
	case errors.Is(err, syscall.EROFS), errors.Is(err, os.ErrPermission):
		e.Hint = "the disk is mounted read-only or this user may not write there; fix that, or choose another " +
			"--data-dir"
	case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		e.Hint = "the file system does not lock files; choose a --data-dir on a local disk"
	case errors.Is(err, syscall.ENOSPC):
		e.Hint = "the disk is full; free some space and start again, nothing acknowledged is lost"
	}
	return e
}
