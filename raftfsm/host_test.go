package raftfsm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// TestMain ignores a goroutine that Pebble leaves behind when it cannot open a damaged database. In the product
// the process ends then.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction(
			"github.com/cockroachdb/pebble/v2/vfs.(*diskHealthCheckingFS).startTickerLocked.func1"),
		goleak.Cleanup(func(code int) {
			if powerBuilt != "" {
				_ = os.RemoveAll(powerBuilt) // in the temporary directory
			}
			os.Exit(code)
		}))
}

// options returns the options of a cluster with one server in dir.
func options(t testing.TB, dir string) raftfsm.Options {
	return raftfsm.Options{
		Dir: dir, Bootstrap: true, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		Transport: func(_ uint32, id raft.ServerID) raft.Transport {
			_, tr := raft.NewInmemTransport(raft.ServerAddress(id))
			return tr
		},
		CacheBytes: 8 << 20, MemTable: 1 << 20, MinFree: 1,
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	}
}

// open opens a host and closes it with the test.
func open(t testing.TB, o raftfsm.Options) *raftfsm.Host {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h, err := raftfsm.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeHost(t, h) })
	return h
}

func closeHost(t testing.TB, h *raftfsm.Host) {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

func set(t testing.TB, s state.Store, key, value string, c state.Consistency) state.Written {
	t.Helper()
	w, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: key, Value: []byte(value)}},
		Consistency: c})
	if err != nil {
		t.Fatalf("set %s: %v", key, err)
	}
	return w
}

func get(t testing.TB, s state.Store, key string, c state.Consistency) state.Item {
	t.Helper()
	i, err := s.Get(t.Context(), state.GetRequest{Key: key, ReadOptions: state.ReadOptions{Consistency: c}})
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return i
}

func TestHost_KeepsDataAfterReopen(t *testing.T) {
	t.Parallel()
	for _, engine := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(engine), func(t *testing.T) {
			o := options(t, t.TempDir())
			o.Engine, o.Partitions = engine, 3
			h := open(t, o)
			s := h.Store("", "orders")
			first := set(t, s, "app||a", "1", state.Strong)
			set(t, s, "other||b", "2", state.Eventual)
			closeHost(t, h)

			o.Registerer = prometheus.NewRegistry()
			again := open(t, o).Store("", "orders")
			if got := get(t, again, "app||a", state.Strong); string(got.Value) != "1" || got.ETag != first.ETags[0] ||
				got.Level != state.Linearizable {
				t.Errorf("a = %q etag %s level %s, want 1 with etag %s", got.Value, got.ETag, got.Level, first.ETags[0])
			}
			if got := get(t, again, "other||b", state.Eventual); string(got.Value) != "2" ||
				got.Level != state.SessionLevel {
				t.Errorf("b = %q level %s", got.Value, got.Level)
			}
			if n := set(t, again, "app||a", "3", state.Strong); n.ETags[0] == first.ETags[0] {
				t.Error("an ETag was used twice")
			}
		})
	}
}

func TestStore_NamesAndNamespacesAreSeparate(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	set(t, h.Store("n1", "s"), "k", "1", state.Strong)
	for _, s := range []*raftfsm.Store{h.Store("n2", "s"), h.Store("n1", "t"), h.Store("", "s")} {
		if got := get(t, s, "k", state.Strong); got.Found() {
			t.Errorf("found %q in another store", got.Value)
		}
	}
}

func TestOpen_RefusesDirectoryInUse(t *testing.T) {
	o := options(t, t.TempDir())
	open(t, o)
	o.Registerer = prometheus.NewRegistry()
	_, err := raftfsm.Open(t.Context(), o)
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("a second open gave %v", err)
	}
}

// A new directory gets the default log store. An existing directory keeps its log store.
func TestOpen_ChoosesLogStoreOfNewDirectory(t *testing.T) {
	t.Parallel()
	for first, want := range map[raftlog.Engine]raftlog.Engine{
		"": raftlog.WAL, raftlog.WAL: raftlog.WAL, raftlog.BoltDB: raftlog.BoltDB,
	} {
		o := options(t, t.TempDir())
		for _, engine := range []raftlog.Engine{first, ""} {
			o.Engine, o.Registerer = engine, prometheus.NewRegistry()
			h := open(t, o)
			if got := h.Identity().Engine; got != want {
				t.Errorf("created with %q and opened with %q: log store %s, want %s", first, engine, got, want)
			}
			closeHost(t, h)
		}
	}
}

func TestOpen_RefusesContradictingSettings(t *testing.T) {
	o := options(t, t.TempDir())
	o.NodeID, o.Partitions, o.Engine = "a", 2, raftlog.BoltDB
	closeHost(t, open(t, o))
	for name, change := range map[string]func(*raftfsm.Options){
		"partitions": func(o *raftfsm.Options) { o.Partitions = 3 },
		"log store":  func(o *raftfsm.Options) { o.Engine = raftlog.WAL },
		"node id":    func(o *raftfsm.Options) { o.NodeID = "b" },
	} {
		t.Run(name, func(t *testing.T) {
			other := o
			other.Registerer = prometheus.NewRegistry()
			change(&other)
			if _, err := raftfsm.Open(t.Context(), other); !fault.Is(err, fault.Invalid) {
				t.Fatalf("got %v", err)
			}
		})
	}
	o.NodeID, o.Partitions, o.Registerer = "", 0, prometheus.NewRegistry()
	if got := open(t, o).Identity(); got.Node != "a" || got.Partitions != 2 {
		t.Errorf("the directory's settings were not adopted: %+v", got)
	}
}

func TestOpen_RefusesForeignOrDamagedDirectory(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]struct {
		do   func(t *testing.T, dir string)
		code fault.Code
	}{
		"somebody else's files": {func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir))
			must(t, os.MkdirAll(dir, 0o700))
			must(t, os.WriteFile(filepath.Join(dir, "thesis.doc"), nil, 0o600))
		}, fault.Invalid},
		"identity flipped":     {flip("node.json"), fault.Corrupt},
		"manifest flipped":     {flip("groups/0/manifest.json"), fault.Corrupt},
		"manifest missing":     {remove("groups/0/manifest.json"), fault.Corrupt},
		"database missing":     {remove("groups/0/db-000001"), fault.Invalid},
		"log missing":          {remove("groups/0/log.db"), fault.Corrupt},
		"group missing":        {remove("groups/0"), fault.Corrupt},
		"terms missing":        {remove("groups/0/stable.db"), fault.Corrupt},
		"terms file not bolt":  {overwrite("groups/0/stable.db"), fault.Corrupt},
		"log file not bolt":    {overwrite("groups/0/log.db"), fault.Corrupt},
		"log entry bit flip":   {flipEntry, fault.Corrupt},
		"future identity form": {future, fault.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, filepath.Join(t.TempDir(), "data"))
			o.Engine = raftlog.BoltDB
			h := open(t, o)
			s := h.Store("", "s")
			for range 20 {
				set(t, s, "k", "needle-in-the-log", state.Strong)
			}
			must(t, h.Groups()[0].Snapshot()) // the database now holds entries that the log must have as well
			set(t, s, "k", "needle-in-the-log", state.Strong)
			closeHost(t, h)
			damage.do(t, o.Dir)
			before := tree(t, o.Dir)
			o.Registerer = prometheus.NewRegistry()
			o.Fatal = func(error) {}
			_, err := raftfsm.Open(t.Context(), o)
			if !fault.Is(err, damage.code) {
				t.Fatalf("got %v, want %s", err, damage.code)
			}
			if f, ok := fault.As(err); !ok || fault.Text(f) == "" {
				t.Errorf("no text in %v", err)
			}
			if name == "somebody else's files" && len(tree(t, o.Dir)) > len(before)+1 {
				t.Errorf("a foreign directory was changed: %v", tree(t, o.Dir))
			}
		})
	}
}

func TestDiskSpace_LowMakesStoreReadOnly(t *testing.T) {
	t.Parallel()
	var free atomic.Uint64
	free.Store(1 << 30)
	o := options(t, t.TempDir())
	o.MinFree = 100 << 20
	o.FreeBytes = func(string) (uint64, error) { return free.Load(), nil }
	h := open(t, o)
	s := h.Store("", "s")
	set(t, s, "k", "1", state.Strong)

	free.Store(50 << 20)
	eventually(t, func() error {
		if h.WritesAllowed(0) == nil {
			return errors.New("writes are still allowed")
		}
		return nil
	})
	_, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "k", Value: []byte("2")}}})
	if !fault.Is(err, fault.ReadOnly) {
		t.Fatalf("a write on a full disk gave %v", err)
	}
	if got := get(t, s, "k", state.Strong); string(got.Value) != "1" {
		t.Errorf("a read returned %q", got.Value)
	}
	if _, err := s.Delete(t.Context(), state.DeleteRequest{Key: "k"}); err != nil {
		t.Errorf("a delete failed: %v", err)
	}
	free.Store(120 << 20) // more than the limit, but less than the limit for accepting values again
	_, err = s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "k", Value: []byte("2")}}})
	if !fault.Is(err, fault.ReadOnly) {
		t.Errorf("the store flaps: %v", err)
	}
	free.Store(1 << 30)
	eventually(t, func() error { return h.WritesAllowed(0) })
	set(t, s, "k", "3", state.Strong)
}

// Large values do not use up the reserve between two measurements.
func TestDiskSpace_IsMeasuredBeforeLargeWrites(t *testing.T) {
	t.Parallel()
	const reserve, size = 64 << 20, 1 << 20
	var free atomic.Uint64
	free.Store(reserve + 32<<20)
	o := options(t, t.TempDir())
	o.MinFree = reserve
	o.FreeBytes = func(string) (uint64, error) { return free.Load(), nil }
	s := open(t, o).Store("", "s")
	for n := 0; ; n++ {
		_, err := s.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "k", Value: make([]byte, size)}}})
		if fault.Is(err, fault.ReadOnly) {
			break
		}
		must(t, err)
		free.Add(^uint64(4*size - 1))
		if left := free.Load(); left < reserve/2 {
			t.Fatalf("%d MiB of a reserve of %d MiB are left after %d writes", left>>20, reserve>>20, n+1)
		}
	}
}

// With Durable, the answer comes before the entry is committed or applied. The reader must wait for the entry
// and must not consider it lost.
func TestEventualWrite_IsReadAtOnce(t *testing.T) {
	t.Parallel()
	o := options(t, t.TempDir())
	o.Partitions = 4
	s := open(t, o).Store("", "s")
	for i := range 400 {
		key, value := fmt.Sprintf("app%d||k", i%7), strconv.Itoa(i)
		set(t, s, key, value, state.Eventual)
		if got := get(t, s, key, state.Eventual); string(got.Value) != value || got.Level != state.SessionLevel {
			t.Fatalf("write %d: read %q at level %s", i, got.Value, got.Level)
		}
	}
}

// The limit of a bulk read applies to the values of all groups together. A read whose values have exactly as many
// bytes as the limit succeeds, also if further groups without values follow.
func TestBulkGet_LimitAppliesToAllGroups(t *testing.T) {
	t.Parallel()
	o := options(t, t.TempDir())
	o.Partitions = 4
	h := open(t, o)
	var keys []string
	for i := range 10 {
		keys = append(keys, fmt.Sprintf("app%d||k", i))
	}
	for i, key := range keys {
		s := h.Store("", "s"+strconv.Itoa(i)) // this store has only this key
		set(t, s, key, "123", state.Strong)
		items, err := s.BulkGet(t.Context(), state.BulkGetRequest{Keys: keys, MaxBytes: 3})
		if err != nil || string(items[i].Value) != "123" {
			t.Errorf("%s alone: %v", key, err)
		}
		if _, err := s.BulkGet(t.Context(), state.BulkGetRequest{Keys: keys, MaxBytes: 2}); !isTooLarge(err, 2) {
			t.Errorf("%s above the limit: %v", key, err)
		}
	}
	s := h.Store("", "all")
	for _, key := range keys {
		set(t, s, key, "1", state.Strong)
	}
	for limit := range int64(len(keys)) {
		_, err := s.BulkGet(t.Context(), state.BulkGetRequest{Keys: keys, MaxBytes: limit + 1})
		if large := int(limit+1) < len(keys); large != isTooLarge(err, limit+1) || !large && err != nil {
			t.Errorf("%d bytes: %v", limit+1, err)
		}
	}
}

// isTooLarge reports whether an error says that values exceed a limit.
func isTooLarge(err error, limit int64) bool {
	return fault.Is(err, fault.TooLarge) && strings.Contains(err.Error(), fmt.Sprintf("exceed %d bytes", limit))
}
