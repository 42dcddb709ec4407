package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// resident returns the resident memory of a process in bytes.
func (v *victim) resident(t *testing.T) int64 {
	t.Helper()
	for line := range strings.Lines(string(sure(os.ReadFile(fmt.Sprintf("/proc/%d/status", v.Pid())))(t))) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return sure(strconv.ParseInt(strings.Fields(text)[0], 10, 64))(t) << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// peak calls attack, and returns the largest resident memory in bytes during the attack.
func (v *victim) peak(t *testing.T, attack func()) (most int64) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		attack()
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		most = max(most, v.resident(t))
		select {
		case <-done:
			return most
		case <-tick.C:
		}
	}
}

// p99 returns the 99th percentile of took. It sorts took.
func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[(len(took)-1)*99/100]
}

// TestMemoryAttacks_HTTP sends bodies that grow when they are decoded, and reads large answers slowly.
func TestMemoryAttacks_HTTP(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a real process")
	}
	s := newCamp(t)
	v := s.nodes[0]
	s.joins = v.gossip
	s.start(t, v, "--bootstrap-expect", "1", "--cluster-token-file", s.dir+"/token")
	s.eventually(t, "the node becomes ready", time.Minute,
		func() bool { return v.status("GET", "/v1.0/healthz") == http.StatusNoContent })
	const n = 1_300_000
	for name, c := range map[string]struct{ path, body string }{
		"save":        {"/v1.0/state/statestore", "[" + strings.Repeat("{},", n) + "{}]"},
		"bulk":        {"/v1.0/state/statestore/bulk", `{"keys":[` + strings.Repeat(`"",`, n) + `""]}`},
		"transaction": {"/v1.0/state/statestore/transaction", `{"operations":[` + strings.Repeat("{},", n) + "{}]}"},
		"metadata": {"/v1.0/state/statestore",
			`[{"key":"a","value":1,"metadata":{` + strings.Repeat(`"a":"",`, n/2) + `"a":""}}]`},
	} {
		t.Run(name, func(t *testing.T) { attackDecoding(t, s, v, c.path, c.body) })
	}
	t.Run("slow readers", func(t *testing.T) { attackSlowReaders(t, s, v) })
}

// attackDecoding sends 200 bodies concurrently while another client writes.
func attackDecoding(t *testing.T, s *siege, v *victim, path, body string) {
	before := v.resident(t)
	var stop atomic.Bool
	var took []time.Duration
	var writer, hostile sync.WaitGroup
	writer.Go(func() {
		for !stop.Load() {
			start := time.Now()
			resp, text, err := v.ask("POST", "/v1.0/state/statestore", `[{"key":"other","value":1}]`,
				"dapr-api-token", attackToken)
			if err != nil || resp.StatusCode != http.StatusNoContent {
				t.Errorf("another request fails: %v %s", err, text)
				return
			}
			took = append(took, time.Since(start))
		}
	})
	most := v.peak(t, func() {
		for range 200 {
			hostile.Go(func() {
				// A refusal may arrive before all of the body is sent. The connection is then closed.
				if resp, _, err := v.ask("POST", path, body, "dapr-api-token", attackToken); err == nil &&
					resp.StatusCode < 400 {
					t.Errorf("answered with %d", resp.StatusCode)
				}
			})
		}
		hostile.Wait()
	})
	stop.Store(true)
	writer.Wait()
	if grown := most - before; grown > 300<<20 {
		t.Errorf("resident memory grew by %d MiB", grown>>20)
	}
	if len(took) == 0 {
		t.Fatal("no other request was answered")
	}
	if slow := p99(took); slow > 10*time.Second { // a high limit, because the machine may be busy
		t.Errorf("other requests took %s", slow)
	}
	s.eventually(t, "memory is given back", 2*time.Minute, func() bool { return v.resident(t) < before+64<<20 })
	t.Logf("resident %d MiB, at most %d, afterwards %d; %d other requests, p99 %s",
		before>>20, most>>20, v.resident(t)>>20, len(took), p99(took))
}

// attackSlowReaders requests a large value on 300 connections, and does not read the answers at first. Another client
// must still get the value.
func attackSlowReaders(t *testing.T, s *siege, v *victim) {
	const size = 3_500_000
	if resp, text, err := v.ask("POST", "/v1.0/state/statestore",
		`[{"key":"large","value":"`+strings.Repeat("x", size)+`"}]`, "dapr-api-token", attackToken); err != nil ||
		resp.StatusCode != http.StatusNoContent {
		t.Fatal(err, text)
	}
	before := v.resident(t)
	var readers []net.Conn
	defer func() {
		for _, c := range readers {
			_ = c.Close()
		}
	}()
	// otherwise the kernel buffers most of the response
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF,
				4096)
		})
	}}
	most := v.peak(t, func() {
		for range 300 {
			c, err := small.DialContext(t.Context(), "tcp", v.api)
			if err != nil {
				t.Error(err)
				return
			}
			readers = append(readers, c)
			if _, err := io.WriteString(c, "GET /v1.0/state/statestore/large HTTP/1.1\r\nHost: localhost\r\n"+
				"dapr-api-token: "+attackToken+"\r\n\r\n"); err != nil {
				t.Error(err)
			}
		}
		for _, c := range readers {
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if line, err := bufio.NewReader(c).ReadString('\n'); err == nil && !strings.Contains(line, " 200 ") &&
				!strings.Contains(line, " 500 ") {
				t.Errorf("answered with %q", line)
			}
		}
		s.eventually(t, "another client gets the value", time.Minute, func() bool {
			resp, text, err := v.ask("GET", "/v1.0/state/statestore/large", "", "dapr-api-token", attackToken)
			return err == nil && resp.StatusCode == http.StatusOK && len(text) == size+2
		})
	})
	if grown := most - before; grown > 300<<20 {
		t.Errorf("resident memory grew by %d MiB", grown>>20)
	}
	if cut := v.sum(t, `quorate_request_memory_cut_total{budget="answers"`); cut == 0 {
		t.Error("no slow reader was cut")
	}
	t.Logf("resident %d MiB, at most %d", before>>20, most>>20)
}
