package kv

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/internal/fault"
)

// waiters are the running calls of Wait.
type waiters struct {
	count atomic.Int64 // lets Apply skip the lock when there are none
	mu    sync.Mutex
	all   map[*waiter]struct{}
}

type waiter struct {
	index   uint64
	reached chan struct{}
}

func (w *waiters) add(index uint64) *waiter {
	n := &waiter{index: index, reached: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[*waiter]struct{})
	}
	w.all[n] = struct{}{}
	w.count.Add(1)
	return n
}

func (w *waiters) remove(n *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(n)
}

// drop removes the waiter n. The caller holds the lock.
func (w *waiters) drop(n *waiter) {
	if _, ok := w.all[n]; ok {
		delete(w.all, n)
		w.count.Add(-1)
	}
}

// reached wakes every waiter for the given index or a lower one.
func (w *waiters) reached(index uint64) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.all {
		if n.index <= index {
			close(n.reached)
			w.drop(n)
		}
	}
}

// Wait waits until every entry up to the given index has been applied. It returns fault.Timeout if ctx ends first, and
// fault.Unavailable if the machine closes or cannot continue.
func (m *Machine) Wait(ctx context.Context, index uint64) error {
	if m.Applied() >= index {
		return nil
	}
	w := m.waiters.add(index)
	defer m.waiters.remove(w)
	// An Apply may have published the index before it could see w.
	if m.Applied() >= index {
		return nil
	}
	select {
	case <-w.reached:
		return nil
	case <-ctx.Done():
		msg := fmt.Sprintf("applied up to %d, waiting for %d", m.Applied(), index)
		return &fault.Error{Code: fault.Timeout, Op: "kv.Wait", Msg: msg, Err: ctx.Err()}
	case <-m.gate.closing:
		return errClosed("kv.Wait")
	case <-m.health.down:
		return &fault.Error{Code: fault.Unavailable, Op: "kv.Wait", Msg: "the machine cannot continue",
			Err: m.health.writable()}
	}
}

func errClosed(op string) error {
	return fault.New(fault.Unavailable, op, "the replica is closed")
}
