package http_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/component/state"
)

// connections is the number of clients in the benchmarks over the network.
const connections = 64

// valueSize is the size of the values in the benchmarks.
const valueSize = 256

// instant is a store that answers every request from memory. Its answers have the proof of an eventual read.
type instant struct{ item state.Item }

func newInstant() instant {
	return instant{state.Item{
		Value: []byte(`"` + strings.Repeat("x", valueSize-2) + `"`), ETag: "123456",
		Proof: state.Proof{Level: state.SessionLevel, Age: 12 * time.Millisecond,
			Session: "q1.AAECAwQFBgcICQoLDA0ODw.AQIDBA"},
	}}
}

func (s instant) Get(context.Context, state.GetRequest) (state.Item, error) { return s.item, nil }
func (s instant) Set(_ context.Context, r state.SetRequest) (state.Written, error) {
	return state.Written{ETags: []string{"123457"}, Proof: s.item.Proof}, nil
}
func (s instant) Delete(context.Context, state.DeleteRequest) (state.Written, error) {
	return state.Written{Proof: s.item.Proof}, nil
}
func (s instant) Close() error { return nil }

func instantFace(b *testing.B) http.Handler {
	b.Helper()
	f := newFixture(b)
	f.Stores.List = []*state.Instance{apitest.Instance("orders", newInstant())}
	f.config.State = api.NewState(f.config.App, f.Stores, api.Limits{})
	face, err := apihttp.New(f.config)
	if err != nil {
		b.Fatal(err)
	}
	return face
}

// bareRouter returns the baseline of the benchmarks: the same router and path, with a handler that reads the body and
// answers with as many bytes.
func bareRouter() http.Handler {
	value := newInstant().item.Value
	mux := chi.NewMux()
	mux.Get("/v1.0/state/{store}/*", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(value)
	})
	mux.Post("/v1.0/state/{store}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

func getMessage() string {
	return "GET /v1.0/state/orders/customer-1234 HTTP/1.1\r\nHost: 127.0.0.1:3500\r\nUser-Agent: bench\r\n\r\n"
}

func saveMessage() string {
	body := `[{"key":"customer-1234","value":` + string(newInstant().item.Value) + `}]`
	return "POST /v1.0/state/orders HTTP/1.1\r\nHost: 127.0.0.1:3500\r\nUser-Agent: bench\r\n" +
		"Content-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// BenchmarkHandler compares the face with the bare router, without a network.
func BenchmarkHandler(b *testing.B) {
	for name, message := range map[string]string{"get": getMessage(), "save": saveMessage()} {
		for kind, handler := range map[string]http.Handler{"bare": bareRouter(), "face": instantFace(b)} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				w := &nullWriter{header: http.Header{}}
				in := newReplayed(b, message)
				b.ReportAllocs()
				for b.Loop() {
					clear(w.header)
					handler.ServeHTTP(w, in.request())
				}
			})
		}
	}
}

// replayed returns the same request any number of times.
type replayed struct {
	parsed *http.Request
	body   []byte
	reader bytes.Reader
}

func newReplayed(b *testing.B, message string) *replayed {
	b.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(message)))
	if err != nil {
		b.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		b.Fatal(err)
	}
	return &replayed{parsed: r, body: body}
}

func (r *replayed) request() *http.Request {
	r.reader.Reset(r.body)
	r.parsed.Body = io.NopCloser(&r.reader)
	return r.parsed
}

type nullWriter struct{ header http.Header }

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w *nullWriter) WriteHeader(int)             {}

// SetReadDeadline does nothing. The face calls it on every connection.
func (w *nullWriter) SetReadDeadline(time.Time) error { return nil }

// BenchmarkOverLoopback measures the throughput over loopback with 64 connections, as a ratio to the bare router. The
// benchmark alternates between both servers. ns/op, B/op and allocs/op are sums over both servers and their clients.
func BenchmarkOverLoopback(b *testing.B) {
	for name, message := range map[string]string{"get": getMessage(), "save": saveMessage()} {
		b.Run(name, func(b *testing.B) {
			bare, face := newLoad(b, bareRouter(), message), newLoad(b, instantFace(b), message)
			bare.run(b, 2000)
			face.run(b, 2000)
			const turns = 10
			b.ResetTimer()
			var spent [2]time.Duration
			var allocs [2]uint64
			n := max(b.N/turns, connections)
			for range turns {
				for i, load := range []*load{bare, face} {
					took, allocated := load.run(b, n)
					spent[i] += took
					allocs[i] += allocated
				}
			}
			total := float64(n * turns)
			b.ReportMetric(spent[0].Seconds()/spent[1].Seconds(), "ratio")
			b.ReportMetric(total/spent[1].Seconds(), "req/s")
			b.ReportMetric(float64((spent[1]-spent[0]).Nanoseconds())/total, "ns-over-bare")
			b.ReportMetric(float64(allocs[1])/total, "allocs/req")
			b.ReportMetric(float64(allocs[0])/total, "bare-allocs/req")
		})
	}
}

// load is a server with clients on persistent connections.
type load struct {
	message []byte
	clients []client
}

type client struct {
	conn net.Conn
	in   *bufio.Reader
}

func newLoad(b *testing.B, h http.Handler, message string) *load {
	b.Helper()
	base := serve(b, h)
	l := &load{message: []byte(message), clients: make([]client, connections)}
	for i := range l.clients {
		conn := servertest.Dial(b, base)
		if err := conn.SetDeadline(time.Time{}); err != nil {
			b.Fatal(err)
		}
		l.clients[i] = client{conn: conn, in: bufio.NewReaderSize(conn, 4096)}
	}
	return l
}

// run sends n requests. It returns how long they took and the number of allocations.
func (l *load) run(b *testing.B, n int) (time.Duration, uint64) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	var running sync.WaitGroup
	for i := range l.clients {
		running.Go(func() {
			for range n / connections {
				if err := l.clients[i].exchange(l.message); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return took, after.Mallocs - before.Mallocs
}

// exchange sends a request and reads the answer. It parses only what it needs to find the end of the answer.
func (c *client) exchange(message []byte) error {
	if _, err := c.conn.Write(message); err != nil {
		return err
	}
	length := 0
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		switch {
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 20")):
			return fmt.Errorf("answer %q", line)
		case len(line) == 2:
			_, err := c.in.Discard(length)
			return err
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			length, _ = strconv.Atoi(string(line[16 : len(line)-2]))
		}
	}
}
