package node_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
)

// The folders of testdata/formats hold data directories of earlier versions. The number of a folder is the version of
// its newest log entries. 1 was written before the program could restore backups, and 2 by the first version that
// announces the format of a cluster.

func TestFormats_Write(t *testing.T) {
	if *writeFormats == "" {
		t.Skip("it writes data only with -write-formats; see CONTRIBUTING.md")
	}
	// Only a restore writes log entries of the newest version.
	restored := func(t testing.TB, n *node.Node) {
		var file bytes.Buffer
		if err := n.Admin().SaveBackup(t.Context(), &file); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Admin().RestoreBackup(t.Context(), &file); err != nil {
			t.Fatal(err)
		}
	}
	writeAlone(t, *writeFormats, node.LogStoreBolt, 1, restored)
	writeAlone(t, *writeFormats, node.LogStoreWAL, 2, restored)
	writeCluster(t, *writeFormats, restored)
}

// unpack extracts an archive that pack has written.
func unpack(t testing.TB, path string) (dir string, d formatData) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir, d
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "contents.json" {
			if err := json.Unmarshal(body, &d); err != nil {
				t.Fatal(err)
			}
			continue
		}
		size, err := strconv.ParseInt(h.PAXRecords["QUORATE.size"], 10, 64)
		name := filepath.Join(dir, filepath.FromSlash(h.Name))
		err = errors.Join(err, os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, body, 0o600),
			os.Truncate(name, size))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// archives returns the archives of every format: two log stores, and a cluster of three.
func archives(t testing.TB, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/formats/*/" + pattern + ".tar.gz")
	if err != nil || len(files) < 2 {
		t.Fatalf("there are %d archives %s: %v", len(files), pattern, err)
	}
	return files
}

// openOld opens a node whose clock begins a moment after the data was written.
func openOld(t testing.TB, c node.Config, written int64) *node.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	d, begun := deps(t), time.Now()
	d.Now = func() time.Time { return time.UnixMilli(written).Add(time.Minute + time.Since(begun)) }
	n, err := node.Open(ctx, c, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNode(t, n) })
	return n
}

func TestFormats_DataOfEveryFormatIsReadAndWritten(t *testing.T) {
	t.Parallel()
	for _, file := range archives(t, "alone-*") {
		t.Run(strings.TrimPrefix(file, "testdata/formats/"), func(t *testing.T) {
			dir, d := unpack(t, file)
			c := config(t)
			c.Data.Dir = filepath.Join(dir, d.Nodes[0])
			formatConfig(t, &c)
			n := openOld(t, c, d.Now)
			readySlowly(t, n)
			d.holds(t, n)
			d.keepsPromises(t, n)
			d.goesOn(t, n)
			closeNode(t, n)
			n = openOld(t, c, d.Now)
			readySlowly(t, n)
			d.holds(t, n)
		})
	}
}

// Three servers start, each with its data directory from a cluster of an earlier version.
func TestFormats_RollingUpdateFromEveryFormat(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster under load for many seconds")
	}
	for _, file := range archives(t, "cluster-*") {
		t.Run(strings.TrimPrefix(file, "testdata/formats/"), func(t *testing.T) {
			dir, d := unpack(t, file)
			seed := freePort(t)
			configs := make([]node.Config, len(d.Nodes))
			nodes := make([]*node.Node, len(d.Nodes))
			var opening sync.WaitGroup
			for i, id := range d.Nodes {
				c := member(t, id, len(d.Nodes), fmt.Sprintf("127.0.0.1:%d", seed))
				c.Data.Dir = filepath.Join(dir, id)
				if i == 0 {
					c.Cluster.Gossip = node.Port{Number: seed, Given: true}
				}
				formatConfig(t, &c)
				configs[i] = c
				opening.Go(func() { nodes[i] = openOld(t, c, d.Now) })
			}
			opening.Wait()
			if slices.Contains(nodes, nil) {
				t.FailNow()
			}
			for _, n := range nodes {
				readySlowly(t, n)
				d.holds(t, n)
			}
			d.keepsPromises(t, nodes[1])

			w := writing(t, nodes[0])
			for i := len(nodes) - 1; i > 0; i-- { // the first node keeps running, because it gets the writes
				closeNode(t, nodes[i])
				w.more(t, 10)
				nodes[i] = openOld(t, configs[i], d.Now)
				readySlowly(t, nodes[i])
				w.more(t, 10)
			}
			w.end()
			d.goesOn(t, nodes[2])
			for _, n := range nodes {
				d.holds(t, n)
				w.holds(t, n)
			}
		})
	}
}

// readySlowly waits longer than ready, because the node has to find its cluster first.
func readySlowly(t testing.TB, n *node.Node) {
	t.Helper()
	poll(t, func() error {
		if code, body, _ := ask(t, n, "GET", "/v1.0/healthz", ""); code != 204 {
			return errors.New(body)
		}
		return nil
	})
}

// holds checks that a node has all recorded data.
func (d *formatData) holds(t testing.TB, n *node.Node) {
	t.Helper()
	for _, want := range append(slices.Clone(d.Records), d.Once) {
		if got := look(t, n, want.Store, want.Key); got != want {
			t.Errorf("%s/%s is %+v, was written as %+v", want.Store, want.Key, got, want)
		}
	}
	for _, want := range d.Absent {
		if got := look(t, n, want.Store, want.Key); got != want {
			t.Errorf("%s/%s is back: %+v", want.Store, want.Key, got)
		}
	}
}

// keepsPromises checks that sessions and request ids of the earlier process still work.
func (d *formatData) keepsPromises(t testing.TB, n *node.Node) {
	t.Helper()
	last := d.Records[len(d.Records)-1]
	code, value, h := send(t, n, "GET", "/v1.0/state/"+last.Store+"/"+last.Key, "", "Quorate-Session", d.Session)
	if level := h.Get("Quorate-Consistency"); code != 200 || value != last.Value || level == "stale" {
		t.Errorf("with the earlier session: %d %s, %s", code, value, level)
	}
	mustSave(t, n, "orders", onceBody, "Quorate-Request-Id", onceID) // the client has not heard the answer
	if got := look(t, n, "orders", "once"); got != d.Once {
		t.Errorf("a request that was done before was done again: %+v, want %+v", got, d.Once)
	}
	for _, s := range formatStores() {
		i := slices.IndexFunc(d.Records, func(r formatRecord) bool { return r.Store == s && r.Key == "k3" })
		old := &d.Records[i]
		code, answer, _ := send(t, n, "POST", "/v1.0/state/"+s, `[{"key":"k3","value":"x","etag":"1"}]`)
		if code != 409 {
			t.Errorf("a wrong ETag: %d %s", code, answer)
		}
		mustSave(t, n, s, fmt.Sprintf(`[{"key":"k3","value":"by its etag","etag":%q}]`, strings.Trim(old.ETag, `"`)))
		now := look(t, n, s, "k3")
		if slices.ContainsFunc(d.Records, func(r formatRecord) bool { return r.Store == s && r.ETag == now.ETag }) {
			t.Errorf("the ETag %s of %s was given out again", now.ETag, s)
		}
		*old = now
	}
}

// goesOn checks that this version can write to the old data, and can back it up and restore it.
func (d *formatData) goesOn(t testing.TB, n *node.Node) {
	t.Helper()
	for _, s := range formatStores() {
		mustSave(t, n, s, `[{"key":"new","value":{"of":"today"}}]`)
		d.Records = append(d.Records, look(t, n, s, "new"))
	}
	var file bytes.Buffer
	if err := n.Admin().SaveBackup(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Admin().RestoreBackup(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	for i := range d.Records { // a restore gives new ETags
		d.Records[i].ETag = look(t, n, d.Records[i].Store, d.Records[i].Key).ETag
	}
	d.Once.ETag = look(t, n, d.Once.Store, d.Once.Key).ETag
}

// stream writes numbered keys to a cluster while its nodes are restarted.
type stream struct {
	mu   sync.Mutex
	last int // acknowledged, guarded by mu
	stop chan struct{}
	wg   sync.WaitGroup
}

func writing(t testing.TB, n *node.Node) *stream {
	w := &stream{stop: make(chan struct{})}
	w.wg.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-w.stop:
				return
			default:
			}
			s := formatStores()[i%4]
			code, answer, _ := send(t, n, "POST", "/v1.0/state/"+s,
				fmt.Sprintf(`[{"key":"w%d","value":%d,"options":{"consistency":"strong"}}]`, i, i),
				"Quorate-Request-Id", fmt.Sprint("w", i))
			if code != 204 {
				t.Errorf("write %d: %d %s", i, code, answer)
				return
			}
			w.mu.Lock()
			w.last = i
			w.mu.Unlock()
		}
	})
	t.Cleanup(w.end)
	return w
}

func (w *stream) end() {
	w.mu.Lock()
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *stream) done() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// more waits until n more writes were acknowledged.
func (w *stream) more(t testing.TB, n int) {
	t.Helper()
	from := w.done()
	poll(t, func() error {
		if got := w.done(); got < from+n {
			return fmt.Errorf("%d of %d writes", got-from, n)
		}
		return nil
	})
}

func (w *stream) holds(t testing.TB, n *node.Node) {
	t.Helper()
	for i := 1; i <= w.done(); i += 1 + w.done()/100 {
		if got := look(t, n, formatStores()[i%4], fmt.Sprint("w", i)); got.Value != strconv.Itoa(i) {
			t.Errorf("acknowledged write %d is %+v", i, got)
		}
	}
}
