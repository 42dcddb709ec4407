package appchannel_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	runtime "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/dapr/go-sdk/service/common"
	sdk "github.com/dapr/go-sdk/service/grpc"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a channel to the application at addr.
func open(t *testing.T, p appchannel.Protocol, addr string) *appchannel.Channel {
	t.Helper()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := appchannel.New(appchannel.Options{Protocol: p, Port: port, Token: "app-token", MaxMessage: 100,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// within returns a context that bounds a test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func httpApp(t *testing.T, h http.HandlerFunc) *appchannel.Channel {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return open(t, appchannel.HTTP, s.Listener.Addr().String())
}

func TestTakes_HTTPApplication(t *testing.T) {
	c := httpApp(t, func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil || r.Method != http.MethodOptions || r.Header.Get("Dapr-Api-Token") != "app-token" {
			code = http.StatusTeapot
		}
		w.WriteHeader(code)
	})
	for path, want := range map[string]bool{"200": true, "204": true, "405": true, "404": false, "500": false,
		"302": false} {
		if got, err := c.Takes(within(t), "queue", path); err != nil || got != want {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
}

func TestTake_HTTPApplication(t *testing.T) {
	c := httpApp(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/fail":
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.Method != http.MethodPost || r.URL.Path != "/on/queue" ||
			r.Header.Get("Content-Type") != "application/json" ||
			r.Header.Get("Topic") != "orders" ||
			slices.ContainsFunc(slices.Collect(maps.Keys(r.Header)),
				func(name string) bool { return strings.Contains(name, "_") || strings.Contains(name, "aller") }) ||
			r.Header.Get("Dapr-Api-Token") != "app-token" || r.ContentLength != 2:
			w.WriteHeader(http.StatusTeapot)
		default:
			w.WriteHeader(http.StatusAccepted)
			_, _ = w.Write(append([]byte("got "), body...))
		}
	})
	metadata := map[string]string{"topic": "orders", "content-type": "text/plain", "Content-Length": "77",
		"dapr-api-token": "stolen", "Transfer-Encoding": "chunked",
		"dapr-caller-app-id": "admin", "dapr_caller_app_id": "admin", "Dapr_Api_Token": "stolen",
		"quorate-caller": "admin"}
	got, err := c.Take(within(t), "queue", "on/queue", []byte("{}"), metadata)
	if err != nil || string(got) != "got {}" {
		t.Errorf("%q, %v", got, err)
	}
	_, err = c.Take(within(t), "queue", "fail", []byte("{}"), nil)
	if !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "POST /fail answered 503") {
		t.Errorf("%v", err)
	}
	_, err = c.Take(within(t), "queue", "on/queue", nil, map[string]string{"a b": "c"})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `"a b"`) {
		t.Errorf("%v", err)
	}
	if n := c.InFlight(); n != 0 {
		t.Errorf("%d calls under way", n)
	}
}

// counting is a context that does not end. It counts the calls of AfterFunc, and the calls of the functions that
// AfterFunc returns.
type counting struct {
	context.Context
	registered, ended atomic.Int32
}

// Done implements context.Context.
func (c *counting) Done() <-chan struct{} { return make(chan struct{}) }

// AfterFunc is called by package context.
func (c *counting) AfterFunc(func()) func() bool {
	c.registered.Add(1)
	return func() bool {
		c.ended.Add(1)
		return true
	}
}

func TestCalls_LeaveNothingAtTheirContext(t *testing.T) {
	c := httpApp(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") })
	for name, call := range map[string]func(ctx context.Context) error{
		"Take": func(ctx context.Context) error {
			_, err := c.Take(ctx, "b", "/b", []byte("{}"), nil)
			return err
		},
		"Notify": func(ctx context.Context) error { return c.Notify(ctx, "store", "key", []byte("{}")) },
	} {
		ctx := &counting{Context: context.Background()}
		if err := call(ctx); err != nil {
			t.Fatal(name, err)
		}
		if n, ended := ctx.registered.Load(), ctx.ended.Load(); n == 0 || ended != n {
			t.Errorf("%s: %d registered, %d ended", name, n, ended)
		}
	}
}

func TestTake_LongAnswer(t *testing.T) {
	c := httpApp(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 101)) })
	if got, err := c.Take(within(t), "queue", "queue", nil, nil); err != nil || got != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// longAnswers is a gRPC application that answers an event with as many bytes as its data says. It compresses the
// answer if the data begins with "+". It refuses an event that is longer than 1000 bytes.
type longAnswers struct {
	runtime.UnimplementedAppCallbackServer
}

func (longAnswers) OnBindingEvent(ctx context.Context, in *runtime.BindingEventRequest) (*runtime.BindingEventResponse,
	error) {
	if len(in.GetData()) > 1000 { // the error has the text of gRPC
		return nil, status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)",
			len(in.GetData()), 1000)
	}
	if in.GetData()[0] == '+' {
		if err := grpc.SetSendCompressor(ctx, gzip.Name); err != nil {
			return nil, err
		}
	}
	n, err := strconv.Atoi(string(in.GetData()))
	return &runtime.BindingEventResponse{Data: make([]byte, n)}, err
}

func TestTake_LongAnswerOfAGRPCApplication(t *testing.T) {
	c := grpcApp(t, longAnswers{})
	for _, one := range []struct {
		data string
		want int
		code fault.Code
	}{{"100", 100, ""}, {"100000", 0, ""}, {"+100", 100, ""}, {"+100000", 0, ""},
		{strings.Repeat("0", 1001), 0, fault.Internal}} {
		got, err := c.Take(within(t), "queue", "queue", []byte(one.data), nil)
		if len(got) != one.want || fault.CodeOf(err) != one.code {
			t.Errorf("%.10s: %d bytes, %v", one.data, len(got), err)
		}
	}
}

func TestTake_ApplicationNotRunning(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	for _, p := range []appchannel.Protocol{appchannel.HTTP, appchannel.GRPC} {
		c := open(t, p, addr)
		if _, err := c.Takes(within(t), "queue", "queue"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", p, err)
		}
		if _, err := c.Take(within(t), "queue", "queue", nil, nil); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestTake_GRPCApplication(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := sdk.NewServiceWithListener(l)
	err = s.AddBindingInvocationHandler("queue", func(_ context.Context, in *common.BindingEvent) ([]byte, error) {
		if string(in.Data) == "bad" {
			return nil, errors.New("no room")
		}
		return []byte(in.Metadata["topic"] + " " + string(in.Data)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Start()
	}()
	t.Cleanup(func() {
		_ = s.Stop()
		<-done
	})
	t.Setenv("APP_API_TOKEN", "app-token")
	c := open(t, appchannel.GRPC, l.Addr().String())
	for binding, want := range map[string]bool{"queue": true, "other": false} {
		if got, err := c.Takes(within(t), binding, binding); err != nil || got != want {
			t.Errorf("%s: %v, %v", binding, got, err)
		}
	}
	if got, err := c.Take(within(t), "queue", "queue", []byte("5"),
		map[string]string{"topic": "orders"}); err != nil || string(got) != "orders 5" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := c.Take(within(t), "queue", "queue", []byte("bad"), nil); !fault.Is(err, fault.Internal) ||
		!strings.Contains(err.Error(), "no room") {
		t.Errorf("%v", err)
	}
	if n := c.InFlight(); n != 0 {
		t.Errorf("%d calls under way", n)
	}
}
