package raftlog

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/quorate/quorate/internal/logadapt"
)

// walEngine wraps raft-wal. It repairs the log before opening it (see repairWAL). After a failure to add a segment,
// raft-wal refuses all appends. walEngine then reopens the log, which adds the segment, and retries the append. The
// retry neither loses nor duplicates an entry.
type walEngine struct {
	dir    string
	logger *slog.Logger
	open   func() (Backend, error)

	mu  sync.RWMutex // held for writing while the log is reopened
	wal Backend
}

var _ Backend = (*walEngine)(nil)

func openWAL(dir string, logger *slog.Logger) (*walEngine, error) {
	e := &walEngine{dir: dir, logger: logger, open: func() (Backend, error) {
		done, err := repairWAL(dir)
		if err != nil {
			return nil, err
		}
		if done != "" {
			logger.Info("the end of the log was repaired", "dir", dir, "because", done)
		}
		return wal.Open(dir, wal.WithLogger(logadapt.HCLog(logger).Named("wal")),
			wal.WithSegmentFiler(segmentFiles(dir)))
	}}
	var err error
	e.wal, err = e.open()
	return e, err
}

// StoreLog implements raft.LogStore.
func (e *walEngine) StoreLog(l *raft.Log) error { return e.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (e *walEngine) StoreLogs(logs []*raft.Log) error {
	e.mu.RLock()
	err := e.wal.StoreLogs(logs)
	e.mu.RUnlock()
	if !errors.Is(err, wal.ErrSealed) {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.logger.Warn("the newest segment of the log is sealed; reopening the log", "dir", e.dir)
	if err := e.wal.Close(); err != nil {
		return err
	}
	opened, err := e.open()
	if err != nil {
		return err // readers get the error of the closed log
	}
	e.wal = opened
	return e.wal.StoreLogs(logs)
}

// GetLog implements raft.LogStore.
func (e *walEngine) GetLog(index uint64, l *raft.Log) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.wal.GetLog(index, l)
}

// FirstIndex implements raft.LogStore.
func (e *walEngine) FirstIndex() (uint64, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.wal.FirstIndex()
}

// LastIndex implements raft.LogStore.
func (e *walEngine) LastIndex() (uint64, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.wal.LastIndex()
}

// DeleteRange implements raft.LogStore.
func (e *walEngine) DeleteRange(lo, hi uint64) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.wal.DeleteRange(lo, hi)
}

// Close closes the log.
func (e *walEngine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wal.Close()
}
