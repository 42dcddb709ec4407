package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// attackSmuggling sends requests with an ambiguous length. A second request begins where one interpretation of the
// length ends. The application must never get the second request, and there must never be a second response.
func attackSmuggling(t *testing.T, s *siege) {
	v := s.nodes[0]
	const hidden = "GET /v1.0/invoke/app1/method/smuggled HTTP/1.1\r\nHost: localhost\r\n" +
		"dapr-api-token: " + attackToken + "\r\n\r\n"
	head := "POST /v1.0/invoke/app1/method/front HTTP/1.1\r\nHost: localhost\r\ndapr-api-token: " + attackToken + "\r\n"
	chunked := "0\r\n\r\n"
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }
	for name, text := range map[string]string{
		"two lengths":             head + length(0) + length(len(hidden)) + "\r\n" + hidden,
		"two lengths in one line": head + fmt.Sprintf("Content-Length: 0, %d\r\n\r\n", len(hidden)) + hidden,
		"a signed length":         head + fmt.Sprintf("Content-Length: +%d\r\n\r\n", 0) + hidden,
		"an unknown encoding":     head + "Transfer-Encoding: xchunked\r\n\r\n" + chunked + hidden,
		"two encodings": head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n" +
			"\r\n" + chunked + hidden,
		"a list of encodings": head + "Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked + hidden,
		"a space before the colon": head + "Transfer-Encoding : chunked\r\n" + length(len(chunked)) + "\r\n" +
			chunked + hidden,
		"a folded header":       head + "Transfer-Encoding:\r\n chunked, identity\r\n\r\n" + chunked + hidden,
		"a tab in the encoding": head + "Transfer-Encoding: \x0bchunked\r\n\r\n" + chunked + hidden,
		"a bare carriage return": head + "X: 1\rTransfer-Encoding: identity\r\nTransfer-Encoding: x\r\n" +
			"\r\n" + chunked + hidden,
		"a negative chunk":               head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n" + hidden,
		"a chunk in another number form": head + "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + hidden,
		"no end of a chunk":              head + "Transfer-Encoding: chunked\r\n\r\n1\r\nab0\r\n\r\n" + hidden,
	} {
		out := answers(raw(t, v.api, text))
		if len(out) != 1 || out[0] < 400 || out[0] == http.StatusInternalServerError &&
			!strings.Contains(name, "chunk") {
			t.Errorf("%s returns %v, want one refusal", name, out)
		}
		if seen, _ := s.app.take(); slices.ContainsFunc(seen,
			func(line string) bool { return strings.Contains(line, "smuggled") }) {
			t.Errorf("%s reached the application: %v", name, seen)
		}
	}
	// If a request has both a length and an encoding, the encoding counts. The forwarded request is unambiguous. The
	// bytes after the body are then a separate request, or the connection is closed.
	both := strings.Replace(head, "/front", "/both", 1) + length(len(chunked)+len(hidden)) +
		"Transfer-Encoding: chunked\r\n\r\n" + chunked + strings.ReplaceAll(hidden,
		"dapr-api-token: "+attackToken+"\r\n", "")
	out := answers(raw(t, v.api, both))
	seen, _ := s.app.take() // earlier requests may still have been in flight
	if seen = slices.DeleteFunc(seen, func(line string) bool { return strings.Contains(line, "/front") }); len(
		seen) > 1 || len(seen) == 1 && seen[0] != "POST /both 0" {
		t.Errorf("a length with an encoding reached the application as %v", seen)
	}
	for _, status := range out[min(1, len(out)):] {
		if status != http.StatusUnauthorized {
			t.Errorf("a length with an encoding returns %v", out)
		}
	}
	if text := raw(t, v.api, head+"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"+
		"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"); strings.Contains(text, "101 Switching") {
		t.Error("the connection is switched to HTTP/2, past the checks")
	}
	s.app.take()
}

// attackHeaders tries to inject headers and paths into the forwarded request.
func attackHeaders(t *testing.T, s *siege) {
	v := s.nodes[0]
	const tail = " HTTP/1.1\r\nHost: localhost\r\ndapr-api-token: " + attackToken + "\r\n"
	for _, path := range []string{"a%0d%0aX-Injected:%201", "a%00b", "..%2f..%2fadmin", "%2e%2e/admin", "..;/admin",
		"admin#/read"} {
		out := answers(raw(t, v.api, "GET /v1.0/invoke/app1/method/"+path+tail+"\r\n"))
		if len(out) != 1 || out[0] < 400 || out[0] >= 500 {
			t.Errorf("the method %s returns %v", path, out)
		}
	}
	if seen, _ := s.app.take(); len(seen) != 0 {
		t.Errorf("the application was called: %v", seen)
	}
	raw(t, v.api, "GET /v1.0/invoke/app1/method/plain"+tail+"Connection: close, X-Hop\r\nX-Hop: 1\r\n"+
		"TE: trailers\r\nProxy-Authorization: x\r\nX-Kept: 1\r\n\r\n")
	seen, heads := s.app.take()
	if len(seen) != 1 || heads[0].Get("X-Kept") != "1" {
		t.Fatalf("the application saw %v %v", seen, heads)
	}
	for _, name := range []string{"Dapr-Api-Token", "X-Hop", "Proxy-Authorization", "X-Injected"} {
		if value := heads[0].Get(name); value != "" {
			t.Errorf("the header %s was forwarded to the application: %q", name, value)
		}
	}
}

// strangers returns the first bytes of connections that are not from a node.
func strangers() map[string]string {
	return map[string]string{
		"nothing":      "",
		"random bytes": noise(64 << 10),
		"HTTP":         "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"HTTP/2":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"half of TLS":  "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise(100),
		"long records": "\x16\x03\x01\xff\xff" + noise(1<<20),
		"zeroes":       strings.Repeat("\x00", 1<<20),
		"ones":         strings.Repeat("\xff", 1<<20),
	}
}

// attackClusterPorts connects to the ports between nodes without a certificate of the cluster.
func attackClusterPorts(t *testing.T, s *siege) {
	var wg sync.WaitGroup
	for _, v := range s.nodes {
		for _, port := range []string{v.peer, v.gossip} {
			for name, text := range strangers() {
				wg.Go(func() { // concurrently, because each may take as long as the timeout of a handshake
					if out := raw(t, port, text); leaks(out) {
						t.Errorf("%s on %s of %s returns %.100q", name, port, v.ID, out)
					}
				})
			}
			wg.Go(func() { handshakes(t, port) })
		}
		wg.Go(func() { datagrams(t, v.gossip) })
	}
	wg.Wait()
	for _, v := range s.nodes {
		if v.sum(t, "quorate_peer_refused_total{") == 0 || v.sum(t, "quorate_gossip_refused_total{") == 0 {
			t.Errorf("%s has not counted the refused connections", v.ID)
		}
		if log := v.log.String(); !strings.Contains(log, "peer connection refused") ||
			!strings.Contains(log, "gossip is refused") {
			t.Errorf("%s has not logged the refused connections", v.ID)
		}
	}
}

// leaks reports whether a response is more than a TLS alert, which begins with 0x15.
func leaks(out string) bool { return out != "" && (out[0] != 0x15 || len(out) > 64) }

// handshakes tries TLS handshakes with a self-signed certificate and without one.
func handshakes(t *testing.T, port string) {
	for name, certificates := range map[string][]tls.Certificate{"no certificate": nil,
		"a certificate of its own": {forged(t)}} {
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Minute},
			Config: &tls.Config{InsecureSkipVerify: true,
				Certificates: certificates}} //nolint:gosec // it is the attacker
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c, err := d.DialContext(ctx, "tcp", port)
		cancel()
		if err != nil {
			continue // the handshake was refused
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, noise(256))
		if n, err := io.Copy(io.Discard, c); n != 0 {
			t.Errorf("with %s, %s returns %d bytes: %v", name, port, n, err)
		}
		_ = c.Close()
	}
}

// forged returns a self-signed certificate with the name of the first node.
func forged(t *testing.T) tls.Certificate {
	key := sure(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "quorate:node:n1"},
		DNSNames:  []string{"n1"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der := sure(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// datagrams sends packets of many sizes and with every message type to the gossip port.
func datagrams(t *testing.T, port string) {
	c := sure(net.Dial("udp", port))(t)
	defer func() { _ = c.Close() }()
	text := noise(60_000)
	for i := range 3000 {
		_, _ = io.WriteString(c, text[i:i+i%1400])
	}
	for kind := range 256 { // every message type, known or unknown
		_, _ = io.WriteString(c, string([]byte{byte(kind)})+text[:200])
	}
}

// attackMetrics sends requests to the metrics port that no scraper sends.
func attackMetrics(t *testing.T, s *siege) {
	v := s.nodes[0]
	for name, text := range strangers() {
		if name == "HTTP" || name == "nothing" {
			continue
		}
		for _, status := range answers(raw(t, v.metrics, text)) {
			if status < 400 {
				t.Errorf("%s is answered with %d", name, status)
			}
		}
	}
	for _, path := range []string{"/debug/pprof/", "/v1.0/state/statestore/x", "/v1.0/secrets/vault/password",
		"/status", "/..%2f..%2fetc/passwd"} {
		resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Get(
			"http://" + v.metrics + path)
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s is answered with %d", path, resp.StatusCode)
		}
	}
}

// attackMembership starts real nodes that try to join with another token, or with none.
func attackMembership(t *testing.T, s *siege) {
	s.quorate(t, "token", "create", "--file", filepath.Join(s.dir, "other-token"))
	for id, flags := range map[string][]string{
		"x1": {"--cluster-token-file", filepath.Join(s.dir, "other-token")},
		"x2": nil,
		"x3": {"--role", "sidecar"},
	} {
		x := s.victim(t, id)
		s.start(t, x, flags...)
		s.eventually(t, id+" says that it is not let in", 2*time.Minute,
			func() bool { return strings.Contains(x.log.String(), "no seed can be joined") })
		if got := x.status("GET", "/v1.0/healthz"); got == http.StatusNoContent {
			t.Errorf("%s became ready", id)
		}
		x.Kill()
	}
	for _, v := range s.nodes {
		if got := s.members(t, v); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"n1", "n2", "n3"}) {
			t.Errorf("%s sees %v", v.ID, got)
		}
	}
}

// attackHandshakes keeps 400 silent connections on the gossip port and 400 on the peer port of every node. It replaces
// each connection that is closed. A legitimate node must still be able to join.
func attackHandshakes(t *testing.T, s *siege) {
	const attackers, pause = 800, 250 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for i := range attackers {
		for _, v := range s.nodes {
			port := []string{v.gossip, v.peer}[i%2]
			wg.Go(func() {
				for ctx.Err() == nil {
					if c, err := d.DialContext(ctx, "tcp", port); err == nil {
						closed := context.AfterFunc(ctx, func() { _ = c.Close() })
						_, _ = c.Read(make([]byte, 1)) // blocks until the connection is closed
						closed()
						_ = c.Close()
					}
					select {
					case <-time.After(pause):
					case <-ctx.Done():
					}
				}
			})
		}
	}
	for _, v := range s.nodes {
		s.eventually(t, v.ID+" closes surplus connections", time.Minute, func() bool {
			return v.sum(t, `quorate_gossip_refused_total{reason="busy"}`) > 0 &&
				v.sum(t, `quorate_peer_refused_total{direction="inbound",reason="busy"}`) > 0
		})
	}
	x := s.victim(t, "x4")
	began := time.Now()
	s.start(t, x, "--role", "sidecar", "--app-id", "x4", "--cluster-token-file", filepath.Join(s.dir, "token"))
	s.eventually(t, x.ID+" joins", time.Minute,
		func() bool { return x.status("GET", "/v1.0/healthz") == http.StatusNoContent })
	t.Logf("%s was ready after %s", x.ID, time.Since(began).Round(time.Millisecond))
	s.serves(t, "while-handshakes-wait")
	x.Signal(syscall.SIGTERM)
	for _, v := range s.nodes {
		s.eventually(t, v.ID+" hears that it left", time.Minute, func() bool { return len(s.members(t, v)) == 3 })
	}
}

// attackIdle opens idle and slow connections on every port at once, and keeps them open while the cluster works.
func attackIdle(t *testing.T, s *siege) {
	v := s.nodes[0]
	want := 2000
	if thorough() {
		want = 10_000
	}
	count := min(want, room(t))
	t.Logf("%d idle connections to the API (10000 with QUORATE_ATTACKS=all, as far as the limit of open files goes)",
		count)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	connect := func(port string, n int, text string) {
		for range n {
			c, err := net.DialTimeout("tcp", port, time.Minute)
			if err != nil {
				t.Errorf("%s does not accept: %v", port, err)
				return
			}
			_, _ = io.WriteString(c, text)
			open = append(open, c)
		}
	}
	const begun = "GET /v1.0/state/statestore/x HTTP/1.1\r\nHost: localhost\r\ndapr-api-token: " + attackToken + "\r\n"
	const kept = begun + "\r\n"
	connect(v.api, count/2, "")       // send nothing
	connect(v.api, count/4, kept)     // send one request and stay open
	connect(v.api, count/4, begun)    // never finish the headers
	connect(v.metrics, count/10, "")  // more than the limit
	connect(v.peer, count/10, "\x16") // stop in the first byte of a handshake
	connect(v.gossip, count/10, "\x16")
	bodies := len(open)
	connect(v.api, 50, "POST /v1.0/state/statestore HTTP/1.1\r\nHost: localhost\r\n"+
		"dapr-api-token: "+attackToken+"\r\nContent-Length: 100\r\n\r\n[")
	s.serves(t, "while-idle")
	for _, n := range s.nodes {
		if got := len(s.members(t, n)); got != 3 {
			t.Errorf("%s sees %d members", n.ID, got)
		}
	}
	t.Logf("meanwhile: %+v", v.usage(t))
	for _, c := range open[bodies:] { // the response comes after 3 s, the timeout of a request
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		text, err := io.ReadAll(c)
		if got := answers(string(text)); err != nil || !slices.Equal(got, []int{http.StatusBadRequest}) {
			t.Fatalf("an unfinished body returns %v, %v", got, err)
		}
	}
	if thorough() {
		unread(t, s, v)
	}
}

// unread requests large responses on many connections and does not read them. The node must close these connections.
func unread(t *testing.T, s *siege, v *victim) {
	big := `[{"key":"large","value":"` + strings.Repeat("x", 3<<20) + `"}]`
	if resp, text, err := v.ask("POST", "/v1.0/state/statestore", big, "dapr-api-token", attackToken); err != nil ||
		resp.StatusCode != http.StatusNoContent {
		t.Fatalf("%v %v %s", err, resp, text)
	}
	const clients = 100
	for range clients {
		c := sure(net.Dial("tcp", v.api))(t)
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		defer func() { _ = c.Close() }()
		for range 8 { // together larger than the buffers of the connection
			_, _ = io.WriteString(c, "GET /v1.0/state/statestore/large HTTP/1.1\r\nHost: localhost\r\n"+
				"dapr-api-token: "+attackToken+"\r\n\r\n")
		}
	}
	in := func() float64 { return v.sum(t, `quorate_http_requests_in_flight{app="app1"}`) }
	s.eventually(t, "the answers pile up", 2*time.Minute, func() bool { return in() >= clients/2 })
	s.eventually(t, "clients that do not read are closed", 3*time.Minute, func() bool { return in() == 0 })
}

// room returns how many more connections the test may open. It first raises its limit of open files to the maximum.
// The nodes have the same limit.
func room(t *testing.T) int {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Logf("the limit of open files stays: %v", err)
	}
	return int(min(l.Max, 1<<20)) * 2 / 3
}
