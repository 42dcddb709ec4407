package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/internal/testutil"
)

// oldState starts a Redis with the state of the application shop.
func oldState(t *testing.T, keys int) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.RunT(t)
	m.Server().SetPreHook(func(p *server.Peer, command string, _ ...string) bool {
		if !strings.EqualFold(command, "INFO") {
			return false
		}
		p.WriteBulk("role:master\r\nconnected_slaves:0\r\n") // miniredis does not have this section
		return true
	})
	for n := range keys {
		m.HSet(fmt.Sprintf("shop||k%03d", n), "data", fmt.Sprintf(`{"n": %d}`, n), "version", "1")
	}
	return m
}

// redisFile writes the file of a Redis component of Dapr with the name statestore. metadata are further lines, such as
// "keyPrefix: name".
func redisFile(t *testing.T, address string, metadata ...string) string {
	t.Helper()
	text := "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: statestore}\n" +
		"spec:\n  type: state.redis\n  version: v1\n  metadata:\n  - {name: redisHost, value: '" + address + "'}\n"
	for _, line := range metadata {
		name, value, _ := strings.Cut(line, ": ")
		text += "  - {name: " + name + ", " + value + "}\n"
	}
	path := filepath.Join(t.TempDir(), "redis.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// fromFile returns the arguments of a copy to statestore from the store of a component file.
func fromFile(path string, args ...string) []string {
	return append([]string{"state", "copy", "--from", "statestore", "--resources-path", path, "--to", "statestore",
		"--patience", "0s"}, args...)
}

// importer starts a node of the application shop, and returns a function that copies the state from m.
func importer(t *testing.T, m *miniredis.Miniredis) (c *console, run func(args ...string) result) {
	t.Helper()
	c = withNode(t, "--app-id", "shop")
	path := redisFile(t, m.Addr())
	return c, func(args ...string) result { return c.run(fromFile(path, args...)...) }
}

func TestCopyFromFile_StateIsReadThroughTheNode(t *testing.T) {
	m := oldState(t, 120)
	m.HSet("shop||raw", "data", "\x00\xff raw", "version", "1")
	m.HSet("shop||short", "data", `"soon gone"`, "version", "1")
	m.SetTTL("shop||short", time.Hour)
	m.HSet("shop||cart||7||items", "data", "[7]", "version", "1")
	m.HSet("orders||a", "data", "1", "version", "1")
	_ = m.Set("session", "x")
	c, run := importer(t, m)
	c.want(0, "", "", "state", "set", "statestore", "k007", `"newer"`)

	wantOutput(t, run("--dry-run"), 1, "Would copy 122 keys", "the stores differ in 1 key")
	c.want(1, "", "has no key", "state", "get", "statestore", "k001")

	r := run("--batch", "7", "--concurrency", "3")
	wantOutput(t, r, 1, "Copied 122 keys", "1 expire, 1 are bytes", "of application shop, from statestore of ",
		"redis.yaml to statestore", "actor state", "k007 (another value in statestore)", "orders")
	wantOutput(t, c.run("state", "list", "statestore", "--actors"), 0, "cart||7||items")
	c.want(0, `{"n": 119}`, "", "state", "get", "statestore", "k119")
	c.want(0, `"newer"`, "", "state", "get", "statestore", "k007")
	c.want(0, "\x00\xff raw", "", "state", "get", "statestore", "raw")
	if got := c.run("state", "get", "statestore", "short", "--json"); !strings.Contains(got.stdout, `"ttlExpireTime"`) {
		t.Errorf("it does not expire: %+v", got)
	}
	wantOutput(t, run(), 1, "Copied 0 keys")
	wantOutput(t, run("--overwrite"), 0, "Copied 1 key ")
	wantOutput(t, run("--verify"), 0, "Compared 123 keys")
	on := func(args ...string) result {
		return c.run(append([]string{"state", "copy", "--from", "statestore", "--to", "orders"}, args...)...)
	}
	wantOutput(t, on(), 0, "Copied 123 keys", "actor state  1")
	wantOutput(t, c.run("state", "list", "orders", "--actors"), 0, "cart||7||items")
	wantOutput(t, on("--verify"), 0, "Compared 123 keys")
	c.want(0, `{"n": 7}`, "", "state", "get", "statestore", "k007")
}

func TestCopyFromFile_FromARealServer(t *testing.T) {
	server := redistest.Start(t)
	client := server.Admin
	_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for n := range 2500 { // several pages
			p.HSet(t.Context(), fmt.Sprintf("shop||k%04d", n), "data", n, "version", 1)
		}
		p.HSet(t.Context(), "shop||ttl", "data", "1", "version", 1)
		p.PExpire(t.Context(), "shop||ttl", time.Hour)
		p.HSet(t.Context(), "shop||cart||7||items", "data", "[]", "version", 1)
		p.HSet(t.Context(), "shop||other hash", "field", "x")
		p.HSet(t.Context(), "orders||a", "data", "1", "version", 1)
		return p.RPush(t.Context(), "shop||list", "x").Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	c, file := withNode(t, "--app-id", "shop"), redisFile(t, server.Address)
	run := func(args ...string) result { return c.run(fromFile(file, args...)...) }
	wantOutput(t, run(), 0, "Copied 2502 keys", "1 expire", "orders", "actor state")
	wantOutput(t, run("--verify"), 0, "Compared 2502 keys")
	client.Del(t.Context(), "shop||k0007")
	wantOutput(t, run("--delete"), 0, "deleted in statestore")
	wantOutput(t, run("--verify"), 0, "Compared 2501 keys")
}

func TestCopyFromFile_FailsWhenStateIsMissing(t *testing.T) {
	m := oldState(t, 10)
	m.HSet("shop||big", "data", `"`+strings.Repeat("x", 5<<20)+`"`, "version", "1")
	m.HSet("shop||sealed", "data", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5||mykey", "version", "1")
	c, run := importer(t, m)
	file := filepath.Join(c.home, "skipped.jsonl")
	r := run("--json", "--skipped-file", file)
	var report struct {
		App, To  string
		Copied   int64
		Complete bool
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatal(err)
	}
	if r.code != 1 || !strings.Contains(r.stderr, "the stores differ in 2 keys") ||
		report.Copied != 10 || report.App != "shop" || report.To != "statestore" || !report.Complete {
		t.Errorf("%+v", r)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"key":"sealed","reason":"cannot be read in statestore of `,
		"Dapr encrypted it", `{"key":"big","reason":"`, "4194304"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	c.want(0, `{"n": 9}`, "", "state", "get", "statestore", "k009")
}

// TestCopyFromFile_ResolvesReferences gets a secret of the component from the environment, or from a secret store
// beside it.
func TestCopyFromFile_ResolvesReferences(t *testing.T) {
	m := oldState(t, 1)
	m.RequireUserAuth("reader", "s3cret")
	c := withNode(t, "--app-id", "shop")
	if r := c.run(fromFile(redisFile(t, m.Addr()))...); r.code != 1 || !strings.Contains(r.stderr, "redisPassword") {
		t.Errorf("%+v", r)
	}
	c.env = append(c.env, "WRONG=wr0ng", "RIGHT=s3cret")
	user := "redisUsername: value: reader"
	if r := c.run(fromFile(redisFile(t, m.Addr(), user, "redisPassword: envRef: WRONG"))...); r.code != 1 ||
		strings.Contains(r.stderr+r.stdout, "wr0ng") {
		t.Errorf("%+v", r)
	}
	wantOutput(t, c.run(fromFile(redisFile(t, m.Addr(), user, "redisPassword: envRef: RIGHT"))...), 0, "Copied 1 key ")
	path := redisFile(t, m.Addr(), user, "redisPassword: secretKeyRef: {name: RIGHT, key: RIGHT}")
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append(text, "auth: {secretStore: secrets}\n"+
		"---\napiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: secrets}\n"+
		"spec: {type: secretstores.local.env, version: v1}\n"+
		"---\napiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: pubsub}\n"+
		"spec: {type: pubsub.redis, version: v1}\n"...), 0o600))
	wantOutput(t, c.run(fromFile(path, "--verify")...), 0, "Compared 1 key ")
	c.want(0, `{"n": 0}`, "", "state", "get", "statestore", "k000")
}

func TestCopyFromFile_HasTheKeyPrefixOfTheComponent(t *testing.T) {
	m := oldState(t, 0)
	for i, prefix := range []string{"shop", "prod.shop", "statestore", "mine", "till"} {
		m.HSet(fmt.Sprintf("%s||k%d", prefix, i), "data", "1", "version", "1")
	}
	c := withNode(t, "--app-id", "shop")
	for i, args := range [][]string{{""}, {"keyPrefix: value: namespace", "--from-namespace", "prod"},
		{"keyPrefix: value: name"}, {"keyPrefix: value: mine"}, {"", "--from-app", "till"}} {
		var metadata []string
		if args[0] != "" {
			metadata = args[:1]
		}
		wantOutput(t, c.run(fromFile(redisFile(t, m.Addr(), metadata...), args[1:]...)...), 0, "Copied 1 key ")
		c.want(0, "1", "", "state", "get", "statestore", fmt.Sprint("k", i))
	}
}

func TestCopyFromFile_ReportsWhyItCannotStart(t *testing.T) {
	m := oldState(t, 1)
	c, run := importer(t, m)
	for _, l := range []struct {
		code int
		text string
		args []string
	}{
		{2, "--batch 0", []string{"--batch", "0"}},
		{2, "--concurrency 65", []string{"--concurrency", "65"}},
		{1, "declare no state store other", []string{"--from", "other"}},
		{2, "the node has no state store elsewhere (it has: statestore", []string{"--to", "elsewhere"}},
		{1, "no node listens at http://127.0.0.1:1", []string{"--address", "127.0.0.1:1"}},
	} {
		if r := run(l.args...); r.code != l.code || !strings.Contains(r.stderr, l.text) {
			t.Errorf("%q: %+v", l.args, r)
		}
	}
	for path, want := range map[string]string{
		redisFile(t, "127.0.0.1:1"):                                     "no Redis can be reached at 127.0.0.1:1",
		redisFile(t, m.Addr(), "keyPrefix: value: namespace"):           "--from-namespace",
		redisFile(t, m.Addr(), "keyPrefix: value: 'a|b'"):               "separates the prefix",
		redisFile(t, m.Addr(), "redisDB: value: x"):                     "redisDB",
		redisFile(t, m.Addr(), "redisPassword: envRef: QUORATE_NOSUCH"): "may not read",
		filepath.Join(c.home, "nowhere"):                                "nowhere",
	} {
		if r := c.run(fromFile(path)...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %+v", want, r)
		}
	}
	wantOutput(t, c.run("state", "copy", "--from", "statestore", "--to", "orders", "--from-app", "x"), 2,
		"need --resources-path")
}

func TestCopyFromFile_NeedsTheAPITokenAndAReadyNode(t *testing.T) {
	m := oldState(t, 1)
	c := newConsole(t)
	c.env = []string{"DAPR_API_TOKEN=t0ken"}
	s := c.start("--app-id", "shop")
	t.Cleanup(func() { c.stop(s) })
	args := fromFile(redisFile(t, m.Addr()), "--address", s.api())
	stranger := newConsole(t)
	if r := stranger.run(args...); r.code != 1 || !strings.Contains(r.stderr, "DAPR_API_TOKEN") {
		t.Errorf("%+v", r)
	}
	if r := c.run(args...); r.code != 0 {
		t.Errorf("%+v", r)
	}
	starting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"errorCode":"ERR_OUTBOUND_HEALTH_NOT_READY",`+
			`"message":"the components are being opened"}`)
	}))
	defer starting.Close()
	args[len(args)-1] = starting.URL
	if r := c.run(args...); r.code != 1 || !strings.Contains(r.stderr, "is not ready") ||
		!strings.Contains(r.stderr, "the components are being opened") {
		t.Errorf("%+v", r)
	}
}

// TestCopyFromFile_ReportsProgressAndResumesAfterNodeFailure checks that a node that fails ends the copy with a
// report, and that the next run continues.
func TestCopyFromFile_ReportsProgressAndResumesAfterNodeFailure(t *testing.T) {
	m := oldState(t, 300)
	c := newConsole(t)
	s := c.start("--app-id", "shop")
	t.Cleanup(func() { c.stop(s) })
	through := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: s.api()})
	through.Transport = &http.Transport{DisableKeepAlives: true}
	var writes atomic.Int64
	var first atomic.Pointer[string]
	gate := make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && !strings.HasSuffix(r.URL.Path, "/bulk") {
			n := writes.Add(1)
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			first.CompareAndSwap(nil, new(string(body)))
			r.Body = io.NopCloser(bytes.NewReader(body))
			if n == 2 {
				<-gate // wait until a progress line was printed
			}
			if n > 2 {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = w.Write([]byte(`{"errorCode":"ERR_STATE_SAVE","message":"no quorum"}`))
				return
			}
		}
		through.ServeHTTP(w, r)
	}))
	defer front.Close()
	var stdout, stderr testutil.Output
	args := fromFile(redisFile(t, m.Addr()), "--concurrency", "1")
	done := make(chan int, 1)
	command := c.main(&stdout, &stderr, append(args, "--address", front.URL, "--progress", "5ms"))
	go func() { done <- command.Run(t.Context()) }()
	eventually(t, func() bool {
		return strings.Contains(stderr.String(), "keys/s")
	})
	close(gate)
	if code := <-done; code != 1 || !strings.Contains(stderr.String(), "no quorum") ||
		!strings.Contains(stdout.String(), "The copy is incomplete") {
		t.Errorf("%d\n%s\n%s", code, stdout.String(), stderr.String())
	}
	for _, want := range []string{`"ttlInSeconds":"0"`, `"concurrency":"first-write"`, `"consistency":"strong"`} {
		if !strings.Contains(*first.Load(), want) {
			t.Errorf("no %s in %s", want, *first.Load())
		}
	}
	if r := c.run(append(args, "--address", s.api(), "--progress", "0s")...); r.code != 0 || r.stderr != "" ||
		strings.Contains(r.stdout, "The copy is incomplete") {
		t.Errorf("%+v", r)
	}
	for _, k := range []string{"k000", "k150", "k299"} {
		if r := c.run("state", "get", "statestore", k, "--address", s.api()); r.code != 0 {
			t.Errorf("%+v", r)
		}
	}
}
