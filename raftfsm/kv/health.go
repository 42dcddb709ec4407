package kv

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
)

// maxFailures is how many background failures in a row, without one success between
// them, are borne before the machine gives up.
const maxFailures = 128

// health records what went wrong. A machine is halted when it met an entry it cannot
// apply: what it holds is right and may be read. It is broken when its storage cannot be
// trusted or cannot go on: nothing is read from it any more.
type health struct {
	log      *slog.Logger
	fatal    func(error)
	once     sync.Once
	opening  atomic.Bool   // Open returns the failure: nobody else is told
	down     chan struct{} // closed by the first halt or break
	halted   atomic.Pointer[fault.Error]
	broken   atomic.Pointer[fault.Error]
	stuck    chan struct{} // closed when Pebble may never answer again: do not wait for it
	stick    sync.Once
	failures atomic.Int64  // background failures since the last success
	total    atomic.Uint64 // background failures
	stalls   atomic.Uint64 // times that Pebble made Apply wait
	trouble  atomic.Pointer[trouble]
}

// trouble is the next background failure: its channel is closed when it has happened.
type trouble struct {
	happened chan struct{}
	err      error
}

func newHealth(log *slog.Logger, fatal func(error)) *health {
	h := &health{log: log, fatal: fatal, down: make(chan struct{}), stuck: make(chan struct{})}
	h.trouble.Store(&trouble{happened: make(chan struct{})})
	h.opening.Store(true)
	return h
}

func (h *health) halt(err *fault.Error) {
	h.halted.CompareAndSwap(nil, err)
	h.report(err)
}

func (h *health) fail(err *fault.Error) {
	h.broken.CompareAndSwap(nil, err)
	h.report(err)
}

// giveUp is fail when Pebble may never answer again.
func (h *health) giveUp(err *fault.Error) {
	h.fail(err)
	h.stick.Do(func() { close(h.stuck) })
}

// report calls Fatal at most once, and never on the caller's goroutine: the caller may
// hold locks of Pebble, or be a call that Close waits for.
func (h *health) report(err *fault.Error) {
	h.once.Do(func() {
		close(h.down)
		if !h.opening.Load() {
			go h.fatal(err)
		}
	})
}

// readable returns why nothing may be read, or nil.
func (h *health) readable() error {
	if err := h.broken.Load(); err != nil {
		return err
	}
	return nil
}

// writable returns why nothing may be applied, or nil.
func (h *health) writable() error {
	if err := h.halted.Load(); err != nil {
		return err
	}
	return h.readable()
}

// backgroundFailure notes that a flush or compaction failed; Pebble will try it again at
// once and for ever. It may hold Pebble's lock. Lines are thinned out, because a full
// disk fails thousands of times in a second.
func (h *health) backgroundFailure(err error) {
	h.total.Add(1)
	n := h.failures.Add(1)
	if n&(n-1) == 0 {
		h.log.Error("storage failed in the background and is tried again; nothing is lost, the log has what is not stored yet. Free disk space or mend the disk",
			"err", err, "failures_in_a_row", n)
	}
	next := &trouble{happened: make(chan struct{})}
	now := h.trouble.Swap(next)
	now.err = err
	close(now.happened)
	if n >= maxFailures {
		h.giveUp(&fault.Error{
			Code: fault.Unavailable, Op: "kv.storage", Err: err,
			Msg:  fmt.Sprintf("storage failed %d times in a row", n),
			Hint: "free disk space or mend the disk, then start again; nothing is lost",
		})
	}
}

func (h *health) backgroundSuccess() {
	if n := h.failures.Swap(0); n > 0 {
		h.log.Info("storage works again", "failures_before", n)
	}
}

func errStorage(op, msg string, err error) *fault.Error {
	if isCorruption(err) {
		return errDamaged(op, msg, err)
	}
	return &fault.Error{Code: fault.Internal, Op: op, Msg: msg, Err: err, Hint: "check the disk and its file system"}
}

func errDamaged(op, msg string, err error) *fault.Error {
	return &fault.Error{
		Code: fault.Corrupt, Op: op, Msg: msg, Err: err,
		Hint: "the data on this disk is damaged: replace the disk if it is failing, remove this replica's data and let it be copied from the others, or restore a backup",
	}
}
