package datadir_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/datadir"
)

const (
	mib     = 1 << 20
	reserve = 64 * mib
)

// smallDisk is a disk on which a written byte takes four bytes, the most that datadir.Space expects.
type smallDisk struct {
	*datadir.Space
	free     atomic.Int64
	looks    atomic.Int64
	readOnly atomic.Bool
	fails    atomic.Bool
}

// newDisk returns a disk that is measured only on demand. Call it in a bubble of testing/synctest.
func newDisk(t *testing.T, free int64) *smallDisk {
	d := &smallDisk{}
	d.free.Store(free)
	d.Space = datadir.NewSpace("dir", reserve, func(string) (uint64, error) {
		if d.looks.Add(1); d.fails.Load() {
			return 0, errors.New("no such call")
		}
		return uint64(max(d.free.Load(), 0)), nil
	}, slog.New(slog.DiscardHandler))
	d.Measure()
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { d.Watch(1000*time.Hour, func() { d.readOnly.Store(d.Low() != nil) }, stop) })
	t.Cleanup(func() {
		close(stop)
		watching.Wait()
	})
	return d
}

var errReadOnly = errors.New("read-only")

// write writes n bytes as a server does. It takes a millisecond.
func (d *smallDisk) write(ctx context.Context, n uint64) error {
	done, err := d.Admit(ctx, n)
	if err != nil {
		return err
	}
	defer done()
	if d.readOnly.Load() {
		return errReadOnly
	}
	<-time.After(time.Millisecond)
	d.free.Add(-4 * int64(n)) //nolint:gosec // small
	d.Wrote(n)
	return nil
}

func TestSpace_ReserveHoldsBetweenMeasurements(t *testing.T) {
	for name, c := range map[string]struct {
		writers int
		size    uint64
	}{
		"one writer":                    {1, mib},
		"a hundred writers":             {100, mib},
		"a hundred writers of 7 MiB":    {100, 7 * mib},
		"a thousand writers of 100 KiB": {1000, 100 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk(t, 1000*mib)
				var writers sync.WaitGroup
				var written atomic.Int64
				for range c.writers {
					writers.Go(func() {
						err := d.write(t.Context(), c.size)
						for ; err == nil; err = d.write(t.Context(), c.size) {
							written.Add(1)
						}
						if !errors.Is(err, errReadOnly) && !fault.Is(err, fault.ReadOnly) {
							t.Error(err)
						}
					})
				}
				writers.Wait()
				if free := d.free.Load(); free < reserve/2 || free > reserve+4*9*mib {
					t.Errorf("%d MiB are free after %d writes, want at least half of the reserve of %d MiB", free/mib,
						written.Load(), reserve/mib)
				}
			})
		})
	}
}

// A measurement finds a low disk. No write passes until the callback has decided whether values can be stored. One
// write waits since before an earlier measurement. For another, new write, the new budget would suffice.
func TestSpace_NoWritePassesBeforeTheCallbackDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Uint64
		free.Store(reserve + 8*mib) // 10 MiB may be written
		d := datadir.NewSpace("dir", reserve, func(string) (uint64, error) { return free.Load(), nil },
			slog.New(slog.DiscardHandler))
		d.Measure()
		admit := func(n uint64) (done func()) {
			done, err := d.Admit(t.Context(), n)
			if err != nil {
				t.Error(err)
			}
			return done
		}
		var passed atomic.Int32
		write := func(n uint64) {
			done := admit(n)
			passed.Add(1)
			done()
		}
		large, small := admit(9*mib), admit(mib/2)
		stop, decide := make(chan struct{}), make(chan struct{}, 1)
		go d.Watch(1000*time.Hour, func() { <-decide }, stop)
		go write(5 * mib)
		decide <- struct{}{} // the disk is not low, but other writes must end first
		synctest.Wait()
		free.Store(reserve/2 + 2*mib)
		d.Wrote(mib)
		synctest.Wait()
		small() // wakes the write that waits
		go write(100 << 10)
		synctest.Wait()
		if n := passed.Load(); n > 0 {
			t.Errorf("%d writes have passed before the callback has decided", n)
		}
		close(decide)
		synctest.Wait()
		if n := passed.Load(); n != 2 {
			t.Errorf("%d writes have passed afterwards, want 2", n)
		}
		large()
		close(stop)
	})
}

func TestSpace_SmallWritesNeedNoMeasurement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t, 1000*mib)
		for range 10_000 { // 10 MiB of 242 MiB that may be written
			if err := d.write(t.Context(), 1<<10); err != nil {
				t.Fatal(err)
			}
		}
		if n := d.looks.Load(); n != 1 {
			t.Errorf("the disk was measured %d times, want once", n)
		}
	})
}

// The log of a follower grows without Admit. So Wrote alone must make Watch measure in time.
func TestSpace_WrittenBytesAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t, 100*mib)
		for range 20 {
			d.free.Add(-4 * mib)
			d.Wrote(mib)
			synctest.Wait()
		}
		if d.Low() == nil || d.free.Load() < 0 {
			t.Errorf("the disk is not low with %d MiB", d.free.Load()/mib)
		}
	})
}

func TestSpace_TooLargeWriteIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t, 72*mib)
		if err := d.write(t.Context(), 11*mib); !fault.Is(err, fault.ReadOnly) {
			t.Errorf("a write of 11 MiB gave %v, want %s: 72 MiB are free", err, fault.ReadOnly)
		}
		if err := d.write(t.Context(), 9*mib); err != nil {
			t.Errorf("a write of 9 MiB gave %v", err)
		}
	})
}

func TestSpace_FullDiskMakesWritesWaitForEarlierOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t, 72*mib)
		done, err := d.Admit(t.Context(), 6*mib)
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.Admit(short, 6*mib); !fault.Is(err, fault.Timeout) {
			t.Errorf("a second write gave %v, want %s", err, fault.Timeout)
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			done, err := d.Admit(t.Context(), 6*mib)
			if err != nil {
				t.Error(err)
				return
			}
			done()
		})
		synctest.Wait()
		done() // nothing was written
		waiting.Wait()
	})
}

func TestSpace_UnknownSpaceAdmitsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t, 72*mib)
		d.fails.Store(true)
		d.Measure()
		if err := d.write(t.Context(), 500*mib); err != nil {
			t.Error(err)
		}
	})
}
