package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/quorate/quorate/internal/fault"
)

// pebbleFormat is the version of Pebble's file format. It is the first version with checksums in the footers of tables.
// It is set explicitly, so that a newer release of Pebble does not change it.
const pebbleFormat = pebble.FormatTableFormatV6

const defaultMemTable = 16 << 20

// engine opens Pebble and holds the state of its callbacks.
type engine struct {
	health *health
	inOpen atomic.Bool // pebble.Open is running
}

// pebbleOptions returns options that limit memory use, even at the cost of throughput. Every level has a Bloom filter,
// because every write checks whether its key exists.
func (e *engine) pebbleOptions(o Options) *pebble.Options {
	p := &pebble.Options{
		DisableWAL:                  true, // the Raft log takes its place
		FormatMajorVersion:          pebbleFormat,
		MemTableSize:                o.MemTable,
		MemTableStopWritesThreshold: 2,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       12,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                1000,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		Cache:                       o.Cache,
		CacheSize:                   int64(3*o.MemTable) + 8<<20, //nolint:gosec // the cache includes memtables
		FS:                          o.FS,
		Logger:                      &pebbleLogger{engine: e},
		EventListener:               e.listener(),
	}
	p.Experimental.CompactionScheduler = scheduler{pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
	for i := range p.Levels {
		p.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	if p.FS == nil {
		p.WithFSDefaults() // the operating system's, with a watch for slow disks
	}
	p.FS = &pacedFS{FS: p.FS, health: e.health, backoff: o.Backoff}
	return p
}

// scheduler decides when compactions start. It works like Pebble's ConcurrencyLimitScheduler, but without the ticker
// that looks for waiting compactions ten times a second. The ticker would wake an idle process. Instead, scheduler
// looks for waiting compactions at the end of each flush, because a flush can raise the number of compactions that may
// run.
type scheduler struct {
	*pebble.ConcurrencyLimitScheduler
}

// UpdateGetAllowedWithoutPermission starts waiting compactions if more compactions may run than are running now. Pebble
// calls it at the end of a flush, with the mutex of the database held.
func (s scheduler) UpdateGetAllowedWithoutPermission() {
	go func() {
		if allowed, grant := s.TrySchedule(); allowed {
			grant.Done() // gives the place back, and fills all free places with waiting compactions
		}
	}()
}

// open opens the Pebble database in dir. It runs pebble.Open in a separate goroutine, because Pebble calls Fatalf if
// the disk cannot be written. Fatalf then ends that goroutine, and open returns the error.
func (e *engine) open(dir string, p *pebble.Options) (db *pebble.DB, err error) {
	e.inOpen.Store(true)
	defer e.inOpen.Store(false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		db, err = pebble.Open(dir, p)
	}()
	<-done
	if db == nil && err == nil {
		err = e.health.readable()
	}
	return db, err
}

func (e *engine) listener() *pebble.EventListener {
	log, health := e.health.log, e.health
	return &pebble.EventListener{
		BackgroundError: health.backgroundFailure,
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			health.fail(errDamaged("kv.storage", "file "+i.Path+" is damaged", i.Details))
		},
		DiskSlow: func(i pebble.DiskSlowInfo) {
			log.Warn("the disk is slow", "file", i.Path, "operation", i.OpType.String(), "took", i.Duration)
		},
		FlushEnd: func(i pebble.FlushInfo) {
			if i.Err == nil {
				health.backgroundSuccess()
			}
		},
		CompactionEnd: func(i pebble.CompactionInfo) {
			if i.Err == nil {
				health.backgroundSuccess()
			}
		},
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
			health.stalls.Add(1)
			log.Debug("applying waits for storage: it is written faster than the disk takes it", "reason", i.Reason)
		},
	}
}

// pebbleLogger writes Pebble's lines to the machine's log.
type pebbleLogger struct{ engine *engine }

func (l *pebbleLogger) Infof(format string, args ...any) {
	log := l.engine.health.log
	if log.Enabled(context.Background(), slog.LevelDebug) {
		log.Debug(fmt.Sprintf(format, args...), "from", "pebble")
	}
}

func (l *pebbleLogger) Errorf(format string, args ...any) {
	l.engine.health.log.Error(fmt.Sprintf(format, args...), "from", "pebble")
}

// Fatalf implements pebble.Logger. Pebble calls it when it cannot continue, usually after a failed write of the
// MANIFEST. Pebble expects that Fatalf ends the process.
//
// During pebble.Open, Fatalf ends the calling goroutine, and Open returns the error. At any other time, Fatalf calls
// Options.Fatal and then blocks forever. The blocked goroutine keeps its locks, so no file of the database changes
// any more. The next Open recovers as after a crash.
func (l *pebbleLogger) Fatalf(format string, args ...any) {
	err := &fault.Error{
		Code: fault.Internal, Op: "kv.storage", Msg: fmt.Sprintf(format, args...),
		Hint: "check the disk for space and errors, then start again; nothing that was acknowledged is lost",
	}
	h := l.engine.health
	if l.engine.inOpen.Load() {
		h.broken.CompareAndSwap(nil, err)
		runtime.Goexit()
	}
	h.giveUp(err)
	select {}
}

// pacedFS slows down Pebble's retries. While flushes or compactions fail, it calls Options.Backoff before it creates
// a file.
type pacedFS struct {
	vfs.FS
	health  *health
	backoff func(failures int)
}

func (p *pacedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if n := p.health.failures.Load(); n > 0 && p.backoff != nil {
		p.backoff(int(n))
	}
	return p.FS.Create(name, category)
}

func (p *pacedFS) Unwrap() vfs.FS { return p.FS }

func isCorruption(err error) bool {
	var form formError
	return pebble.IsCorruptionError(err) || errors.As(err, &form)
}
