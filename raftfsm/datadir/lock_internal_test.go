package datadir

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

// Between fork and exec, a child process has copies of all file descriptors. Release must release the lock even then.
func TestDirLock_ReleasedDuringStartOfAProcess(t *testing.T) {
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := syscall.Dup(int(l.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(inherited) }()
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Release(); err != nil {
		t.Error(err)
	}
}

func TestHolder(t *testing.T) {
	dir := t.TempDir()
	if pid, held := Holder(dir); held {
		t.Errorf("an empty directory is held by %q", pid)
	}
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if pid, held := Holder(dir); !held || pid != strconv.Itoa(os.Getpid()) {
		t.Errorf("held %v, by %q", held, pid)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	if pid, held := Holder(dir); held {
		t.Errorf("after the release: held by %q", pid)
	}
}

// Calls of Holder must never make LockDir fail.
func TestHolder_DoesNotDisturbAStart(t *testing.T) {
	dir, done := t.TempDir(), make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				Holder(dir)
			}
		}
	})
	for range 200 {
		l, err := LockDir(dir)
		if err != nil {
			t.Error(err)
			break
		}
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	looks.Wait()
}

func TestLockDir_InUseOnlyIfAnotherProcessHasTheLock(t *testing.T) {
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockDir(dir); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a locked directory: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if err := notLocked(syscall.EACCES, dir, []byte("7\n")); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(err.Error(), "is in use by process 7") {
		t.Errorf("a directory on CIFS that is locked: %v", err)
	}
	for _, cause := range []error{syscall.ENOLCK, syscall.ENOTSUP, syscall.EBADF} {
		if err := notLocked(cause, dir, nil); !fault.Is(err, fault.Internal) || !errors.Is(err, cause) {
			t.Errorf("%v: %v", cause, err)
		}
	}
}
