package node_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/quorate/quorate/node"
)

// Absolute figures of a shared machine mean little. So each benchmark runs its subject and a baseline alternately, and
// reports the ratio: 1 means as fast as the baseline.

// rawClient is a minimal HTTP/1.1 client, so that a benchmark measures the server and not the client.
type rawClient struct {
	conn net.Conn
	r    *bufio.Reader
}

func dial(b *testing.B, addr string) *rawClient {
	b.Helper()
	c, err := net.Dial("tcp", addr) //nolint:noctx // a loopback listener of this benchmark
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return &rawClient{conn: c, r: bufio.NewReaderSize(c, 8<<10)}
}

// do sends a request and reads its answer, which must have status.
func (c *rawClient) do(request []byte, status string) error {
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line[9:], []byte(status)) {
		return fmt.Errorf("answered %q", line)
	}
	length := 0
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
		}
	}
	_, err = c.r.Discard(length)
	return err
}

// run makes n requests with several clients and returns how long they took.
func run(b *testing.B, clients []*rawClient, n int, status string, request func(client, i int) []byte) time.Duration {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for id, c := range clients {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := c.do(request(id, int(i)), status); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

func dialAll(b *testing.B, addr string, n int) []*rawClient {
	b.Helper()
	out := make([]*rawClient, n)
	for i := range out {
		out[i] = dial(b, addr)
	}
	return out
}

const rounds = 8 // how often subject and floor run alternately

// fineRounds is the number of turns of each subject for short requests. Many short turns average out changes in the
// speed of the machine.
const fineRounds = 64

// against runs subject and floor alternately and reports their ratio.
func against(b *testing.B, turns int, subject, floor func(n int) time.Duration) {
	b.Helper()
	subject(min(b.N, 200)) // warm
	floor(min(b.N, 200))
	var mine, theirs time.Duration
	b.ResetTimer()
	n := b.N/turns + 1
	for range turns {
		mine += subject(n)
		theirs += floor(n)
	}
	b.StopTimer()
	total := float64(n * turns)
	b.ReportMetric(total/mine.Seconds(), "ops/s")
	b.ReportMetric(total/theirs.Seconds(), "floor-ops/s")
	b.ReportMetric(theirs.Seconds()/mine.Seconds(), "x-floor")
}

// spending wraps a subject. It adds the processor time that the process, including the clients, uses while the
// subject runs to sum.
func spending(b *testing.B, sum *time.Duration, subject func(n int) time.Duration) func(n int) time.Duration {
	b.Helper()
	return func(n int) time.Duration {
		before := processorTime(b)
		d := subject(n)
		*sum += processorTime(b) - before
		return d
	}
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func getRequest(path string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
}

func saveRequest(key int, value string, consistency string) []byte {
	body := `[{"key":"k` + strconv.Itoa(key) + `","value":"` + value + `","options":{"consistency":"` + consistency +
		`"}}]`
	return []byte("POST /v1.0/state/statestore HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// bareChi starts a server that answers with a constant, and returns its address.
func bareChi(b *testing.B, value string) string {
	b.Helper()
	r := chi.NewRouter()
	body := []byte(value)
	length := []string{strconv.Itoa(len(body))}
	r.Get("/v1.0/state/{store}/*", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Content-Type"], h["Content-Length"] = []string{"application/json"}, length
		_, _ = w.Write(body)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a loopback listener of this benchmark
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

func BenchmarkGet(b *testing.B) {
	const keys = 1000
	for _, size := range []int{256, 4096} {
		value := strings.Repeat("v", size)
		n := open(b, config(b))
		addr := n.Addresses().API[0]
		one := dialAll(b, addr, 1)
		run(b, one, keys, "204", func(_, i int) []byte { return saveRequest(i-1, value, "strong") })
		floor := bareChi(b, `"`+value+`"`)
		for _, level := range []string{"eventual", "strong"} {
			reqs := make([][]byte, keys)
			for i := range reqs {
				reqs[i] = getRequest("/v1.0/state/statestore/k" + strconv.Itoa(i) + "?consistency=" + level)
			}
			for _, clients := range []int{1, 64, 512} {
				b.Run(fmt.Sprintf("%s/%dB/clients=%d", level, size, clients), func(b *testing.B) {
					b.ReportAllocs()
					mine, theirs := dialAll(b, addr, clients), dialAll(b, floor, clients)
					request := func(_, i int) []byte { return reqs[i%keys] }
					turns := rounds
					if b.N > fineRounds*clients {
						turns = fineRounds
					}
					var here, there time.Duration
					against(b, turns,
						spending(b, &here, func(n int) time.Duration { return run(b, mine, n, "200", request) }),
						spending(b, &there, func(n int) time.Duration { return run(b, theirs, n, "200", request) }))
					b.ReportMetric(there.Seconds()/here.Seconds(), "x-floor-cpu")
				})
			}
		}
	}
}

// BenchmarkSave compares saves with a plain file. It appends as many bytes to the file, with as many fsyncs, as the
// saves write to the log. That is their minimum cost.
func BenchmarkSave(b *testing.B) {
	value := strings.Repeat("v", 256)
	for _, engine := range []node.LogStore{node.LogStoreBolt, node.LogStoreWAL} {
		for _, level := range []string{"strong", "eventual"} {
			for _, clients := range []int{1, 64, 512} {
				b.Run(fmt.Sprintf("%s/%s/clients=%d", engine, level, clients), func(b *testing.B) {
					b.ReportAllocs()
					c := config(b)
					c.Data.LogStore = engine
					n := open(b, c)
					mine := dialAll(b, n.Addresses().API[0], clients)
					file, err := os.Create(filepath.Join(b.TempDir(), "floor"))
					if err != nil {
						b.Fatal(err)
					}
					defer file.Close()
					var appends, size float64
					var latency []time.Duration
					against(b, rounds,
						func(k int) time.Duration {
							a0, s0 := logCounters(b, n)
							d := run(b, mine, k, "204", func(_, i int) []byte { return saveRequest(i, value, level) })
							a1, s1 := logCounters(b, n)
							appends, size = a1-a0, s1-s0
							latency = append(latency, d*time.Duration(clients)/time.Duration(k))
							return d
						},
						func(int) time.Duration { return rawAppends(b, file, int(appends), int(size)) })
					b.ReportMetric(float64(latency[len(latency)-1].Microseconds()), "µs/save")
					b.ReportMetric(float64(b.N/rounds+1)/appends, "saves/fsync")
				})
			}
		}
	}
}

// logCounters returns the number of appends to the logs of all groups, and the appended bytes.
func logCounters(b *testing.B, n *node.Node) (appends, size float64) {
	b.Helper()
	resp, err := http.Get("http://" + n.Addresses().Metrics + "/metrics") //nolint:noctx // a loopback listener
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, _ := strconv.ParseFloat(value, 64)
		switch family, _, _ := strings.Cut(name, "{"); family {
		case "quorate_raft_log_append_seconds_count":
			appends += v
		case "quorate_raft_log_append_bytes_total":
			size += v
		}
	}
	return appends, size
}

// rawAppends appends size bytes in count writes to a file, with an fsync after each.
func rawAppends(b *testing.B, f *os.File, count, size int) time.Duration {
	b.Helper()
	if count == 0 {
		return time.Nanosecond
	}
	chunk := make([]byte, size/count+1)
	start := time.Now()
	for range count {
		if _, err := f.Write(chunk); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}
