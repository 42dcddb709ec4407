package raftfsm

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// space watches the free bytes of the data directory's disk. Below min, values can no
// longer be stored; reads and deletes go on. It opens again at one and a half times min,
// so that a store does not flap around the limit.
type space struct {
	dir    string
	min    uint64
	free   func(dir string) (uint64, error)
	logger *slog.Logger

	full  atomic.Pointer[fault.Error]
	left  atomic.Uint64
	known atomic.Bool // left was measured
}

// freeBytes asks the operating system what an unprivileged user may still write.
func freeBytes(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}

// look measures once.
func (s *space) look() {
	n, err := s.free(s.dir)
	if err != nil {
		s.logger.Warn("cannot tell the free space of the data directory", "dir", s.dir, "error", err)
		return
	}
	s.left.Store(n)
	s.known.Store(true)
	was := s.full.Load() != nil
	switch {
	case !was && n < s.min:
		s.full.Store(&fault.Error{Code: fault.ReadOnly, Op: "raftfsm.space", Key: s.dir,
			Msg:  fmt.Sprintf("the store is read-only: less than %d MiB are free on the disk of %s", s.min>>20, s.dir),
			Hint: "free some space; writes open again by themselves, deletes still work"})
		s.logger.Error("the disk is nearly full: values can no longer be stored until space is freed; reads and deletes go on",
			"dir", s.dir, "free_bytes", n, "min_free_bytes", s.min)
	case was && n >= s.min+s.min/2:
		s.full.Store(nil)
		s.logger.Info("disk space was freed: values can be stored again", "dir", s.dir, "free_bytes", n)
	}
}

// startBytes is what opening databases and electing a leader may write. On a disk without
// it the database engine does not fail, it waits for ever.
const startBytes = 4 << 20

// enoughToStart refuses to open anything on a full disk.
func (s *space) enoughToStart() error {
	if left := s.left.Load(); s.known.Load() && left < startBytes {
		return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Open", Key: s.dir,
			Msg:  fmt.Sprintf("the disk of %s is full: %d KiB are free, a start needs %d MiB", s.dir, left>>10, startBytes>>20),
			Hint: "free some space and start again, nothing acknowledged is lost"}
	}
	return nil
}

// allowed is the error for whoever stores a value now, or nil.
func (s *space) allowed() error {
	if e := s.full.Load(); e != nil {
		return e
	}
	return nil
}

// watch looks once a period until stop is closed.
func (s *space) watch(period time.Duration, stop <-chan struct{}) {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.look()
		case <-stop:
			return
		}
	}
}
