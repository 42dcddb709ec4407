package peer_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/quorate/quorate/internal/peer"
)

// BenchmarkRPC compares the RPC of this package with gRPC over the same mutual TLS connections (ADR 24). cpu-us/op
// is the processor time of both ends together.
//
// The sizes are those of a forwarded save (400 bytes and an answer of 40), of a read-index request (16 bytes each
// way), and of a streamed body of 1 MiB.
func BenchmarkRPC(b *testing.B) {
	for _, c := range []struct {
		name            string
		request, answer int
	}{{"save", 400, 40}, {"read-index", 16, 16}} {
		for _, callers := range []int{1, 64} {
			for _, way := range []struct {
				name string
				call func(*testing.B, int) func([]byte) ([]byte, error)
			}{{"frames", frameCalls}, {"grpc", grpcCalls}} {
				b.Run(fmt.Sprintf("%s/callers=%d/%s", c.name, callers, way.name), func(b *testing.B) {
					call, request := way.call(b, c.answer), make([]byte, c.request)
					measure(b, callers, func(int) error {
						out, err := call(request)
						if err == nil && len(out) != c.answer {
							err = fmt.Errorf("an answer of %d bytes", len(out))
						}
						return err
					})
				})
			}
		}
	}
	for _, way := range []struct {
		name string
		open func(*testing.B) func(io.Reader) (io.ReadCloser, error)
	}{{"http1-tunnel", httpStreams}, {"grpc", grpcStreams}} {
		b.Run("streamed-1MiB/"+way.name, func(b *testing.B) {
			stream, body := way.open(b), make([]byte, 1<<20)
			b.SetBytes(int64(len(body)))
			measure(b, 8, func(int) error {
				out, err := stream(bytes.NewReader(body))
				if err != nil {
					return err
				}
				defer out.Close()
				if n, err := io.Copy(io.Discard, out); err != nil || n != int64(len(body)) {
					return fmt.Errorf("%d bytes came back: %w", n, err)
				}
				return nil
			})
		})
	}
}

// measure runs b.N calls, with the given number of callers at a time. It reports the processor time of each call.
func measure(b *testing.B, callers int, call func(int) error) {
	b.Helper()
	if err := call(0); err != nil {
		b.Fatal(err)
	}
	before := processorTime(b)
	b.ReportAllocs()
	b.ResetTimer()
	spread(b, callers, b.N, call)
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func securedPair(b *testing.B, methods ...peer.Method) (from, to *node) {
	b.Helper()
	n, a := newNetwork(false), newAuthority(b)
	to = start(b, n, "b", methods, secured(b, a, "b"))
	from = start(b, n, "a", nil, secured(b, a, "a"))
	return from, to
}

func frameCalls(b *testing.B, answer int) func([]byte) ([]byte, error) {
	reply := make([]byte, answer)
	from, _ := securedPair(b, peer.Method{Name: "m", Handle: func(context.Context, peer.Request) ([]byte, error) {
		return reply, nil
	}})
	return func(request []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return from.Client().Call(ctx, "b", "m", request)
	}
}

// bytesCodec passes messages through without encoding, which is the minimum cost of gRPC.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}
func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
func (bytesCodec) Name() string { return "bytes" }

// grpcPair serves gRPC on the tunnels of one node and connects another to it.
func grpcPair(b *testing.B, desc *grpc.ServiceDesc) *grpc.ClientConn {
	b.Helper()
	from, to := securedPair(b)
	server := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}))
	server.RegisterService(desc, nil)
	go func() { _ = server.Serve(to.Tunnels()) }()
	b.Cleanup(server.Stop)
	// the tunnel has TLS
	conn, err := grpc.NewClient("passthrough:///b", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return from.Tunnel(ctx, to) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{})))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

func grpcCalls(b *testing.B, answer int) func([]byte) ([]byte, error) {
	reply := make([]byte, answer)
	conn := grpcPair(b, &grpc.ServiceDesc{ServiceName: "s", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "m",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in []byte
			return &reply, decode(&in)
		},
	}}})
	return func(request []byte) (out []byte, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = conn.Invoke(ctx, "/s/m", &request, &out)
		return out, err
	}
}

const streamChunk = 32 << 10

func grpcStreams(b *testing.B) func(io.Reader) (io.ReadCloser, error) {
	desc := grpc.StreamDesc{StreamName: "m", ClientStreams: true, ServerStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				var chunk []byte
				if err := s.RecvMsg(&chunk); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
				if err := s.SendMsg(&chunk); err != nil {
					return err
				}
			}
		}}
	conn := grpcPair(b, &grpc.ServiceDesc{ServiceName: "s", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{desc}})
	return func(body io.Reader) (io.ReadCloser, error) {
		s, err := conn.NewStream(context.Background(), &desc, "/s/m")
		if err != nil {
			return nil, err
		}
		r, w := io.Pipe()
		go func() {
			for {
				chunk := make([]byte, streamChunk)
				n, err := io.ReadFull(body, chunk)
				if chunk = chunk[:n]; n > 0 && s.SendMsg(&chunk) != nil {
					return
				}
				if err != nil {
					_ = s.CloseSend()
					return
				}
			}
		}()
		go func() {
			for {
				var chunk []byte
				err := s.RecvMsg(&chunk)
				if err != nil {
					_ = w.CloseWithError(err)
					return
				}
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}()
		return r, nil
	}
}

func httpStreams(b *testing.B) func(io.Reader) (io.ReadCloser, error) {
	from, to := securedPair(b)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, bufio.NewReaderSize(r.Body, streamChunk))
	})}
	go func() { _ = server.Serve(to.Tunnels()) }()
	b.Cleanup(func() { _ = server.Close() })
	client := &http.Client{Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return from.Tunnel(ctx, "b") },
		MaxIdleConnsPerHost: 64,
	}}
	b.Cleanup(client.CloseIdleConnections)
	return func(body io.Reader) (io.ReadCloser, error) {
		r, err := client.Post("http://b/", "application/octet-stream", body)
		if err != nil {
			return nil, err
		}
		return r.Body, nil
	}
}
