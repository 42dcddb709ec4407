package kv

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Garbage is the disk space that deleted records still use. A deletion frees space only when Pebble compacts the tables
// that contain the deletion. Pebble starts compactions only as a result of further writes.
type Garbage struct {
	Bytes     uint64 // an estimate
	Total     uint64 // bytes of all tables, garbage included
	Unflushed bool   // there were deletions since the last call of Reclaim or FlushDeletions; Bytes is too small
}

// Garbage returns how much disk space deleted records take. It returns zeros when the machine is closed or broken.
func (m *Machine) Garbage() Garbage {
	if m.use("kv.Garbage") != nil {
		return Garbage{}
	}
	defer m.gate.leave()
	g := Garbage{Unflushed: m.deletions.Load() > 0}
	tables, err := m.sortedTables()
	if err != nil {
		return g
	}
	for i := range tables {
		t := &tables[i]
		g.Total += t.Size
		g.Bytes += t.TableStats.PointDeletionsBytesEstimate + t.TableStats.RangeDeletionsBytesEstimate
	}
	g.Bytes = min(g.Bytes, g.Total)
	return g
}

// FlushDeletions flushes Pebble's memtables, so that their deletions reach the tables on disk. Soon afterwards, Garbage
// includes these deletions.
func (m *Machine) FlushDeletions() error {
	n := m.deletions.Load()
	if _, err := m.Flush(); err != nil {
		return err
	}
	m.deletions.Add(-n)
	return nil
}

// Reclaim frees the disk space of deleted and overwritten records. It returns how many bytes smaller the tables are
// now. It changes no record.
//
// Reclaim compacts the database in slices. A slice has about room bytes, but at least one table. Its old tables are
// removed only after the new ones are written, so each slice temporarily needs about its own size in free space.
// Reclaim stops with an error if ctx ends or the machine is closed. No data is lost in this case.
func (m *Machine) Reclaim(ctx context.Context, room uint64) (freed uint64, err error) {
	if err := m.FlushDeletions(); err != nil {
		return 0, err
	}
	if err := m.use("kv.Reclaim"); err != nil {
		return 0, err
	}
	defer m.gate.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tables, err := m.sortedTables()
	if err != nil || len(tables) == 0 {
		return 0, err
	}
	before := sizeOf(tables)
	done := make(chan error, 1)
	go func() { done <- m.compact(ctx, cut(tables, room)) }()
	for closing := m.gate.closing; ; {
		select {
		case err := <-done:
			switch {
			case closing == nil:
				return 0, errClosed("kv.Reclaim")
			case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
				return 0, err
			case err != nil:
				return 0, errStorage("kv.Reclaim", "cannot compact", err)
			}
			if tables, err = m.sortedTables(); err != nil {
				return 0, errStorage("kv.Reclaim", "cannot list the tables", err)
			}
			return before - min(before, sizeOf(tables)), nil
		case <-m.health.stuck:
			return 0, m.health.readable()
		case <-closing:
			closing = nil
			cancel()
		}
	}
}

func (m *Machine) compact(ctx context.Context, ranges []keyRange) error {
	for _, r := range ranges {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.db.Compact(ctx, r.start, r.end, false); err != nil {
			return err
		}
	}
	return nil
}

// sortedTables returns the tables of all levels by their smallest key.
func (m *Machine) sortedTables() ([]pebble.SSTableInfo, error) {
	levels, err := m.db.SSTables()
	if err != nil {
		return nil, err
	}
	all := slices.Concat(levels...)
	slices.SortFunc(all, func(a, b pebble.SSTableInfo) int {
		return bytes.Compare(a.Smallest.UserKey, b.Smallest.UserKey)
	})
	return all, nil
}

func sizeOf(tables []pebble.SSTableInfo) (size uint64) {
	for i := range tables {
		size += tables[i].Size
	}
	return size
}

// keyRange is a range of keys. Both ends are included.
type keyRange struct{ start, end []byte }

// cut divides the key range of sorted tables into consecutive ranges for compaction. The tables that begin in the same
// range have a total size of about room bytes.
func cut(tables []pebble.SSTableInfo, room uint64) (out []keyRange) {
	last, size := tables[0].Largest.UserKey, uint64(0)
	start := tables[0].Smallest.UserKey
	for i := range tables {
		t := &tables[i]
		if size > 0 && size+t.Size > room && bytes.Compare(start, t.Smallest.UserKey) < 0 {
			out = append(out, keyRange{start, t.Smallest.UserKey})
			start, size = t.Smallest.UserKey, 0
		}
		size += t.Size
		if bytes.Compare(last, t.Largest.UserKey) < 0 {
			last = t.Largest.UserKey
		}
	}
	return append(out, keyRange{start, append(bytes.Clone(last), 0)}) // Pebble wants start < end
}
