package kv

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/quorate/quorate/internal/fault"
)

// Raise prepares the machine of a rescued or restored group for new requests. It raises the revision counter by the
// given number and removes all origins, because lost entries may have used the next revisions and sequence numbers. It
// also removes all histories, but keeps the results of requests with a client id.
//
// The change is durable when Raise returns nil. After an error the machine must not be used.
func (m *Machine) Raise(by uint64) error {
	return m.amend("kv.Raise", func(w *writer) error {
		if w.meta.revision > never-by {
			return fault.New(fault.Invalid, "kv.Raise",
				fmt.Sprintf("revision %d cannot be raised by %d", w.meta.revision, by))
		}
		w.meta.revision += by
		for _, o := range w.origins.oldest(len(w.origins.byNumber)) {
			w.drop(o)
		}
		w.dropHistories()
		// The hash must differ from that of a machine that continued without Raise.
		w.meta.hash = xxhash.Sum64String(fmt.Sprintf("raise %d %d %d", w.meta.hash, w.meta.applied, by))
		return nil
	})
}

// SetApplied sets the applied index and term of a restored machine. It replaces the values in the database, which refer
// to another log. The change is durable when SetApplied returns nil. After an error the machine must not be used.
func (m *Machine) SetApplied(index, term uint64) error {
	return m.amend("kv.SetApplied", func(w *writer) error {
		w.meta.applied, w.meta.term = index, term
		w.terms.forget(&w.txn)
		return nil
	})
}

// amend commits the writes of a function and flushes them to disk. It is for changes that have no log entry.
func (m *Machine) amend(op string, change func(*writer) error) error {
	if !m.gate.enter() {
		return errClosed(op)
	}
	defer m.gate.leave()
	if err := m.health.writable(); err != nil {
		return err
	}
	if err := m.change(change); err != nil {
		if _, ok := fault.As(err); ok {
			return err
		}
		failure := errStorage(op, "storage failed", err)
		m.health.fail(failure)
		return failure
	}
	_, err := m.Flush()
	return err
}

func (m *Machine) change(change func(*writer) error) (err error) {
	w := m.writer
	w.begin()
	defer func() { err = keep(err, w.end()) }()
	if err := change(w); err != nil {
		return err
	}
	return m.commit()
}
