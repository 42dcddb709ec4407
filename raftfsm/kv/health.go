package kv

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
)

// maxFailures is how many consecutive background failures make the machine give up.
const maxFailures = 128

// health records the failures of a machine. A machine halts at an entry that it cannot apply; its state is correct and
// can still be read. A machine breaks if its data is damaged or its storage has failed permanently. A broken machine
// cannot be read.
type health struct {
	log      *slog.Logger
	fatal    func(error)
	once     sync.Once
	opening  atomic.Bool   // Create or Open is running and returns a failure; Fatal is not called
	down     chan struct{} // closed by the first halt or break
	halted   atomic.Pointer[fault.Error]
	broken   atomic.Pointer[fault.Error]
	stuck    chan struct{} // closed when Pebble may never return: do not wait for it
	stick    sync.Once
	failures atomic.Int64  // background failures since the last success
	total    atomic.Uint64 // background failures
	stalls   atomic.Uint64 // times that Pebble made Apply wait
	trouble  atomic.Pointer[trouble]
}

// trouble lets callers wait for the next background failure. When the failure occurs, the machine first sets err and
// then closes the channel happened.
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

// giveUp works like fail, for a failure after which calls to Pebble may never return.
func (h *health) giveUp(err *fault.Error) {
	h.fail(err)
	h.stick.Do(func() { close(h.stuck) })
}

// report calls Options.Fatal with err, at most once per machine. It uses a new goroutine, because the caller may
// hold locks that Fatal needs.
func (h *health) report(err *fault.Error) {
	h.once.Do(func() {
		close(h.down)
		if !h.opening.Load() {
			go h.fatal(err)
		}
	})
}

// readable returns nil if the machine may be read, and otherwise the reason why not.
func (h *health) readable() error {
	if err := h.broken.Load(); err != nil {
		return err
	}
	return nil
}

// writable returns nil if entries may be applied, and otherwise the reason why not.
func (h *health) writable() error {
	if err := h.halted.Load(); err != nil {
		return err
	}
	return h.readable()
}

// backgroundFailure records a failed flush or compaction. Pebble retries immediately and forever, so only some of
// the failures are logged. The caller may hold Pebble's lock.
func (h *health) backgroundFailure(err error) {
	h.total.Add(1)
	n := h.failures.Add(1)
	if n&(n-1) == 0 {
		h.log.Error("storage failed in the background and is retried; nothing is lost, the Raft log has what is "+
			"not stored yet. Free disk space or repair the disk",
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
			Hint: "free disk space or repair the disk, then start again; nothing is lost",
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
		Hint: "the data on this disk is damaged: replace the disk if it is failing, remove this replica's data so " +
			"that it is copied from the others, or restore a backup",
	}
}
