package backups_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node/backups"
	"github.com/quorate/quorate/raftfsm/backup"
)

// shared is a fake of the replicated data. All members of a test share it.
type shared struct {
	takes   time.Duration // how long it takes to write a backup
	running atomic.Int32  // number of backups that are being written
	most    atomic.Int32  // the maximum of running
	written atomic.Int32

	mu       sync.Mutex
	text     []byte
	revision uint64
}

// member implements backups.Cluster for one node.
type member struct {
	*shared
	leads atomic.Bool
	cut   atomic.Bool // every call fails
}

func (m *member) Leads() bool { return m.leads.Load() }

func (m *member) LocalRecord() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.text), nil
}

func (m *member) Record(context.Context) ([]byte, uint64, error) {
	if m.cut.Load() {
		return nil, 0, fault.New(fault.Unavailable, "test", "no quorum")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.text), m.revision, nil
}

func (m *member) SetRecord(_ context.Context, text []byte, revision uint64) (uint64, error) {
	if m.cut.Load() {
		return 0, fault.New(fault.Unavailable, "test", "no quorum")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision != m.revision {
		return 0, fault.New(fault.Conflict, "test", "another revision")
	}
	m.text, m.revision = bytes.Clone(text), m.revision+1
	return m.revision, nil
}

func (m *member) SaveBackup(ctx context.Context, w io.Writer) error {
	m.most.Store(max(m.most.Load(), m.running.Add(1)))
	defer m.running.Add(-1)
	out, err := backup.NewWriter(w, backup.Header{Partitions: 1, Groups: []backup.Group{{ID: 0}}})
	if err != nil {
		return err
	}
	select {
	case <-time.After(m.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	records := []backup.Record{{Store: "/statestore", Key: "shop||a", Value: bytes.Repeat([]byte("1"), 100_000)}}
	for _, f := range []func() error{
		func() error { return out.Begin(0) },
		func() error { return out.Records(records) },
		func() error { _, err := out.End(); return err },
		func() error { _, err := out.Close(); return err },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	m.written.Add(1)
	return nil
}

// started is a schedule that runs until the end of the test.
type started struct {
	*backups.Schedule
	member   *member
	registry *prometheus.Registry
	log      *testutil.Output
	stop     func()
}

// start runs the schedule of a node until the test ends.
func (s *shared) start(t *testing.T, node string, c backups.Config) *started {
	t.Helper()
	out := &started{member: &member{shared: s}, registry: prometheus.NewRegistry(), log: &testutil.Output{}}
	out.Schedule = backups.New(backups.Options{Config: c, Node: node, Prefix: "default", Cluster: out.member,
		Logger: slog.New(slog.NewTextHandler(out.log, nil)), Registerer: out.registry, Now: time.Now})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { out.Run(ctx) })
	out.stop = func() { cancel(); running.Wait() }
	t.Cleanup(out.stop)
	return out
}

// metric returns the sum of the series of a metric that have the given outcome.
func (s *started) metric(t *testing.T, name, outcome string) (sum float64) {
	t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name || outcome != "" && m.GetLabel()[0].GetValue() != outcome {
				continue
			}
			found = true
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	if !found {
		t.Fatalf("no metric %s", name)
	}
	return sum
}

// files returns the names of all files of a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// inspect verifies a backup.
func inspect(t *testing.T, path string, keys ...backup.Key) backup.Summary {
	t.Helper()
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	source, err := backup.Decrypt(f, keys, false)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := backup.Inspect(source, func(id string) (string, string) { return "", id })
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestMetrics_FollowConventions(t *testing.T) {
	reg := prometheus.NewRegistry()
	backups.New(backups.Options{Registerer: reg})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}
