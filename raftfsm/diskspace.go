package raftfsm

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// diskSpace watches the free bytes on the disk of the data directory. The disk is low when fewer than min bytes are
// free, and until one and a half times min is free again.
type diskSpace struct {
	dir    string
	min    uint64
	free   func(dir string) (uint64, error)
	logger *slog.Logger

	full  atomic.Pointer[fault.Error]
	left  atomic.Uint64
	known atomic.Bool // left has been measured
}

// freeBytes returns how many bytes an unprivileged user may still write.
func freeBytes(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}

// measure measures the free bytes once.
func (s *diskSpace) measure() {
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
			Msg:  fmt.Sprintf("less than %d MiB are free on the disk of %s", s.min>>20, s.dir),
			Hint: "free some space; this server does not lead until then"})
		s.logger.Error("the disk is nearly full: this server does not lead until space is freed, and groups are "+
			"read-only while the disks of a majority of their voters are nearly full",
			"dir", s.dir, "free_bytes", n, "min_free_bytes", s.min)
	case was && n >= s.min+s.min/2:
		s.full.Store(nil)
		s.logger.Info("disk space was freed", "dir", s.dir, "free_bytes", n)
	}
}

// startBytes is the free space in bytes needed to open databases and elect a leader. If less is free, the database
// engine waits forever instead of failing.
const startBytes = 4 << 20

// enoughToStart returns an error if the disk is too full to open the databases.
func (s *diskSpace) enoughToStart() error {
	if left := s.left.Load(); s.known.Load() && left < startBytes {
		return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Open", Key: s.dir,
			Msg: fmt.Sprintf("the disk of %s is full: %d KiB are free, a start needs %d MiB", s.dir, left>>10,
				startBytes>>20),
			Hint: "free some space and start again, nothing acknowledged is lost"}
	}
	return nil
}

// allowed returns nil if the disk has enough space to store values, and an error if the disk is low.
func (s *diskSpace) allowed() error {
	if e := s.full.Load(); e != nil {
		return e
	}
	return nil
}

// watch measures the free space once per period and then calls the function then. It returns when stop is closed.
func (s *diskSpace) watch(period time.Duration, then func(), stop <-chan struct{}) {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.measure()
			then()
		case <-stop:
			return
		}
	}
}
