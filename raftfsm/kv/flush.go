package kv

import (
	"errors"
	"io/fs"

	"github.com/quorate/quorate/internal/fault"
)

// Flush writes Pebble's memtables to disk. If it returns nil, every entry up to the returned index is durable. If
// storage fails, Flush returns fault.Unavailable at once. Pebble continues to retry, so a later Flush may succeed.
func (m *Machine) Flush() (applied uint64, err error) {
	if err := m.use("kv.Flush"); err != nil {
		return 0, err
	}
	defer m.gate.leave()
	applied = m.Applied()
	trouble := m.health.trouble.Load()
	flushed, err := m.db.AsyncFlush()
	if err != nil {
		return 0, errStorage("kv.Flush", "cannot flush", err)
	}
	select {
	case <-flushed:
		return applied, nil
	case <-trouble.happened:
		return 0, &fault.Error{
			Code: fault.Unavailable, Op: "kv.Flush", Msg: "storage failed", Err: trouble.err,
			Hint: "free disk space or repair the disk; nothing is lost",
		}
	case <-m.health.stuck:
		return 0, m.health.readable()
	case <-m.gate.closing:
		return 0, errClosed("kv.Flush")
	}
}

// Checkpoint creates a copy of the database in dir, which must not exist. The copy consists of hard links where
// possible. The copy contains every entry up to the returned index, and maybe later ones.
func (m *Machine) Checkpoint(dir string) (applied uint64, err error) {
	if applied, err = m.Flush(); err != nil {
		return 0, err
	}
	if err := m.use("kv.Checkpoint"); err != nil {
		return 0, err
	}
	defer m.gate.leave()
	err = m.db.Checkpoint(dir)
	if errors.Is(err, fs.ErrExist) {
		return 0, &fault.Error{Code: fault.Invalid, Op: "kv.Checkpoint", Msg: dir + " exists already", Err: err}
	}
	switch {
	case err == nil:
		return applied, nil
	case isCorruption(err):
		return 0, errDamaged("kv.Checkpoint", "cannot make a copy in "+dir, err)
	}
	return 0, errUnusable("kv.Checkpoint", "cannot make a copy in "+dir, err)
}
