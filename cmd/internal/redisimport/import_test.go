package redisimport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/cmd/internal/redisimport"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const timeout = time.Minute

// onEveryServer runs a test with a Redis in this process and, if QUORATE_REDIS_SERVER is set, also
// with that redis-server. do sends commands that fill the server.
func onEveryServer(t *testing.T, test func(t *testing.T, address string, do func(command string, args ...any))) {
	t.Run("in this process", func(t *testing.T) {
		address := miniredis.RunT(t).Addr()
		test(t, address, dial(t, address))
	})
	t.Run("real", func(t *testing.T) {
		address := realRedis(t)
		test(t, address, dial(t, address))
	})
}

// realRedis starts the program in QUORATE_REDIS_SERVER, or the redis-server on the PATH.
func realRedis(t *testing.T) string {
	t.Helper()
	program := os.Getenv("QUORATE_REDIS_SERVER")
	if program == "" {
		var err error
		if program, err = exec.LookPath("redis-server"); err != nil {
			t.Skip("redis-server is not installed, and QUORATE_REDIS_SERVER is not set")
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	_, port, _ := strings.Cut(address, ":")
	c := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(timeout); ; <-tick.C {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not listen")
		}
	}
}

func dial(t *testing.T, address string) func(string, ...any) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: address, Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	return func(command string, args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), append([]any{command}, args...)...).Err(); err != nil {
			t.Fatalf("%s %v: %v", command, args, err)
		}
	}
}

// store is a target in memory.
type store struct {
	mu     sync.Mutex
	items  map[string]redisimport.Item
	bad    string // a key that it refuses
	before func() error
	writes int
}

func newStore(keys ...string) *store {
	s := &store{items: map[string]redisimport.Item{}}
	for _, k := range keys {
		s.items[k] = redisimport.Item{Key: k, Value: []byte(`"newer"`)}
	}
	return s
}

func (s *store) Write(_ context.Context, items []redisimport.Item, createOnly bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.before != nil {
		if err := s.before(); err != nil {
			return err
		}
	}
	for _, i := range items {
		if _, there := s.items[i.Key]; there && createOnly {
			return fault.New(fault.Conflict, "test", "possible etag mismatch")
		}
		if i.Key == s.bad {
			return fault.New(fault.Invalid, "test", "key "+i.Key+" has 5000000 bytes; the limit is 4194304")
		}
	}
	for _, i := range items {
		s.items[i.Key] = i
	}
	return nil
}

func (s *store) Present(_ context.Context, keys []string) (map[string]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]bool{}
	for _, k := range keys {
		_, out[k] = s.items[k]
	}
	return out, nil
}

func (s *store) values() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for k, i := range s.items {
		out[k] = string(i.Value)
	}
	return out
}

// to returns an import of the application shop with small batches.
func to(address string, target redisimport.Target) redisimport.Import {
	return redisimport.Import{
		Server: redisimport.Server{Address: address, Timeout: timeout},
		Keys:   redisimport.Keys{Owner: state.Owner{App: "shop", Store: "statestore"}},
		Target: target, Batch: 3, Bytes: 1 << 20, MaxValue: 1000, Workers: 2,
		Pause: func(context.Context, int) bool { return false },
	}
}

// reasons returns the number of skipped keys by reason.
func reasons(r redisimport.Report) map[redisimport.Reason]int64 {
	out := map[redisimport.Reason]int64{}
	for _, c := range r.Skipped {
		out[c.Reason] = c.Keys
	}
	return out
}

func run(t *testing.T, i redisimport.Import) redisimport.Report {
	t.Helper()
	r, err := i.Run(t.Context())
	if err != nil || !r.Complete {
		t.Fatalf("%+v, %v", r, err)
	}
	return r
}

func TestImport_CopiesOrReportsEveryKey(t *testing.T) {
	onEveryServer(t, func(t *testing.T, address string, do func(string, ...any)) {
		do("HSET", "shop||a", "data", `{"n": 1.10}`, "version", 3)
		do("HSET", "shop||b/c d", "data", `"<é>"`, "version", 1, "first-write", 0)
		do("HSET", "shop||none", "data", "null", "version", 1)
		do("HSET", "shop||raw", "data", "\x00\xff raw", "version", 1)
		do("HSET", "shop||ttl", "data", "1", "version", 1)
		do("PEXPIRE", "shop||ttl", 3_600_500)
		do("HSET", "shop||huge", "data", `"`+strings.Repeat("x", 2000)+`"`, "version", 1)
		do("HSET", "shop||sealed", "data", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5||mykey", "version", 1)
		do("HSET", "shop||other hash", "field", "x")
		do("SET", "shop||text", "plain")
		do("RPUSH", "shop||list", "x")
		do("HSET", "shop||cart||7||items", "data", "[]", "version", 1)
		do("HSET", "orders||a", "data", "1", "version", 1)
		do("HSET", "actors||cart", "data", "[]", "version", 1)
		do("SET", "lock||shop||x", "me")
		do("SET", "session", "x")
		target := newStore()
		var ledger bytes.Buffer
		i := to(address, target)
		i.Skipped = &ledger
		r := run(t, i)
		want := map[string]string{"a": `{"n": 1.10}`, "b/c d": `"<é>"`, "none": "null", "raw": "\x00\xff raw",
			"ttl": "1"}
		if diff := cmp.Diff(want, target.values()); diff != "" {
			t.Errorf("copied: %s", diff)
		}
		left := target.items["ttl"].TTL
		if left <= time.Hour-timeout || left > time.Hour+time.Second || left%time.Second != 0 ||
			target.items["a"].TTL != 0 {
			t.Errorf("%v is left to live", left)
		}
		if !target.items["raw"].Binary || target.items["a"].Binary {
			t.Error("binary data and JSON are mixed up")
		}
		if diff := cmp.Diff(map[redisimport.Reason]int64{redisimport.TooLarge: 1, redisimport.Encrypted: 1,
			redisimport.NoState: 3, redisimport.ActorState: 1,
			redisimport.OtherPrefix: 3, redisimport.NoPrefix: 1}, reasons(r)); diff != "" {
			t.Errorf("skipped: %s", diff)
		}
		if diff := cmp.Diff(map[string]int64{"orders": 1, "actors": 1, "lock": 1}, r.Prefixes); diff != "" {
			t.Errorf("prefixes: %s", diff)
		}
		if r.Seen != 15 || r.Estimate != 15 || r.Copied != 5 || r.Expiring != 1 || r.Binary != 1 || r.Lost() != 2 {
			t.Errorf("%+v", r)
		}
		for _, name := range []string{"shop||huge", "shop||text", "shop||list", "shop||cart||7||items", "orders||a",
			"session"} {
			if !strings.Contains(ledger.String(), `{"key":"`+name+`"`) {
				t.Errorf("%s is not named in\n%s", name, &ledger)
			}
		}
	})
}

func TestImport_SecondRunKeepsNewerData(t *testing.T) {
	onEveryServer(t, func(t *testing.T, address string, do func(string, ...any)) {
		want := map[string]string{}
		for n := range 250 {
			k := fmt.Sprint("k", n)
			do("HSET", "shop||"+k, "data", n, "version", 1)
			want[k] = fmt.Sprint(n)
		}
		target := newStore("k7", "k8", "k200")
		r := run(t, to(address, target))
		if got := reasons(r)[redisimport.Exists]; r.Copied != 247 || got < 3 {
			t.Errorf("%+v", r)
		}
		for _, k := range []string{"k7", "k8", "k200"} {
			want[k] = `"newer"`
		}
		if diff := cmp.Diff(want, target.values()); diff != "" {
			t.Error(diff)
		}
		if r := run(t, to(address, target)); r.Copied != 0 || r.Lost() != 0 {
			t.Errorf("the second run: %+v", r)
		}
		dry := to(address, newStore("k1"))
		dry.DryRun = true
		if r := run(t, dry); r.Copied != 249 || len(dry.Target.(*store).items) != 1 {
			t.Errorf("the dry run: %+v", r)
		}
		over := to(address, target)
		over.Overwrite = true
		if run(t, over); target.values()["k7"] != "7" {
			t.Error("Overwrite replaces nothing")
		}
	})
}

func TestImport_ReadsRedisJSONDocuments(t *testing.T) {
	m := miniredis.RunT(t)
	documents := map[string]string{
		"shop||doc": `{"data":{"b":1, "a":12345678901234567890},"version":4}`, "shop||foreign": `{"x":1}`,
		"shop||list": `[1]`,
	}
	for k := range documents {
		m.HSet(k, "x", "y") // so that SCAN finds it
	}
	m.Server().SetPreHook(func(p *server.Peer, command string, args ...string) bool {
		switch strings.ToUpper(command) {
		case "TYPE":
			p.WriteInline("ReJSON-RL")
		case "HSTRLEN":
			p.WriteError("WRONGTYPE Operation against a key holding the wrong kind of value")
		case "JSON.GET":
			p.WriteBulk(documents[args[0]])
		default:
			return false
		}
		return true
	})
	target := newStore()
	r := run(t, to(m.Addr(), target))
	if diff := cmp.Diff(map[string]string{"doc": `{"b":1, "a":12345678901234567890}`}, target.values()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[redisimport.Reason]int64{redisimport.NoState: 1, redisimport.Refused: 1},
		reasons(r)); diff != "" {
		t.Error(diff)
	}
}

func TestImport_ReportsARefusedValueAndCopiesTheRest(t *testing.T) {
	m := miniredis.RunT(t)
	for n := range 20 {
		m.HSet(fmt.Sprint("shop||k", n), "data", "1")
	}
	target := newStore("k3")
	target.bad = "k5"
	r := run(t, to(m.Addr(), target))
	if r.Copied != 18 || r.Lost() != 1 || len(target.items) != 19 {
		t.Errorf("%+v", r)
	}
	i := slices.IndexFunc(r.Skipped, func(c redisimport.Count) bool { return c.Lost })
	want := redisimport.Skipped{Key: "shop||k5", Reason: redisimport.Refused,
		Detail: "key k5 has 5000000 bytes; the limit is 4194304"}
	if diff := cmp.Diff([]redisimport.Skipped{want}, r.Skipped[i].Examples); diff != "" {
		t.Error(diff)
	}
}

func TestImport_RetriesWritesWhileTheNodeIsUnavailable(t *testing.T) {
	m := miniredis.RunT(t)
	m.HSet("shop||a", "data", "1")
	target := newStore()
	target.before = func() error {
		if target.writes < 4 {
			return fault.New(fault.Internal, "test", "no quorum")
		}
		return nil
	}
	i := to(m.Addr(), target)
	i.Pause = func(_ context.Context, attempt int) bool { return attempt < 4 }
	if r := run(t, i); r.Copied != 1 || target.writes != 4 {
		t.Errorf("%+v after %d writes", r, target.writes)
	}
	target = newStore()
	target.before = func() error { return fault.New(fault.Denied, "test", "the token is wrong") }
	i.Target = target
	if r, err := i.Run(t.Context()); !fault.Is(err, fault.Denied) || r.Complete || target.writes != 1 {
		t.Errorf("%+v, %v after %d writes", r, err, target.writes)
	}
}

func TestImport_ContinuesAfterRedisReturns(t *testing.T) {
	m := miniredis.RunT(t)
	for n := range 100 {
		m.HSet(fmt.Sprint("shop||k", n), "data", "1")
	}
	target := newStore()
	target.before = func() error {
		if target.writes == 5 {
			m.Close()
		}
		return nil
	}
	i := to(m.Addr(), target)
	i.Workers = 1 // connected before Redis stops
	r, err := i.Run(t.Context())
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Text(err), "continues where it stopped") ||
		r.Complete || r.Copied == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := m.Restart(); err != nil {
		t.Fatal(err)
	}
	if r := run(t, to(m.Addr(), target)); len(target.items) != 100 || r.Lost() != 0 {
		t.Errorf("%d keys, %+v", len(target.items), r)
	}
}

func TestImport_EndsWithItsContext(t *testing.T) {
	m := miniredis.RunT(t)
	m.HSet("shop||a", "data", "1")
	ctx, cancel := context.WithCancelCause(t.Context())
	target := newStore()
	target.before = func() error {
		cancel(fault.New(fault.Unavailable, "test", "interrupted"))
		return fault.New(fault.Internal, "test", "cut")
	}
	if _, err := to(m.Addr(), target).Run(ctx); err == nil || !strings.Contains(fault.Text(err), "interrupted") {
		t.Errorf("%v", err)
	}
}

func TestImport_ReportsUnreadableServersWithAHint(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	locked := miniredis.RunT(t)
	locked.RequireAuth("right")
	user := miniredis.RunT(t)
	user.RequireUserAuth("reader", "right")
	open := miniredis.RunT(t)
	gone := miniredis.RunT(t)
	unused := gone.Addr()
	gone.Close()
	for name, c := range map[string]struct {
		server redisimport.Server
		code   fault.Code
		text   string
	}{
		"no password": {redisimport.Server{Address: locked.Addr()}, fault.Denied, "REDIS_PASSWORD"},
		"wrong password": {redisimport.Server{Address: locked.Addr(), Password: "wrong"}, fault.Denied,
			"--redis-password-file"},
		"wrong user": {redisimport.Server{Address: user.Addr(), Username: "writer", Password: "right"},
			fault.Denied, "--redis-username"},
		"no server": {redisimport.Server{Address: unused}, fault.Unavailable, "--redis-address"},
		"a web server": {redisimport.Server{Address: strings.TrimPrefix(web.URL, "http://")}, fault.Invalid,
			"is not Redis"},
		"a database that is not": {redisimport.Server{Address: open.Addr(), DB: 99999}, fault.Internal, "DB index"},
	} {
		c.server.Timeout = timeout
		i := to("", newStore())
		i.Server = c.server
		_, err := i.Run(t.Context())
		if name == "a database that is not" && err == nil {
			continue // the one in this process has no limit of databases
		}
		if !fault.Is(err, c.code) || !strings.Contains(fault.Text(err), c.text) ||
			strings.Contains(fault.Text(err), "right") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range []redisimport.Server{{Address: locked.Addr(), Password: "right"},
		{Address: user.Addr(), Username: "reader", Password: "right", DB: 2}} {
		i := to("", newStore())
		s.Timeout, i.Server = timeout, s
		run(t, i)
	}
}

func TestKeys_MatchThePrefixOfTheRedisComponent(t *testing.T) {
	m := miniredis.RunT(t)
	for _, k := range []string{"shop||a", "prod.shop||b", "redisstore||c", "mine||d", "e", "cart"} {
		m.HSet(k, "data", "1")
	}
	for prefix, want := range map[string][]string{
		"": {"a"}, "appid": {"a"}, "namespace": {"b"}, "name": {"c"}, "MINE": {"d"}, "none": {"cart", "e"},
	} {
		p, err := state.ParseKeyPrefix(prefix)
		if err != nil {
			t.Fatal(err)
		}
		target := newStore()
		i := to(m.Addr(), target)
		i.Keys = redisimport.Keys{Prefix: p, Owner: state.Owner{App: "shop", Namespace: "prod", Store: "redisstore"}}
		run(t, i)
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(target.items))); diff != "" {
			t.Errorf("%s: %s", prefix, diff)
		}
	}
}

func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"data":{"a":1},"version":1}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		data, err := redisimport.DocumentData(text)
		if err == nil && data != nil && !json.Valid(data) {
			t.Errorf("%q gave %q", text, data)
		}
	})
}

func TestImport_TLSNeedsATrustedCertificate(t *testing.T) {
	web := httptest.NewTLSServer(nil) // its certificate is for 127.0.0.1
	defer web.Close()
	m, err := miniredis.RunTLS(web.TLS)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.HSet("shop||a", "data", "1")
	trusted := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	trusted.RootCAs.AddCert(web.Certificate())
	for name, c := range map[string]struct {
		address string
		tls     *tls.Config
		text    string // empty = no error
	}{
		"trusted":        {m.Addr(), trusted, ""},
		"unknown":        {m.Addr(), &tls.Config{MinVersion: tls.VersionTLS12}, "--redis-ca-file"},
		"TLS to a plain": {miniredis.RunT(t).Addr(), trusted, "omit --redis-tls"},
		"plain to a TLS": {m.Addr(), nil, "--redis-tls"},
	} {
		i := to(c.address, newStore())
		i.Server.TLS = c.tls
		r, err := i.Run(t.Context())
		if c.text == "" && (err != nil || r.Copied != 1) || c.text != "" &&
			(err == nil || !strings.Contains(fault.Text(err), c.text)) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}
