package datadir

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/signal"
)

// Space measures the free bytes on the disk of a data directory. The disk is low when fewer bytes than the reserve are
// free, and stays low until 1.5 times the reserve is free. The methods are safe for concurrent use, except Measure and
// Watch, which only one goroutine may call at a time.
//
// Between two measurements, a busy server can write more than the reserve. Admit therefore delays writes that could use
// up the reserve. Space counts the bytes written since the last measurement, and the bytes of admitted writes that have
// not ended. While the disk is not low, a write waits for the next measurement if it would raise this count above:
//
//	max((free bytes - reserve/2) / writeCost, leastBudget)
//
// When the disk becomes low, about half of the reserve is therefore left for background writes. Writes that do not pass
// through Admit, such as those of a follower's log, are counted but not delayed.
type Space struct {
	dir    string
	min    uint64
	free   func(dir string) (uint64, error)
	logger *slog.Logger

	full  atomic.Pointer[fault.Error]
	left  atomic.Uint64
	known atomic.Bool // left has been measured

	ask     chan struct{} // capacity 1: Watch is to measure now
	ended   chan struct{} // closed when Watch ends
	changed *signal.Signal

	mu         sync.Mutex
	budget     uint64 // bytes that may be written until the next measurement
	written    uint64 // since the last measurement
	admitted   uint64 // by Admit, and not ended
	looks      uint64 // number of measurements by Watch whose callback has returned
	decidedLow bool   // the disk was low at the last of these measurements
	waiting    int    // calls of Admit that wait
}

const (
	// writeCost is the maximum number of bytes that one written byte can take on the disk. The byte is stored once in
	// the log and once in a table. A compaction that rewrites the table needs two more bytes, until Pebble has removed
	// the older files.
	writeCost = 4
	// leastBudget is the minimum number of bytes that may be written between two measurements, however little space
	// is free. It is below the reserve, except in tests that fill a disk.
	leastBudget = 1 << 20
	// unknownBudget is the budget while the free space is not known.
	unknownBudget = 1 << 62
)

// NewSpace returns a Space for the disk of dir. minimum is the reserve in bytes. The function free measures the free
// bytes on the disk of a directory; nil = ask the operating system.
func NewSpace(dir string, minimum uint64, free func(dir string) (uint64, error), logger *slog.Logger) *Space {
	if free == nil {
		free = freeBytes
	}
	return &Space{dir: dir, min: minimum, free: free, logger: logger, ask: make(chan struct{}, 1),
		ended: make(chan struct{}), changed: signal.New(), budget: unknownBudget}
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
func (s *Space) Measure() { s.measure(func() {}) }

// measure measures the free bytes once, and then calls report, which decides whether values can be stored. The
// measurement changes how many bytes Admit allows, but only after report has returned.
func (s *Space) measure(report func()) {
	s.mu.Lock()
	counted := s.written
	s.mu.Unlock()
	n, err := s.free(s.dir)
	budget := uint64(unknownBudget)
	if err != nil {
		s.logger.Warn("cannot tell the free space of the data directory", "dir", s.dir, "error", err)
	} else {
		budget = max((n-min(n, s.min/2))/writeCost, leastBudget)
		s.judge(n)
	}
	report()
	s.mu.Lock()
	s.written -= counted // the measurement has seen these
	s.budget = budget
	s.mu.Unlock()
}

// judge records that n bytes are free, and whether the disk is low.
func (s *Space) judge(n uint64) {
	s.left.Store(n)
	s.known.Store(true)
	was := s.full.Load() != nil
	switch {
	case !was && n < s.min:
		s.full.Store(&fault.Error{Code: fault.ReadOnly, Op: "raftfsm.space", Key: s.dir,
			Msg:  fmt.Sprintf("less than %d MiB are free on the disk of %s", s.min>>20, s.dir),
			Hint: "free some space; until then this server leads only if no other voter can"})
		s.logger.Error("the disk is nearly full: this server leads only if no other voter can, and groups are "+
			"read-only while the disks of a majority of their voters are nearly full",
			"dir", s.dir, "free_bytes", n, "min_free_bytes", s.min)
	case was && n >= s.min+s.min/2:
		s.full.Store(nil)
		s.logger.Info("disk space was freed", "dir", s.dir, "free_bytes", n)
	}
}

// startBytes is the minimum number of free bytes for opening the databases and electing a leader. With less free space,
// the database engine would not return an error, but wait forever.
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

// Free returns the free bytes according to the last successful measurement; 0 = there was none.
func (s *Space) Free() uint64 { return s.left.Load() }

// Measured returns the free bytes according to the last successful measurement, and the reserve. With fewer free
// bytes than the reserve, the disk is low. The result known is false if there was no successful measurement yet.
func (s *Space) Measured() (free, reserve uint64, known bool) {
	return s.left.Load(), s.min, s.known.Load()
}

// Watch measures the free space once per period, and also when Admit or Wrote needs a new measurement. It calls the
// given callback after each measurement. Watch returns when stop is closed. It may be called only once.
func (s *Space) Watch(period time.Duration, then func(), stop <-chan struct{}) {
	defer close(s.ended)
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.ask:
		case <-stop:
			return
		}
		s.measure(then)
		s.mu.Lock()
		s.looks++
		s.decidedLow = s.Low() != nil
		s.mu.Unlock()
		s.changed.Fire()
	}
}

// Wrote counts bytes that were written to the disk. It does not block.
func (s *Space) Wrote(n uint64) {
	s.mu.Lock()
	s.written += n
	over := s.written+s.admitted > s.budget
	s.mu.Unlock()
	if over {
		s.look()
	}
}

// look makes Watch measure now.
func (s *Space) look() {
	select {
	case s.ask <- struct{}{}:
	default:
	}
}

// Admit waits until n bytes can be written without using up the reserve, and then counts them as admitted. The caller
// must call done when Wrote has counted the bytes, or when they will not be written.
//
// If the bytes could use up the reserve, Admit waits for a new measurement and the callback of Watch. If the disk is
// low after the measurement, Admit admits the write, because the callback has already decided which groups are
// read-only. If the disk is not low, Admit waits until enough earlier writes have ended.
//
// Admit returns fault.ReadOnly if the write is too large for the free space, fault.Timeout if ctx ends, and
// fault.Unavailable if Watch ends.
func (s *Space) Admit(ctx context.Context, n uint64) (done func(), err error) {
	s.mu.Lock()
	for before := s.looks; ; s.mu.Lock() {
		fresh := s.looks > before
		switch {
		case s.written+s.admitted+n <= s.budget, fresh && s.decidedLow:
			s.admitted += n
			s.mu.Unlock()
			return func() { s.end(n) }, nil
		case fresh && n > s.budget:
			s.mu.Unlock()
			return nil, &fault.Error{Code: fault.ReadOnly, Op: "raftfsm.space", Key: s.dir,
				Msg: fmt.Sprintf("a write of %d KiB could fill the disk of %s: %d MiB are free", n>>10, s.dir,
					s.Free()>>20),
				Hint: "free some space, or write less at once"}
		}
		change, measure := s.changed.Wait(), !fresh || s.written > 0
		s.waiting++
		s.mu.Unlock()
		if measure {
			s.look()
		}
		select {
		case <-change:
		case <-ctx.Done():
			err = &fault.Error{Code: fault.Timeout, Op: "raftfsm.space", Err: context.Cause(ctx),
				Msg: "the write was not started in time: earlier writes must end first, as the disk is nearly full"}
		case <-s.ended:
			err = fault.New(fault.Unavailable, "raftfsm.space", "this node is shutting down")
		}
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// end ends a write of n bytes that Admit has admitted.
func (s *Space) end(n uint64) {
	s.mu.Lock()
	s.admitted -= n
	waited := s.waiting > 0
	s.mu.Unlock()
	if waited {
		s.changed.Fire()
	}
}
