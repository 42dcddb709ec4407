package raftfsm_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/raftfsm"
)

// BenchmarkScale measures what grows with the number of keys: memory, restart time, and the time and bytes of a
// snapshot. QUORATE_BENCH_KEYS lists the numbers of keys to try.
func BenchmarkScale(b *testing.B) {
	sizes := os.Getenv("QUORATE_BENCH_KEYS")
	if sizes == "" {
		sizes = "1000,100000"
	}
	for text := range strings.SplitSeq(sizes, ",") {
		keys, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			b.Fatalf("QUORATE_BENCH_KEYS: %v", err)
		}
		b.Run(fmt.Sprintf("keys=%d/1KiB", keys), func(b *testing.B) {
			for range b.N {
				scale(b, keys)
			}
		})
	}
}

func scale(b *testing.B, keys int) {
	b.Helper()
	o := options(b, b.TempDir())
	o.CacheBytes, o.MemTable = 0, 0 // the defaults of a node
	h := open(b, o)
	s := h.Store("", "s")
	start := time.Now()
	load(b, s, keys)
	b.ReportMetric(float64(keys)/time.Since(start).Seconds(), "keys/s")
	b.ReportMetric(float64(rss(b))/(1<<20), "MB-RSS-loaded")

	set(b, s, "app||last", "1", state.Strong)
	before := diskBytes(b, o.Dir)
	start = time.Now()
	must(b, h.Groups()[0].Snapshot())
	b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "ms/snapshot")
	b.ReportMetric(float64(diskBytes(b, o.Dir)-before)/(1<<20), "MB/snapshot")
	b.ReportMetric(float64(before)/(1<<20), "MB-disk")

	load(b, s, min(keys, 50_000)) // leaves entries in the log that a restart has to read
	closeHost(b, h)
	o.Registerer = prometheus.NewRegistry()
	start = time.Now()
	h = open(b, o)
	b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/restart")
	readAll(b, h.Store("", "s"), keys)
	b.ReportMetric(float64(rss(b))/(1<<20), "MB-RSS-read")
	closeHost(b, h)
}

const batchSize = 100

// load saves keys of 1 KiB with several clients.
func load(b *testing.B, s *raftfsm.Store, keys int) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for from := int(next.Add(batchSize)) - batchSize; from < keys; from = int(next.Add(batchSize)) - batchSize {
				items := make([]state.Write, 0, batchSize)
				for i := from; i < min(from+batchSize, keys); i++ {
					items = append(items, state.Write{Key: key(i), Value: valueOf(i)})
				}
				if _, err := s.Set(context.Background(), state.SetRequest{Items: items,
					Consistency: state.Strong}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func key(i int) string { return fmt.Sprintf("app||%08x", uint32(i)*2654435761) } // distributed over the key space

// valueOf returns 1 KiB that does not compress well.
func valueOf(i int) []byte {
	b := make([]byte, 0, 1024)
	x := uint64(i)*0x9e3779b97f4a7c15 + 1
	for len(b) < 1000 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b = strconv.AppendUint(b, x, 36)
	}
	return append(b, bytes.Repeat([]byte("."), 1024-len(b))...)
}

// readAll reads a sample of all keys.
func readAll(b *testing.B, s *raftfsm.Store, keys int) {
	b.Helper()
	for i := 0; i < keys; i += max(keys/20_000, 1) {
		if got := get(b, s, key(i), state.Eventual); !bytes.Equal(got.Value, valueOf(i)) {
			b.Fatalf("key %d holds something else", i)
		}
	}
}

// rss returns the resident memory of this process in bytes.
func rss(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skipf("no /proc here: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			must(b, err)
			return kb << 10
		}
	}
	b.Fatal("no VmRSS")
	return 0
}

func diskBytes(b *testing.B, dir string) int64 {
	b.Helper()
	var n int64
	must(b, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			n += info.Size()
		}
		return nil // ignores a file that Pebble has removed meanwhile
	}))
	return n
}
