package main

//lint:file-ignore SA1019 http.Transport may open several connections; this test needs many calls on one

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// lone is a single node that serves gRPC.
type lone struct {
	*victim
	grpc string
}

func newLone(t *testing.T, flags ...string) lone {
	t.Helper()
	s := &siege{dir: t.TempDir()}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "QUORATE_") && !strings.HasPrefix(e, "DAPR_") {
			s.cleared = append(s.cleared, e)
		}
	}
	s.write(t, "api-token", attackToken)
	v := lone{victim: s.victim(t, "n1")}
	port := sure(freePort())(t)
	v.grpc = "127.0.0.1:" + port
	launch(t, v.Node, v.log, append([]string{"--app-id", "app1", "--grpc-port", port}, flags...)...)
	s.eventually(t, "the node becomes ready", time.Minute,
		func() bool { return v.status("GET", "/v1.0/healthz") == http.StatusNoContent })
	return v
}

// resident returns the resident memory of the process in MiB, and its peak since the peak was reset.
func (v lone) resident(t *testing.T) (now, peak int) {
	t.Helper()
	text := string(sure(os.ReadFile(fmt.Sprintf("/proc/%d/status", v.Pid())))(t))
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "VmRSS:"):
			now = sure(strconv.Atoi(f[1]))(t) >> 10
		case strings.HasPrefix(line, "VmHWM:"):
			peak = sure(strconv.Atoi(f[1]))(t) >> 10
		}
	}
	return now, peak
}

// rise runs an attack and returns by how many MiB the resident memory rose at its peak.
func (v lone) rise(t *testing.T, attack func()) int {
	t.Helper()
	// 5 resets the peak
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", v.Pid()), []byte("5"), 0o600); err != nil {
		t.Fatal(err)
	}
	before, _ := v.resident(t)
	attack()
	after, peak := v.resident(t)
	t.Logf("resident memory: %d MiB, at most %d MiB, then %d MiB", before, peak, after)
	return peak - before
}

// anonymous returns the anonymous resident memory of the process in MiB. Pages of mapped files, such as the log, do
// not count, because the kernel can free them when it needs memory.
func (v lone) anonymous(t *testing.T) int {
	t.Helper()
	text := string(sure(os.ReadFile(fmt.Sprintf("/proc/%d/status", v.Pid())))(t))
	_, after, found := strings.Cut(text, "RssAnon:")
	if !found {
		t.Fatal("no RssAnon")
	}
	return sure(strconv.Atoi(strings.Fields(after)[0]))(t) >> 10
}

// givesBack waits until the anonymous memory of the process is at most 64 MiB above before, which is in MiB.
func (v lone) givesBack(t *testing.T, before int) {
	t.Helper()
	start := time.Now()
	for now := v.anonymous(t); now > before+64; now = v.anonymous(t) {
		if time.Since(start) > time.Minute {
			resident, _ := v.resident(t)
			t.Errorf("a minute later the anonymous memory is %d MiB, before it was %d; resident %d", now, before,
				resident)
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	resident, _ := v.resident(t)
	t.Logf("it is back after %s: anonymous %d MiB, before %d; resident %d", time.Since(start).Round(time.Second),
		v.anonymous(t), before, resident)
}

func (v lone) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	c := sure(grpc.NewClient("passthrough:///"+v.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8<<20))))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// hostile returns a message of 4 MiB with as many empty elements of the second field as fit.
func hostile() *emptypb.Empty {
	m := &emptypb.Empty{}
	m.ProtoReflect().SetUnknown(append([]byte("\x0a\x0astatestore"), bytes.Repeat([]byte{0x12, 0}, 2<<20-16)...))
	return m
}

// withheld is the body of a call. It withholds the last byte of its message until release is closed.
type withheld struct {
	io.Reader
	release <-chan struct{}
}

func (w *withheld) Read(b []byte) (int, error) {
	if n, err := w.Reader.Read(b); err == nil {
		return n, nil
	}
	<-w.release
	return 0, io.ErrUnexpectedEOF
}

func (w *withheld) Close() error { return nil }

// unfinished makes calls on one connection that withhold the end of their messages of 4 MiB. It returns when the
// server has ended all calls.
func (v lone) unfinished(t *testing.T, calls int, token string) {
	t.Helper()
	release := make(chan struct{})
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, addr string,
		_ *tls.Config) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	defer tr.CloseIdleConnections()
	body := append(binary.BigEndian.AppendUint32([]byte{0}, 4<<20-16), make([]byte, 4<<20-17)...)
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+v.grpc+"/dapr.proto.runtime.v1.Dapr/SaveState",
				&withheld{bytes.NewReader(body), release})
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Content-Type", "application/grpc")
			r.Header.Set("Te", "trailers")
			r.Header.Set("Grpc-Timeout", "1H")
			r.Header.Set("Dapr-Api-Token", token)
			if resp, err := tr.RoundTrip(r); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
	all.Wait()
	close(release)
}

// unreadAnswers requests a large value on many connections and does not read the responses.
func (v lone) unreadAnswers(t *testing.T, connections int) {
	t.Helper()
	if err := save(t.Context(), runtimev1.NewDaprClient(v.dial(t)), "large", 3_500_000); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "dapr-api-token", attackToken),
		10*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range connections {
		conn := v.dial(t)
		all.Go(func() {
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
				"/dapr.proto.runtime.v1.Dapr/GetState")
			if err == nil {
				err = stream.SendMsg(&runtimev1.GetStateRequest{StoreName: "statestore", Key: "large"})
			}
			if err == nil {
				err = stream.CloseSend()
			}
			if err != nil && status.Code(err) != codes.Unavailable { // the server may close the connection
				t.Error(err)
			}
			<-ctx.Done()
		})
	}
	all.Wait()
}

// probe is the main function of a process that makes small calls one after the other until its input ends. Then it
// prints their number, median and 99th percentile. It is a separate process, so that the goroutines of an attack do
// not delay it.
func probe() {
	conn, err := grpc.NewClient("passthrough:///"+os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	var took []time.Duration
	for c := runtimev1.NewDaprClient(conn); err == nil; {
		select {
		case <-ended:
			slices.Sort(took)
			fmt.Println(len(took), took[len(took)/2], took[len(took)*99/100])
			return
		default:
		}
		start := time.Now()
		err = save(context.Background(), c, "small", 100)
		took = append(took, time.Since(start))
	}
	fmt.Println(err)
	os.Exit(1)
}

// latencies runs a probe until stop is called. stop returns the 99th percentile of the durations of the calls.
func (v lone) latencies(t *testing.T) (stop func() time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0], v.grpc) //nolint:gosec // it is this program
	cmd.Args[0] = "probe"                   // TestMain checks the name
	in := sure(cmd.StdinPipe())(t)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() time.Duration {
		_ = in.Close()
		err := cmd.Wait()
		f := strings.Fields(out.String())
		if err != nil || len(f) != 3 {
			t.Fatalf("a small call fails: %v %s", err, &out)
		}
		t.Logf("%s concurrent small calls: median %s, p99 %s", f[0], f[1], f[2])
		return sure(time.ParseDuration(f[2]))(t)
	}
}

func save(ctx context.Context, c runtimev1.DaprClient, key string, size int) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "dapr-api-token", attackToken)
	_, err := c.SaveState(ctx, &runtimev1.SaveStateRequest{StoreName: "statestore",
		States: []*commonv1.StateItem{{Key: key, Value: make([]byte, size),
			Metadata: map[string]string{"contentType": "application/octet-stream"}}}})
	return err
}

// TestMemoryAttacks_GRPC sends messages that would need gigabytes when decoded, with and without the token. It also
// withholds the last byte of messages.
func TestMemoryAttacks_GRPC(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	const saveState = "/dapr.proto.runtime.v1.Dapr/SaveState"
	storm := func(v lone, parallel int, method, token string, want ...codes.Code) func() {
		m, conns := hostile(), make([]*grpc.ClientConn, parallel)
		for i := range conns {
			conns[i] = v.dial(t)
		}
		return func() {
			for range 5 {
				var all sync.WaitGroup
				for _, conn := range conns {
					all.Go(func() {
						ctx, cancel := context.WithTimeout(
							metadata.AppendToOutgoingContext(t.Context(), "dapr-api-token", token), time.Hour)
						defer cancel()
						if err := conn.Invoke(ctx, method, m, &emptypb.Empty{}); !slices.Contains(want,
							status.Code(err)) {
							t.Error(err)
						}
					})
				}
				all.Wait()
			}
		}
	}
	for _, row := range []struct {
		name   string
		most   int // MiB
		attack func(v lone) func()
	}{
		{"8 messages of empty items, wrong token, long time-out", 64, func(v lone) func() {
			return storm(v, 8, saveState, "wrong", codes.Unauthenticated)
		}},
		{"8 messages of empty items for health, no token", 64, func(v lone) func() {
			return storm(v, 8, "/grpc.health.v1.Health/Check", "", codes.ResourceExhausted)
		}},
		{"500 unfinished messages on a connection, wrong token", 64, func(v lone) func() {
			return func() { v.unfinished(t, 500, "wrong") }
		}},
		{"500 unfinished messages on a connection, right token", 300, func(v lone) func() {
			return func() { v.unfinished(t, 500, attackToken) }
		}},
		{"200 messages of empty items, right token", 300, func(v lone) func() {
			return storm(v, 200, saveState, attackToken, codes.InvalidArgument, codes.Unavailable)
		}},
		{"200 transactions of empty operations, right token", 300, func(v lone) func() {
			return storm(v, 200, "/dapr.proto.runtime.v1.Dapr/ExecuteStateTransaction", attackToken,
				codes.InvalidArgument, codes.Unavailable)
		}},
		{"200 bulk reads of empty keys, right token", 300, func(v lone) func() {
			return storm(v, 200, "/dapr.proto.runtime.v1.Dapr/GetBulkState", attackToken, codes.InvalidArgument,
				codes.Unavailable)
		}},
		{"300 slow readers of 3.5 MB", 300, func(v lone) func() {
			return func() { v.unreadAnswers(t, 300) }
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := newLone(t)
			attack := row.attack(v)
			before := v.anonymous(t)
			p99 := v.latencies(t)
			rise := v.rise(t, attack)
			if rise > row.most {
				t.Errorf("resident memory rises by %d MiB, want at most %d", rise, row.most)
			}
			if took := p99(); took > 2500*time.Millisecond { // 10 times as long as on a machine without other work
				t.Errorf("the p99 of small calls is %s", took)
			}
			v.givesBack(t, before)
		})
	}
}
