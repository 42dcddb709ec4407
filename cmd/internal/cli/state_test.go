package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// withNode starts a node and sets its address in the console's environment.
func withNode(t *testing.T, args ...string) *console {
	t.Helper()
	c := newConsole(t)
	s := c.start(args...)
	t.Cleanup(func() { c.stop(s) })
	_, port, _ := strings.Cut(s.api(), ":")
	c.env = append(c.env, "QUORATE_HTTP_PORT="+port)
	return c
}

// want runs a command and checks its exit code and output.
func (c *console) want(code int, stdout, stderr string, args ...string) {
	c.t.Helper()
	r := c.run(args...)
	if r.code != code || r.stdout != stdout || !strings.Contains(r.stderr, stderr) || stderr == "" && r.stderr != "" {
		c.t.Errorf("%q: %+v\nwant code %d, stdout %q, stderr %q", args, r, code, stdout, stderr)
	}
}

func TestState_ReadsBackByteForByte(t *testing.T) {
	c := withNode(t)
	for key, value := range map[string]string{
		"number":         "12345678901234567890.10",
		"a/b//c/":        `{"b": 1,   "a": [1, 2]}`,
		"sp ace+%2F?&#=": `"<html>&\u0041"`,
		"null":           "null",
		"kéy😀":           `"é😀"`,
	} {
		c.want(0, "", "", "state", "set", "statestore", key, value)
		c.want(0, value, "", "state", "get", "statestore", key)
	}
	c.want(0, "", "", "state", "set", "statestore", "t", "--text", `say "hi" <b>`)
	c.want(0, `"say \"hi\" \u003cb\u003e"`, "", "state", "get", "statestore", "t")
}

// TestState_LongestKey uses the longest valid key, which is too long for a URL.
func TestState_LongestKey(t *testing.T) {
	c := withNode(t)
	key := strings.Repeat("é", 2048)
	c.want(1, "", "has no key", "state", "get", "statestore", key)
	c.want(0, "", "", "state", "set", "statestore", key, `{"b":  1}`, "--ttl", "1h")
	c.want(0, `{"b":  1}`, "", "state", "get", "statestore", key)
	if r := c.run("state", "get", "statestore", key, "--json"); !strings.Contains(r.stdout, `"ttlExpireTime": "2`) {
		t.Errorf("%+v", r)
	}
	c.want(1, "", "etag", "state", "delete", "statestore", key, "--etag", "999")
	c.want(0, "", "", "state", "delete", "statestore", key, "--etag", etagOf(t, c, key))
	c.want(1, "", "has no key", "state", "get", "statestore", key)
	c.stdin = "\x00\xff raw"
	c.want(0, "", "", "state", "set", "statestore", key, "-", "--binary")
	c.want(0, "\x00\xff raw", "", "state", "get", "statestore", key)
	c.want(1, "", "--read-buffer-size", "state", "list", "statestore", "--prefix", key)
}

func TestStateSet_ReadsStandardInput(t *testing.T) {
	c := withNode(t)
	c.stdin = "[1,\n2]"
	c.want(0, "", "", "state", "set", "statestore", "k")
	c.want(0, "[1,\n2]", "", "state", "get", "statestore", "k")
	c.stdin = "\x00\xff raw"
	c.want(0, "", "", "state", "set", "statestore", "k", "-", "--binary")
	c.want(0, "\x00\xff raw", "", "state", "get", "statestore", "k")
	r := c.run("state", "get", "statestore", "k", "--json")
	if !strings.Contains(r.stdout, `"value": "AP8gcmF3"`) ||
		!strings.Contains(r.stdout, `"contentType": "application/octet-stream"`) {
		t.Errorf("%+v", r)
	}
}

func TestStateSet_Conditions(t *testing.T) {
	c := withNode(t)
	c.want(0, "", "", "state", "set", "statestore", "k", "1", "--create-only")
	c.want(1, "", "possible etag mismatch", "state", "set", "statestore", "k", "2", "--create-only")
	c.want(1, "", "possible etag mismatch", "state", "set", "statestore", "k", "2", "--etag", "999")
	etag := etagOf(t, c, "k")
	c.want(0, "", "", "state", "set", "statestore", "k", "2", "--etag", etag)
	c.want(1, "", "possible etag mismatch", "state", "delete", "statestore", "k", "--etag", etag)
	c.want(0, "2", "", "state", "get", "statestore", "k", "--consistency", "strong")
	c.want(0, "", "", "state", "delete", "statestore", "k", "--etag", etagOf(t, c, "k"), "--consistency", "strong")
	c.want(1, "", `store statestore has no key "k"`, "state", "get", "statestore", "k")
	c.want(0, "", "", "state", "delete", "statestore", "k")
}

func etagOf(t *testing.T, c *console, key string) string {
	t.Helper()
	_, rest, _ := strings.Cut(c.run("state", "get", "statestore", key, "-o", "json").stdout, `"etag": "`)
	etag, _, _ := strings.Cut(rest, `"`)
	if etag == "" {
		t.Fatalf("key %s has no etag", key)
	}
	return etag
}

func TestStateGet_ShowsTheExpiry(t *testing.T) {
	c := withNode(t)
	c.want(0, "", "", "state", "set", "statestore", "k", "1", "--ttl", "1h", "--consistency", "eventual")
	r := c.run("state", "get", "statestore", "k", "--json", "--max-staleness", "1s")
	for _, want := range []string{`"key": "k"`, `"found": true`, `"value": 1`, `"ttlExpireTime": "2`,
		`"consistency": "`} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%s is missing in %+v", want, r)
		}
	}
	if r := c.run("state", "get", "statestore", "absent", "--json"); r.code != 1 ||
		!strings.Contains(r.stdout, `"found": false`) {
		t.Errorf("%+v", r)
	}
	if r := c.run("state", "set", "statestore", "j", "1", "--json", "--consistency", "strong"); r.code != 0 ||
		!strings.Contains(r.stdout, `"etag": "`) {
		t.Errorf("%+v", r)
	}
}

func TestStateList_ReadsAllPages(t *testing.T) {
	c := withNode(t)
	const n = 2345 // more than two pages
	var items []string
	for i := range n {
		items = append(items, fmt.Sprintf(`{"key":"k%05d","value":%d}`, i, i))
	}
	save(t, c, "["+strings.Join(items, ",")+"]")

	lines := strings.Split(strings.TrimSpace(c.run("state", "list", "statestore").stdout), "\n")
	if len(lines) != n+1 || !strings.HasSuffix(lines[n], " k02344") || !strings.HasPrefix(lines[0], "ETAG ") {
		t.Errorf("%d lines, from %q to %q", len(lines), lines[0], lines[len(lines)-1])
	}
	if got := strings.Count(c.run("state", "list", "statestore", "--json").stdout, `"key":`); got != n {
		t.Errorf("%d keys", got)
	}
	if got := strings.Count(c.run("state", "list", "statestore", "--json", "--limit", "1500").stdout,
		`"key":`); got != 1500 {
		t.Errorf("%d keys", got)
	}
	if got := strings.Count(c.run("state", "list", "statestore", "--prefix", "k0001").stdout, " k0001"); got != 10 {
		t.Errorf("%d keys", got)
	}
	c.want(0, "[]\n", "", "state", "list", "statestore", "--prefix", "x", "--json")
}

func TestStateList_EscapesControlCharacters(t *testing.T) {
	c := withNode(t)
	c.want(0, "", "", "state", "set", "statestore", "a\x1b[2Jb", "1")
	if out := c.run("state", "list", "statestore").stdout; strings.Contains(out, "\x1b") ||
		!strings.Contains(out, `"a\x1b[2Jb"`) {
		t.Errorf("%q", out)
	}
}

// save posts a body to the store of the console's node.
func save(t *testing.T, c *console, body string) {
	t.Helper()
	_, port, _ := strings.Cut(c.env[0], "=")
	if status := post(t, "http://127.0.0.1:"+port+"/v1.0/state/statestore", body); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
}

func TestState_PrintsErrorsOfTheAPI(t *testing.T) {
	c := withNode(t)
	c.want(1, "", "orders", "state", "get", "orders", "k")
	c.want(1, "", "||", "state", "get", "statestore", "a||b")
	c.want(1, "", "quorate: ", "state", "set", "statestore", "k", "1", "--consistency", "weak")
}

func TestState_UsesTheAPIToken(t *testing.T) {
	c := newConsole(t)
	file := filepath.Join(c.home, "tokens")
	if err := os.WriteFile(file, []byte("secret-one\nsecret-two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := c.start("--api-token-file", file)
	defer c.stop(s)
	c.want(1, "", "(put the token into DAPR_API_TOKEN, or name its file with --api-token-file)", "state", "list",
		"statestore", "--address", s.api())
	c.want(0, "[]\n", "", "state", "list", "statestore", "--address", s.api(), "--api-token-file", file, "--json")
	c.env = []string{"DAPR_API_TOKEN=secret-two"}
	c.want(0, "[]\n", "", "state", "list", "statestore", "--address", "http://"+s.api()+"/", "--json")
	if strings.Contains(s.stderr.String(), "secret") {
		t.Errorf("a token is logged:\n%s", s.stderr)
	}
	if out := c.run("config", "print").stdout; strings.Contains(out, "secret-two") ||
		!strings.Contains(strings.Join(strings.Fields(out), " "), "api-token (redacted) env DAPR_API_TOKEN") {
		t.Errorf("printed:\n%s", out)
	}
}

func TestState_FindsTheAPI(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	_, port, _ := strings.Cut(s.api(), ":")
	for _, env := range []string{"DAPR_HTTP_PORT=" + port, "DAPR_HTTP_ENDPOINT=http://" + s.api(),
		"QUORATE_HTTP_PORT=" + port} {
		c.env = []string{"DAPR_HTTP_PORT=1", env}
		c.want(0, "[]\n", "", "state", "list", "statestore", "--json")
	}
	c.env = []string{"QUORATE_HTTP_PORT=1"}
	c.want(0, "[]\n", "", "state", "list", "statestore", "--json", "--http-port", port)
	c.want(1, "", "no node listens at http://127.0.0.1:1 (start one with: quorate run; or give its address with "+
		"--http-port or --address)", "state", "list", "statestore")
}

func TestState_ReportsAServerThatIsNoAPI(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("limit") != "" {
			_, _ = w.Write([]byte("<html>"))
			return
		}
		http.Error(w, "nothing here", http.StatusTeapot)
	}))
	defer server.Close()
	c := newConsole(t)
	c.want(1, "", "the server is not a Quorate API: status 418", "state", "get", "s", "k", "--address", server.URL)
	c.want(1, "", "the answer of "+server.URL+" cannot be read", "state", "list", "s", "--address", server.URL)
}

func TestCompletion_OffersStoreNames(t *testing.T) {
	c := withNode(t)
	if out := c.run("__complete", "state", "get", "").stdout; !strings.HasPrefix(out, "statestore\norders\n:") {
		t.Errorf("offered: %q", out)
	}
	if out := c.run("__complete", "state", "get", "statestore", "").stdout; !strings.HasPrefix(out, ":") {
		t.Errorf("offered: %q", out)
	}
	if out := c.run("__complete", "run", "--log-store", "").stdout; !strings.HasPrefix(out, "boltdb\nwal\n:") {
		t.Errorf("offered: %q", out)
	}
	c.env = []string{"QUORATE_HTTP_PORT=1"}
	if r := c.run("__complete", "state", "get", ""); !strings.HasPrefix(r.stdout, ":") || r.code != 0 {
		t.Errorf("without a node: %+v", r)
	}
}
