package appchannel_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

// budget is a Memory that counts the bytes in use. If it is full, it refuses everything.
type budget struct {
	full       bool
	used, most atomic.Int64
}

func (b *budget) Acquire(_ context.Context, bytes int64) error {
	if b.full {
		return fault.New(fault.Overloaded, "test", "no memory")
	}
	b.most.Store(max(b.most.Load(), b.used.Add(bytes)))
	return nil
}

func (b *budget) Release(bytes int64) { b.used.Add(-bytes) }

// fields returns the metadata with which the application answers a call of path: a name, and its values.
func fields(path string) (name string, values []string) {
	switch path {
	case "few":
		return "a", make([]string, 900)
	case "many":
		return "a", make([]string, 1100)
	case "long":
		return "a", []string{strings.Repeat("x", 80<<10)}
	}
	return "a", nil
}

// echoing is a gRPC application whose answer is the metadata of the call with the key X-Name.
type echoing struct {
	runtimev1.UnimplementedAppCallbackServer
}

func (echoing) OnInvoke(ctx context.Context, _ *commonv1.InvokeRequest) (*commonv1.InvokeResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return &commonv1.InvokeResponse{Data: &anypb.Any{Value: []byte(strings.Join(md.Get("X-Name"), ","))}}, nil
}

func TestRoundTrip_GRPCLeavesOutNamesThatCannotBeKeys(t *testing.T) {
	h := http.Header{"X-Name": {"a", "caf\u00e9"}}
	for _, mark := range "!#$%&'*+^`|~" {
		h["X"+string(mark)+"a"] = []string{"b"}
	}
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/x"}, Header: h, Body: http.NoBody}
	answer, err := grpcApp(t, echoing{}).RoundTrip(r.WithContext(within(t)))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK || string(body) != "a,caf?" {
		t.Errorf("%d, %q", answer.StatusCode, body)
	}
}

// talkative is a gRPC application that answers with metadata.
type talkative struct {
	runtimev1.UnimplementedAppCallbackServer
	trailer bool
}

func (a talkative) OnInvoke(ctx context.Context, in *commonv1.InvokeRequest) (*commonv1.InvokeResponse, error) {
	name, values := fields(in.GetMethod())
	set := grpc.SetHeader
	if a.trailer {
		set = grpc.SetTrailer
	}
	return &commonv1.InvokeResponse{}, set(ctx, metadata.MD{name: values})
}

func TestAnswers_HeadersAreLimitedWithEveryProtocol(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, values := fields(strings.TrimPrefix(r.URL.Path, "/"))
		w.Header()[http.CanonicalHeaderKey(name)] = values
	})
	both := httptest.NewUnstartedServer(handler)
	both.Config.Protocols = new(http.Protocols)
	both.Config.Protocols.SetHTTP1(true)
	both.Config.Protocols.SetUnencryptedHTTP2(true)
	both.Start()
	t.Cleanup(both.Close)
	secured := httptest.NewTLSServer(handler)
	t.Cleanup(secured.Close)
	grpcApp := func(trailer bool) net.Addr {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		runtimev1.RegisterAppCallbackServer(s, talkative{trailer: trailer})
		go func() { _ = s.Serve(l) }() // ends with Stop
		t.Cleanup(s.Stop)
		return l.Addr()
	}
	for name, c := range map[string]struct {
		protocol appchannel.Protocol
		at       net.Addr
	}{
		"http":          {appchannel.HTTP, both.Listener.Addr()},
		"h2c":           {appchannel.H2C, both.Listener.Addr()},
		"https":         {appchannel.HTTPS, secured.Listener.Addr()},
		"grpc":          {appchannel.GRPC, grpcApp(false)},
		"grpc trailers": {appchannel.GRPC, grpcApp(true)},
	} {
		t.Run(name, func(t *testing.T) {
			b, none := &budget{}, &budget{full: true}
			limited, _ := channel(t, c.at, func(o *appchannel.Options) { o.Protocol, o.Memory = c.protocol, b })
			wide, _ := channel(t, c.at, func(o *appchannel.Options) { o.Protocol, o.MaxHead = c.protocol, 200<<10 })
			without, _ := channel(t, c.at, func(o *appchannel.Options) { o.Protocol, o.Memory = c.protocol, none })
			for _, one := range []struct {
				c    *appchannel.Channel
				path string
				code fault.Code // "" = an answer with status 200
			}{
				{limited, "none", ""}, {limited, "few", ""}, {limited, "many", fault.Corrupt},
				{wide, "long", ""}, {wide, "many", fault.Corrupt},
				{without, "none", ""}, {without, "few", fault.Indeterminate},
			} {
				answer, err := call(one.c, "/"+one.path)
				if err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
				if fault.CodeOf(err) != one.code || err == nil && answer.StatusCode != http.StatusOK {
					t.Errorf("%s: %v, want %q", one.path, err, one.code)
				}
			}
			answer, err := call(limited, "/long")
			if err == nil { // a gRPC status, which no application sent
				_ = answer.Body.Close()
			}
			if err == nil && answer.StatusCode == http.StatusOK {
				t.Error("headers with 80 KiB are accepted")
			}
			if used, most := b.used.Load(), b.most.Load(); used != 0 || most < 100<<10 {
				t.Errorf("%d bytes are used after the answers, at most %d were", used, most)
			}
		})
	}
}
