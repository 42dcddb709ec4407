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

// pebbleFormat is pinned: raising it is a decision of ours, because a database once
// raised cannot be opened by an older build. This one has checksums in table footers.
const pebbleFormat = pebble.FormatTableFormatV6

const defaultMemTable = 16 << 20

// engine opens Pebble and keeps what its callbacks need.
type engine struct {
	health *health
	inOpen atomic.Bool // pebble.Open is running
}

// pebbleOptions bounds memory rather than chasing peak throughput: at most two memtables,
// L0 kept low so that reads touch few files, and a filter on every level, because every
// write asks whether its key exists.
func (e *engine) pebbleOptions(o Options) *pebble.Options {
	p := &pebble.Options{
		DisableWAL:                  true, // the Raft log is the journal
		FormatMajorVersion:          pebbleFormat,
		MemTableSize:                o.MemTable,
		MemTableStopWritesThreshold: 2,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       12,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                1000,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		Cache:                       o.Cache,
		CacheSize:                   int64(3*o.MemTable) + 8<<20, //nolint:gosec // Pebble takes memtables out of the cache
		FS:                          o.FS,
		Logger:                      &pebbleLogger{engine: e},
		EventListener:               e.listener(),
	}
	for i := range p.Levels {
		p.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	if p.FS == nil {
		p.WithFSDefaults() // the operating system's, with a watch for slow disks
	}
	p.FS = &pacedFS{FS: p.FS, health: e.health, backoff: o.Backoff}
	return p
}

// open runs pebble.Open. It does so on a goroutine of its own, which Fatalf can end: an
// unwritable disk makes Pebble call it while opening.
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

// pebbleLogger carries Pebble's lines into the machine's log.
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

// Fatalf is called where Pebble cannot go on: mostly when an edit of the MANIFEST failed,
// so that nobody knows whether it is on disk. The code behind the call assumes that the
// process has ended. If it returned, the next edit would be written behind the doubtful
// one; if it only ended the goroutine, another would do that. So the goroutine stops for
// ever where it is, with the locks it holds: from then on no file of the database
// changes, and what is on disk is what a crash at this moment would leave, which is what
// recovery is made for. Options.Fatal is told, and Close waits for nothing.
//
// While the database is being opened nothing else uses it, and ending the goroutine lets
// Pebble clean up, so that Open can return the error instead.
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

// pacedFS gives the caller of a failing disk the chance to wait: Pebble repeats a failed
// flush at once, and a flush begins with a new file.
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
