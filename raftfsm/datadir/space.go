package datadir

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Space measures the free bytes on the disk of a data directory. The disk becomes low when fewer than min bytes are
// free. It stays low until 1.5 times min is free. The methods are safe for concurrent use, except Measure and Watch,
// which only one goroutine may call at a time.
type Space struct {
	dir    string
	min    uint64
	free   func(dir string) (uint64, error)
	logger *slog.Logger

	full  atomic.Pointer[fault.Error]
	left  atomic.Uint64
	known atomic.Bool // left has been measured
}

// NewSpace returns a Space for the disk of dir. minimum is the number of free bytes below which the disk is low. The
// function free measures the free bytes on the disk of a directory; nil = ask the operating system.
func NewSpace(dir string, minimum uint64, free func(dir string) (uint64, error), logger *slog.Logger) *Space {
	if free == nil {
		free = freeBytes
	}
	return &Space{dir: dir, min: minimum, free: free, logger: logger}
}

// freeBytes returns how many bytes an unprivileged user may still write.
func freeBytes(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}

// Measure measures the free bytes once.
func (s *Space) Measure() {
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

// startBytes is how many free bytes are needed to open databases and elect a leader. With less space, the database
// engine would wait forever instead of failing.
const startBytes = 4 << 20

// EnoughToStart returns an error if the disk is too full to open the databases.
func (s *Space) EnoughToStart() error {
	if left := s.left.Load(); s.known.Load() && left < startBytes {
		return &fault.Error{Code: fault.Unavailable, Op: "raftfsm.Open", Key: s.dir,
			Msg: fmt.Sprintf("the disk of %s is full: %d KiB are free, a start needs %d MiB", s.dir, left>>10,
				startBytes>>20),
			Hint: "free some space and start again, nothing acknowledged is lost"}
	}
	return nil
}

// Low returns an error if the disk is low, and nil if it has enough space to store values.
func (s *Space) Low() *fault.Error { return s.full.Load() }

// Free returns the free bytes as last measured; 0 if that has never succeeded.
func (s *Space) Free() uint64 { return s.left.Load() }

// Measured returns the free bytes according to the last measurement, and the reserve. With fewer free bytes than the
// reserve, the disk is low. The result known is false if there was no measurement yet.
func (s *Space) Measured() (free, reserve uint64, known bool) {
	return s.left.Load(), s.min, s.known.Load()
}

// Watch measures the free space once per period and calls a callback after each measurement. It returns when stop is
// closed.
func (s *Space) Watch(period time.Duration, then func(), stop <-chan struct{}) {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.Measure()
			then()
		case <-stop:
			return
		}
	}
}
