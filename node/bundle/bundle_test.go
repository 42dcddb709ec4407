package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
	"github.com/quorate/quorate/node/bundle"
)

// fakeNode implements bundle.Node. cluster is the error of ClusterStatus.
type fakeNode struct{ cluster error }

func (fakeNode) Status(context.Context) (schema.NodeStatus, error) {
	return schema.NodeStatus{Node: schema.NodeIdentity{ID: "a"}}, nil
}
func (fakeNode) Apps(context.Context) ([]schema.AppInstance, error) { return nil, nil }
func (fakeNode) Checkup(context.Context) (schema.Checkup, error) {
	return schema.Checkup{Node: "a"}, nil
}
func (n fakeNode) ClusterStatus(context.Context) (schema.ClusterStatus, error) {
	return schema.ClusterStatus{}, n.cluster
}

// read returns the files of a bundle by their names.
func read(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[path.Base(h.Name)] = string(text)
	}
}

func TestWrite_HasEveryFile(t *testing.T) {
	logs := logadapt.NewRecent(slog.LevelInfo, 10)
	log := slog.New(logs.Handler(slog.NewTextHandler(io.Discard, nil)))
	log.Info("first", "key", "value")
	log.Warn("second")
	metrics := prometheus.NewRegistry()
	up := prometheus.NewGauge(prometheus.GaugeOpts{Name: "up", Help: "Test."})
	metrics.MustRegister(up)
	o := bundle.Options{Node: fakeNode{fault.New(fault.Unavailable, "test", "no cluster")},
		Config: map[string]string{"dir": "/data"}, Metrics: metrics, Logs: logs, Version: "v9", Now: time.Now}
	var b bytes.Buffer
	if err := bundle.Write(t.Context(), &b, 10*time.Millisecond, o); err != nil {
		t.Fatal(err)
	}
	files := read(t, &b)
	for name, want := range map[string]string{"version.txt": "quorate v9", "status.json": `"id": "a"`,
		"doctor.json": `"node": "a"`, "apps.json": "", "config.json": "/data", "metrics.txt": "up 0",
		"heap.pprof": "\x1f\x8b",
		"cpu.pprof":  "\x1f\x8b", "goroutines.txt": "goroutine ", "cluster.json.error": "no cluster"} {
		if text, ok := files[name]; !ok || !strings.Contains(text, want) {
			t.Errorf("%s: %t, %.200q", name, ok, text)
		}
	}
	lines := strings.Split(strings.TrimSpace(files["log.txt"]), "\n")
	if !slices.ContainsFunc(lines[:1], func(l string) bool { return strings.Contains(l, "first key=value") }) ||
		!strings.Contains(lines[len(lines)-1], "WARN second") {
		t.Errorf("log: %q", lines)
	}
}

func TestWrite_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := bundle.Write(ctx, io.Discard, time.Hour, bundle.Options{Node: fakeNode{}, Metrics: prometheus.NewRegistry(),
		Logs: logadapt.NewRecent(slog.LevelInfo, 1), Now: time.Now})
	if !fault.Is(err, fault.Timeout) {
		t.Error(err)
	}
}
