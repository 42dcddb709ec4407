package node_test

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
)

var writeFormats = flag.String("write-formats", "",
	"write data directories of the current format into this folder, e.g. testdata/formats/2")

// formatData describes the content of a data directory, or of the directories of a cluster, that some version of the
// program has written.
type formatData struct {
	Nodes   []string       `json:"nodes"`   // one folder for each in the archive
	Now     int64          `json:"now"`     // when it was written, Unix milliseconds
	Session string         `json:"session"` // token after the last write
	Records []formatRecord `json:"records"`
	Absent  []formatRecord `json:"absent"`
	Once    formatRecord   `json:"once"` // was written first with a Quorate-Request-Id, then again without
}

type formatRecord struct {
	Store       string `json:"store"`
	Key         string `json:"key"`
	Value       string `json:"value,omitempty"`
	ETag        string `json:"etag,omitempty"`
	ContentType string `json:"contentType,omitempty"`
}

const onceID, onceBody = "golden-1", `[{"key":"once","value":"first"}]`

func formatStores() []string { return []string{"orders", "carts", "users", "stock"} }

// formatResources declares stores in both of two partitions.
func formatResources(t testing.TB) []string {
	files := map[string]string{}
	for _, s := range formatStores() {
		files[s+".yaml"] = store(s, "state.raft", "")
	}
	return resources(t, files)
}

// formatConfig sets the configuration of a node whose groups take a snapshot after a few entries.
func formatConfig(t testing.TB, c *node.Config) {
	c.Components.Paths = formatResources(t)
	c.Cluster.Bounds = group.Bounds{SnapshotEntries: 48, TrailingEntries: 8}
	c.Cluster.Timing.SnapshotPoll = 20 * time.Millisecond
}

// send is ask with headers. It repeats the request until the node can serve it, so the request must be idempotent.
func send(t testing.TB, n *node.Node, method, path, body string, headers ...string) (code int, answer string,
	h http.Header) {
	t.Helper()
	for last := time.Now().Add(2 * time.Minute); ; {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.Addresses().API[0]+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode < 500 || time.Now().After(last) {
			return resp.StatusCode, string(b), resp.Header
		}
	}
}

func mustSave(t testing.TB, n *node.Node, store, body string, headers ...string) http.Header {
	t.Helper()
	code, answer, h := send(t, n, "POST", "/v1.0/state/"+store, body, headers...)
	if code != 204 {
		t.Fatalf("save into %s: %d %s", store, code, answer)
	}
	return h
}

// fill writes data of every kind. It calls between after the first half.
func fill(t testing.TB, nodes []*node.Node, dirs []string, between func(testing.TB, *node.Node)) formatData {
	t.Helper()
	n, out := nodes[len(nodes)-1], formatData{Now: time.Now().UnixMilli()}
	for _, s := range formatStores() {
		for i := range 6 {
			body := fmt.Sprintf(`[{"key":"k%d","value":{"n":%d,"store":%q},`+
				`"options":{"consistency":"strong"}}]`, i, i, s)
			mustSave(t, n, s, body)
		}
		mustSave(t, n, s, `[{"key":"lasting","value":1,"metadata":{"ttlInSeconds":"86400"}},`+
			`{"key":"gone","value":1,"metadata":{"ttlInSeconds":"1"}}]`)
		mustSave(t, n, s, `[{"key":"bytes","value":"AP8A","metadata":{"contentType":"application/octet-stream"}},`+
			`{"key":"null","value":null}]`)
		if code, answer, _ := send(t, n, "POST", "/v1.0/state/"+s+"/transaction",
			`{"operations":[{"operation":"upsert","request":{"key":"t1","value":"both"}},`+
				`{"operation":"upsert","request":{"key":"t2","value":"or none"}},`+
				`{"operation":"delete","request":{"key":"k0"}}]}`); code != 204 {
			t.Fatalf("transaction: %d %s", code, answer)
		}
	}
	between(t, n)
	mustSave(t, n, "orders", onceBody, "Quorate-Request-Id", onceID)
	mustSave(t, n, "orders", `[{"key":"once","value":"second"}]`)
	poll(t, func() error { // every group of every node takes a snapshot
		for _, s := range formatStores() {
			mustSave(t, n, s, `[{"key":"often","value":1}]`)
		}
		return withSnapshots(dirs)
	})
	var last http.Header
	for _, s := range formatStores() { // these are in no snapshot
		for i := range 3 {
			last = mustSave(t, n, s, fmt.Sprintf(`[{"key":"late%d","value":[%d],"options":{"consistency":"strong"}}]`,
				i, i))
		}
		last = mustSave(t, n, s, `[{"key":"k1","value":"changed late"}]`, "Quorate-Session",
			last.Get("Quorate-Session"))
		if code, answer, _ := send(t, n, "DELETE", "/v1.0/state/"+s+"/k2", ""); code != 204 {
			t.Fatalf("delete: %d %s", code, answer)
		}
		out.Absent = append(out.Absent, formatRecord{Store: s, Key: "k0"}, formatRecord{Store: s, Key: "k2"},
			formatRecord{Store: s, Key: "gone"})
		for _, k := range []string{"k1", "k3", "k4", "k5", "lasting", "bytes", "null", "t1", "t2", "often", "late0",
			"late1", "late2"} {
			out.Records = append(out.Records, look(t, n, s, k))
		}
	}
	out.Once, out.Session = look(t, n, "orders", "once"), last.Get("Quorate-Session")
	return out
}

// look reads a key with strong consistency. The record of an absent key has no ETag.
func look(t testing.TB, n *node.Node, store, key string) formatRecord {
	t.Helper()
	code, value, h := send(t, n, "GET", "/v1.0/state/"+store+"/"+key+"?consistency=strong", "")
	switch code {
	case 200:
		if !utf8.ValidString(value) {
			value = fmt.Sprintf("%x", value) // so that JSON keeps it
		}
		return formatRecord{Store: store, Key: key, Value: value, ETag: h.Get("Etag"),
			ContentType: h.Get("Content-Type")}
	case 204:
		return formatRecord{Store: store, Key: key}
	}
	t.Fatalf("read of %s/%s: %d %s", store, key, code, value)
	return formatRecord{}
}

func withSnapshots(dirs []string) error {
	for _, dir := range dirs {
		manifests, err := filepath.Glob(filepath.Join(dir, "groups", "*", "manifest.json"))
		if err != nil || len(manifests) == 0 {
			return errors.Join(err, errors.New("no groups in "+dir))
		}
		for _, m := range manifests {
			text, err := os.ReadFile(m)
			if err != nil {
				return err
			}
			if !strings.Contains(string(text), `"snapshot":`) {
				return errors.New("no snapshot in " + m)
			}
		}
	}
	return nil
}

// pack writes an archive of directories and their description. Zeros at the end of files are left out, and the sizes of
// the files are kept.
func pack(t testing.TB, path string, dirs []string, d formatData) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z, _ := gzip.NewWriterLevel(f, gzip.BestCompression)
	w := tar.NewWriter(z)
	put := func(name string, body []byte, size int) error {
		h := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(body)), Format: tar.FormatPAX,
			PAXRecords: map[string]string{"QUORATE.size": strconv.Itoa(size)}}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(body)
		return err
	}
	for i, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return put(d.Nodes[i]+"/"+filepath.ToSlash(rel), []byte(strings.TrimRight(string(b), "\x00")), len(b))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	about, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(put("contents.json", about, len(about)), w.Close(), z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func stopAll(t testing.TB, nodes []*node.Node) {
	t.Helper()
	for _, n := range nodes {
		closeNode(t, n)
	}
}

func writeAlone(t *testing.T, folder string, engine node.LogStore, partitions int,
	between func(testing.TB, *node.Node)) {
	c := config(t)
	c.Data.LogStore, c.Cluster.Partitions = engine, partitions
	formatConfig(t, &c)
	n := open(t, c)
	d := fill(t, []*node.Node{n}, []string{c.Data.Dir}, between)
	d.Nodes = []string{"n1"}
	stopAll(t, []*node.Node{n})
	pack(t, filepath.Join(folder, fmt.Sprintf("alone-%s-%d.tar.gz", engine, partitions)), []string{c.Data.Dir}, d)
}

func writeCluster(t *testing.T, folder string, between func(testing.TB, *node.Node)) {
	nodes, configs := threeWith(t, func(c *node.Config) {
		c.Cluster.Partitions = 2
		formatConfig(t, c)
	})
	var dirs []string
	for _, c := range configs {
		dirs = append(dirs, c.Data.Dir)
	}
	d := fill(t, nodes, dirs, between)
	d.Nodes = []string{"n1", "n2", "n3"}
	stopAll(t, nodes)
	pack(t, filepath.Join(folder, "cluster-boltdb-2.tar.gz"), dirs, d)
}
