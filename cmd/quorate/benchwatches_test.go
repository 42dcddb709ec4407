package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/testutil"
)

const (
	idleListeners = 16
	idleWatches   = 4000
	idleGoal      = 40e6 // bytes
)

// BenchmarkIdleWatches measures the memory that a node needs for watches without changes. The node runs in its own
// process. The result is the growth of its resident memory and of its heap until every watch has got two bookmarks.
// The benchmark fails if the resident memory grows by more than 40 MB. It also fails if the node has more goroutines
// after the last watch than before the first one.
func BenchmarkIdleWatches(b *testing.B) {
	for range b.N {
		n := startWatchedNode(b)
		before := n.figures(b)
		var watches []net.Conn
		for i := range idleWatches {
			watches = append(watches, n.watch(b, i%idleListeners))
		}
		for _, w := range watches {
			bookmark(b, w)
		}
		with := n.figures(b)
		for _, w := range watches {
			_ = w.Close()
		}
		var after nodeFigures
		testutil.Eventually(b, func() error {
			if after = n.figures(b); after.watches > 0 || after.goroutines > before.goroutines {
				return fmt.Errorf("%+v after the last watch, %+v before the first one", after, before)
			}
			return nil
		})
		grown := with.resident - before.resident
		if with.watches != idleWatches || grown > idleGoal {
			b.Errorf("%v watches made the memory grow by %.0f MB", with.watches, grown/1e6)
		}
		b.ReportMetric(before.resident/1e6, "MB-before")
		b.ReportMetric(grown/1e6, "MB-more")
		b.ReportMetric((with.heap-before.heap)/1e6, "MB-more-heap")
		b.ReportMetric(with.goroutines-before.goroutines, "goroutines-more")
	}
}

// watchedNode is a node in its own process. It has several applications, because the number of watches of one listener
// is limited.
type watchedNode struct {
	ports   []string
	metrics string
}

func startWatchedNode(b *testing.B) *watchedNode {
	b.Helper()
	dir, err := os.MkdirTemp("", "q") // socket paths must be short
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	ports := make([]string, idleListeners+1)
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			b.Fatal(err)
		}
	}
	n := &watchedNode{ports: ports[1:], metrics: ports[0]}
	config := "appId: app0\nhttpPort: " + n.ports[0] + "\nmetricsPort: " + n.metrics + "\ngrpcPort: 0\napps:\n"
	for i, port := range n.ports[1:] {
		config += fmt.Sprintf("- id: app%d\n  httpPort: %s\n", i+1, port)
	}
	file := filepath.Join(dir, "quorate.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	port, err := strconv.Atoi(n.ports[0])
	must(b, err)
	process := &launcher.Node{ID: "n1", Program: "quorate", DataDir: filepath.Join(dir, "data"), HTTPPort: port,
		Flags: []string{"--config-file", file}}
	process.Options.Env = []string{"HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "PATH=" + os.Getenv("PATH")}
	launch(b, process, &testutil.Output{})
	testutil.Eventually(b, func() error { return process.Healthy(b.Context()) })
	http.DefaultClient.CloseIdleConnections()
	return n
}

// watch opens a watch at a listener, and waits for its first bookmark.
func (n *watchedNode) watch(b *testing.B, listener int) net.Conn {
	b.Helper()
	c, err := net.Dial("tcp", "127.0.0.1:"+n.ports[listener]) //nolint:noctx // loopback
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	const request = "GET /v1.0/watch/statestore?bookmark=5s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	if _, err := io.WriteString(c, request); err != nil {
		b.Fatal(err)
	}
	bookmark(b, c)
	return c
}

// bookmark reads from a watch until a bookmark arrives.
func bookmark(b *testing.B, c net.Conn) {
	b.Helper()
	for r := bufio.NewReaderSize(c, 512); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		if strings.HasPrefix(line, `{"type":"bookmark"`) {
			return
		}
	}
}

// nodeFigures has figures from the metrics of a node. Memory is in bytes.
type nodeFigures struct{ resident, heap, goroutines, watches float64 }

func (n *watchedNode) figures(b *testing.B) (f nodeFigures) {
	b.Helper()
	resp, err := http.Get("http://127.0.0.1:" + n.metrics + "/metrics") //nolint:noctx // loopback
	if err != nil {
		b.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		to := map[string]*float64{"process_resident_memory_bytes": &f.resident, "quorate_watches": &f.watches,
			"go_memstats_heap_inuse_bytes": &f.heap, "go_goroutines": &f.goroutines}[name]
		if to == nil {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			b.Fatal(err)
		}
		*to += v
	}
	if err := lines.Err(); err != nil {
		b.Fatal(err)
	}
	return f
}
