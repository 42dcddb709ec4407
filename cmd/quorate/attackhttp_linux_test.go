package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// endpoint is one route of the HTTP API. open is true if the route needs no token.
type endpoint struct {
	verbs []string
	path  string
	open  bool
}

// endpoints returns all endpoints of the HTTP API. It reads them from the source, so that none is missing.
func endpoints(t *testing.T) (out []endpoint) {
	t.Helper()
	source := ""
	for _, file := range sure(filepath.Glob("../../api/http/*.go"))(t) {
		if !strings.HasSuffix(file, "_test.go") {
			source += string(sure(os.ReadFile(file))(t))
		}
	}
	line := regexp.MustCompile(`\{verbs: ("[A-Z ]+"|anyVerb), path: (base \+ )?"([^"]+)", ([^}]*)\}[,)]`)
	parsed := 0
	for _, m := range line.FindAllStringSubmatch(source, -1) {
		verbs := []string{"GET", "POST", "PUT", "DELETE", "PATCH"}
		parsed++
		if m[1] != "anyVerb" {
			verbs = strings.Fields(strings.Trim(m[1], `"`))
		}
		bases := []string{""}
		if m[2] != "" { // workflows.go repeats its routes for each version
			bases = []string{"/v1.0/workflows/workflow/", "/v1.0-beta1/workflows/workflow/",
				"/v1.0-alpha1/workflows/workflow/"}
		}
		for _, base := range bases {
			path := strings.NewReplacer("{store}", "statestore", "{type}", "t", "{id}", "1", "{name}", "vault",
				"{instance}", "1", "{workflow}", "w", "{event}", "e", "*", "x").Replace(base + m[3])
			out = append(out, endpoint{verbs, strings.Replace(path, "secrets/statestore", "secrets/vault", 1),
				strings.Contains(m[4], "open: true")})
		}
	}
	if lines := strings.Count(source, "{verbs: "); parsed != lines || lines < 15 {
		t.Fatalf("%d of %d routes were parsed", parsed, lines)
	}
	return out
}

// attackWithoutToken calls every endpoint without a token.
func attackWithoutToken(t *testing.T, s *siege) {
	v := s.nodes[0]
	credentials := map[string][]string{
		"none": nil, "wrong": {"dapr-api-token", "guess"}, "empty": {"dapr-api-token", ""},
		"longer":     {"dapr-api-token", attackToken + "x"},
		"shorter":    {"dapr-api-token", attackToken[:len(attackToken)-1]},
		"upper case": {"dapr-api-token", strings.ToUpper(attackToken)},
		"bearer":     {"Authorization", "Bearer " + attackToken},
		"cookie":     {"Cookie", "dapr-api-token=" + attackToken}, "of the app": {"dapr-app-id", "app1"},
		"two, the first wrong": {"dapr-api-token", "guess", "dapr-api-token", attackToken},
	}
	for _, e := range endpoints(t) {
		for name, headers := range credentials {
			for _, verb := range append(slices.Clone(e.verbs), "OPTIONS", "TRACE", "BREW") {
				if e.open && verb == "GET" {
					if got := v.status(verb, e.path, headers...); got == http.StatusUnauthorized || got == 0 {
						t.Errorf("%s %s requires a token: health must not", verb, e.path)
					}
					continue
				}
				resp, text, err := v.ask(verb, e.path, `[]`, headers...)
				if err != nil || resp.StatusCode != http.StatusUnauthorized || !strings.Contains(text, `"errorCode"`) {
					t.Errorf("%s %s with token %s: %v %v %s", verb, e.path, name, err, resp, text)
				}
			}
		}
	}
	for _, path := range []string{"/", "/metrics", "/debug/pprof/", "/v1.0/admin/status", "/admin/status",
		"/v1.0/healthz/../state/statestore/x",
		"/v1.0/healthz%2f..%2fstate/statestore/x", "//v1.0/state/statestore/x", "/V1.0/state/statestore/x",
		"/v1.0/state/statestore/x?dapr-api-token=" + attackToken} {
		if got := v.status("GET", path); got != http.StatusUnauthorized {
			t.Errorf("GET %s is answered with %d", path, got)
		}
	}
	seen, _ := s.app.take()
	seen = slices.DeleteFunc(seen, func(call string) bool { // a request of the node itself
		return strings.HasPrefix(call, "GET /dapr/subscribe ")
	})
	if len(seen) != 0 {
		t.Errorf("the application was called: %v", seen)
	}
	if got := v.status("GET", "/v1.0/secrets/vault/password", "dapr-api-token", attackToken); got != http.StatusOK {
		t.Errorf("with the token, the secret returns %d", got)
	}
}

// attackMalformed sends invalid requests. None of them may be accepted.
func attackMalformed(t *testing.T, s *siege) {
	v := s.nodes[0]
	const host, token = "Host: localhost\r\n", "dapr-api-token: " + attackToken + "\r\n"
	var wg sync.WaitGroup
	for name, text := range map[string]string{
		"nothing":                "\r\n\r\n\r\n\r\n",
		"random bytes":           noise(4096),
		"TLS":                    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise(512),
		"HTTP/0.9":               "GET /v1.0/state/statestore/x\r\n\r\n",
		"HTTP/9.9":               "GET /v1.0/state/statestore/x HTTP/9.9\r\n" + host + token + "\r\n",
		"no host":                "GET /v1.0/state/statestore/x HTTP/1.1\r\n" + token + "\r\n",
		"two hosts":              "GET /v1.0/state/statestore/x HTTP/1.1\r\n" + host + host + token + "\r\n",
		"bad host":               "GET /v1.0/state/statestore/x HTTP/1.1\r\nHost: a b\r\n" + token + "\r\n",
		"space before the colon": "GET /v1.0/state/statestore/x HTTP/1.1\r\n" + host + "X : 1\r\n" + token + "\r\n",
		"NUL in a header":        "GET /v1.0/state/statestore/x HTTP/1.1\r\n" + host + "X: a\x00b\r\n" + token + "\r\n",
		"NUL in a name":          "GET /v1.0/state/statestore/x HTTP/1.1\r\n" + host + "X\x00: a\r\n" + token + "\r\n",
		"bad escape":             "GET /v1.0/state/statestore/%zz HTTP/1.1\r\n" + host + token + "\r\n",
		"control in the path":    "GET /v1.0/state/statestore/\x01 HTTP/1.1\r\n" + host + token + "\r\n",
		"length is not a number": "POST /v1.0/state/statestore HTTP/1.1\r\n" + host + token +
			"Content-Length: many\r\n\r\n[]",
		"length is negative": "POST /v1.0/state/statestore HTTP/1.1\r\n" + host + token +
			"Content-Length: -1\r\n\r\n[]",
		"length overflows": "POST /v1.0/state/statestore HTTP/1.1\r\n" + host + token +
			"Content-Length: 99999999999999999999\r\n\r\n[]",
		"bad chunk": "POST /v1.0/state/statestore HTTP/1.1\r\n" + host + token +
			"Transfer-Encoding: chunked\r\n\r\nzz\r\n[]\r\n0\r\n\r\n",
		"chunk overflows": "POST /v1.0/state/statestore HTTP/1.1\r\n" + host + token +
			"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n[]",
		"HTTP/2 garbage": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise(4096),
		"CONNECT":        "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n" + token + "\r\n",
		"absolute form": "GET http://169.254.169.254/latest HTTP/1.1\r\n" +
			"Host: 169.254.169.254\r\n" + token + "\r\n",
	} {
		wg.Go(func() { // concurrently, because some requests get no response until a timeout
			out := raw(t, v.api, text)
			for _, status := range answers(out) {
				if status < 400 || status >= 500 && status != http.StatusHTTPVersionNotSupported &&
					status != http.StatusNotImplemented {
					t.Errorf("%s is answered with %d: %.200q", name, status, out)
				}
			}
		})
	}
	wg.Wait()
}

// attackBodies sends bodies that an endpoint does not expect, with the right token. Some endpoints answer 500, as Dapr
// clients expect. Two kinds of bodies are left out: bytes after the first JSON value, because the API ignores them,
// and null, because it is an empty list.
func attackBodies(t *testing.T, s *siege) {
	v := s.nodes[0]
	bodies := map[string]string{
		"nothing": "", "a word": "word", "cut off": `[{"key":"a","value":`,
		"of another type": `{"key":[1],"keys":7,"operation":[],"operations":1}`, "a number": "7",
		"deep arrays": strings.Repeat("[", 1_000_000), "deep objects": strings.Repeat(`{"a":`, 500_000),
		"no UTF-8": "[{\"key\":\"\xff\xfe\",\"value\":1}]",
		"noise":    noise(10_000), "a huge number as key": `[{"key":1e999,"value":1}]`,
		"separator in a key": `[{"key":"other||secret","value":1}]`,
		"a long key":         `[{"key":"` + strings.Repeat("k", 5000) + `","value":1}]`,
	}
	for _, e := range endpoints(t) {
		if e.open || strings.HasPrefix(e.path, "/v1.0/invoke") || e.path == "/v1.0/shutdown" ||
			strings.HasPrefix(e.path, "/v1.0/metadata") || !slices.Contains(e.verbs, "POST") ||
			strings.Contains(e.path, "/workflows/") && !strings.Contains(e.path, "/raiseEvent/") {
			continue // starting a workflow accepts any text, and the other routes accept no body
		}
		for name, body := range bodies {
			resp, text, err := v.ask("POST", e.path, body, "dapr-api-token", attackToken)
			if err != nil || resp.StatusCode < 400 || resp.StatusCode > 500 || !strings.Contains(text, `"errorCode"`) {
				t.Errorf("%s with %s: %v %v %.200s", e.path, name, err, resp, text)
			}
		}
	}
	for _, key := range []string{"..%2f..%2fetc%2fpasswd", "a%00b", strings.Repeat("k", 3000), "%7c%7c",
		"app2%7c%7cx"} {
		if got := v.status("GET", "/v1.0/secrets/vault/"+key, "dapr-api-token",
			attackToken); got != http.StatusNoContent && (got < 400 || got >= 500) {
			t.Errorf("the secret %.20s returns %d", key, got)
		}
	}
	if got := v.status("GET", "/v1.0/state/statestore/app2%7c%7cx", "dapr-api-token",
		attackToken); got != http.StatusBadRequest {
		t.Errorf("a key of another application returns %d", got)
	}
}

// attackOversize sends requests that exceed the limits.
func attackOversize(t *testing.T, s *siege) {
	v := s.nodes[0]
	const head = "POST /v1.0/state/statestore HTTP/1.1\r\nHost: localhost\r\ndapr-api-token: " + attackToken + "\r\n"
	big := `[{"key":"big","value":"` + strings.Repeat("x", 5<<20) + `"}]`
	keys := `{"keys":["` + strings.Repeat(`k","`, 10_001) + `k"]}`
	operations := `{"operations":[` + strings.Repeat(`{"operation":"delete","request":{"key":"a"}},`, 1001) +
		`{"operation":"delete","request":{"key":"a"}}]}`
	for name, c := range map[string]struct {
		text string
		want []int
	}{
		"a long body":              {fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(big), big), []int{400}},
		"a body announced as long": {head + "Content-Length: 9223372036854775807\r\n\r\n[", []int{400}},
		"a long body in chunks": {head + "Transfer-Encoding: chunked\r\n" +
			"\r\n" + strings.Repeat("10000\r\n"+strings.Repeat("y", 0x10000)+"\r\n", 128), []int{400}},
		"a long extension": {head + "Transfer-Encoding: chunked\r\n\r\n" +
			"1;" + strings.Repeat("e", 1<<20) + "\r\n[\r\n0\r\n\r\n", []int{400}},
		"a long header": {head + "X: " + strings.Repeat("h", 1<<20) + "\r\n\r\n", []int{431}},
		"many headers":  {head + strings.Repeat("X: 1\r\n", 10_000) + "\r\n", []int{431}},
		"a long path": {"GET /" + strings.Repeat("p", 1<<20) + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
			[]int{431, 414}},
		"headers without an end": {head + strings.Repeat("X: 1\r\n", 100_000), []int{431}},
		"many keys of a bulk":    {bodied("/v1.0/state/statestore/bulk", keys), []int{400}},
		"many operations":        {bodied("/v1.0/state/statestore/transaction", operations), []int{400}},
		"many items": {bodied("/v1.0/state/statestore",
			"["+strings.Repeat(`{"key":"a","value":1},`, 10_000)+`{"key":"a","value":1}]`), []int{400}},
		"a compressed bomb": {head + "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
			[]int{400, 415}},
		"trailers without an end": {head + "Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n" +
			"0\r\n" + strings.Repeat("X: 1\r\n", 200_000), []int{204, 400, 431}},
	} {
		out := raw(t, v.api, c.text)
		got := answers(out)
		if len(got) > 1 || len(got) == 1 && !slices.Contains(c.want, got[0]) {
			t.Errorf("%s is answered with %v: %.300q", name, got, out)
		}
	}
}

func bodied(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\ndapr-api-token: %s\r\nContent-Length: %d\r\n\r\n%s",
		path, attackToken, len(body), body)
}

// noise returns random bytes, the same in every run.
func noise(n int) string {
	out, x := make([]byte, n), uint64(88172645463325252)
	for i := range out {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		out[i] = byte(x)
	}
	return string(out)
}
