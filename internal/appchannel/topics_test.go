package appchannel_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	runtime "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

// answersOfApps maps the text of a failed answer of an application to the excerpt in the error.
var answersOfApps = map[string]string{
	"":                                   "",
	" \n":                                "",
	`{"error": "no stock"}`:              `: {"error": "no stock"}`,
	"line 1\nline 2\x1b[31m \x00":        `: line 1 line 2\x1b[31m \x00`,
	"caf\u00e9 \u202e \xff":              `: café \u202e`,
	strings.Repeat("x", 1000):            ": " + strings.Repeat("x", 256) + "...",
	"y" + strings.Repeat("\u00e9", 1000): ": y" + strings.Repeat("é", 127) + "...",
}

func TestTakeMessage_ErrorHasTheAnswer(t *testing.T) {
	for answer, want := range answersOfApps {
		c := httpApp(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, answer)
		})
		_, err := c.TakeMessage(within(t), &appchannel.TopicMessage{Path: "/orders"})
		if want = "POST /orders answered 500" + want; !fault.Is(err, fault.Internal) || fault.Text(err) != want {
			t.Errorf("%q: the error is %q, not %q", answer, fault.Text(err), want)
		}
		if a := appchannel.AnswerOf(err); a == nil || a.StatusCode != http.StatusInternalServerError {
			t.Errorf("%q: the answer is %v", answer, a)
		}
	}
}

func TestTakeMessage_LongAnswer200IsSuccess(t *testing.T) {
	c := httpApp(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html>"+strings.Repeat("a", 100<<10))
	})
	if got, err := c.TakeMessage(within(t), &appchannel.TopicMessage{Path: "/orders"}); got != appchannel.TopicSuccess {
		t.Errorf("the answer is %v, %v", got, err)
	}
}

func TestTakeMessage_ErrorHasTheStatusOfAnAnswer200(t *testing.T) {
	for body, want := range map[string]appchannel.TopicAnswer{
		`{"status":"SUCCESS"}`: appchannel.TopicSuccess, `{"status":"DROP"}`: appchannel.TopicDrop,
		`{"status":"RETRY","why":"no stock"}`: appchannel.TopicRetry, `{"status":"LATER"}`: appchannel.TopicRetry,
	} {
		c := httpApp(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		got, err := c.TakeMessage(within(t), &appchannel.TopicMessage{Path: "/orders"})
		if got != want {
			t.Errorf("%s: %v", body, got)
		}
		if text := "POST /orders answered 200: " + body; want == appchannel.TopicRetry {
			if !fault.Is(err, fault.Internal) || fault.Text(err) != text || appchannel.AnswerOf(err) != nil {
				t.Errorf("%s: %v", body, err)
			}
		} else if err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// topicApp is a gRPC application that fails.
type topicApp struct {
	runtime.UnimplementedAppCallbackServer
	message string
}

func (a *topicApp) OnTopicEvent(ctx context.Context, _ *runtime.TopicEventRequest) (*runtime.TopicEventResponse,
	error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return nil, status.Error(codes.Aborted, a.message+strings.Join(md.Get("tracestate"), ","))
}

// grpcApp returns a channel to a gRPC application.
func grpcApp(t *testing.T, app runtime.AppCallbackServer, o ...grpc.ServerOption) *appchannel.Channel {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(o...)
	runtime.RegisterAppCallbackServer(s, app)
	go func() { _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(s.Stop)
	return open(t, appchannel.GRPC, l.Addr().String())
}

func TestTakeMessage_AnyTraceStateReachesAGRPCApplication(t *testing.T) {
	m := &appchannel.TopicMessage{Parent: "a\nb", State: "k=\u00e9\n",
		Proto: func() *runtime.TopicEventRequest { return &runtime.TopicEventRequest{} }}
	_, err := grpcApp(t, &topicApp{}).TakeMessage(within(t), m)
	if want := "OnTopicEvent answered Aborted: k=??"; fault.Text(err) != want {
		t.Errorf("the error is %q, not %q", fault.Text(err), want)
	}
}

// TestTakeMessage_HeadersTooLongForTheApplication checks that a message that cannot be sent counts as a failed
// attempt. Otherwise it would be delivered again forever.
func TestTakeMessage_HeadersTooLongForTheApplication(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
	}))
	server.Config.MaxHeaderBytes, server.Config.Protocols = 8<<10, new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	for name, c := range map[string]*appchannel.Channel{
		"grpc": grpcApp(t, &topicApp{}, grpc.MaxHeaderListSize(8<<10)),
		"h2c":  open(t, appchannel.H2C, server.Listener.Addr().String()),
	} {
		for _, one := range []struct {
			size int
			want fault.Code
		}{{100, fault.Internal}, {16 << 10, fault.TooLarge}} { // the first answer has announced the limit
			_, err := c.TakeMessage(within(t), &appchannel.TopicMessage{
				Metadata: map[string]string{"a": strings.Repeat("x", one.size)},
				Proto:    func() *runtime.TopicEventRequest { return &runtime.TopicEventRequest{} }})
			if !fault.Is(err, one.want) {
				t.Errorf("%s, %d bytes: %v, want %s", name, one.size, err, one.want)
			}
		}
	}
}

func TestTakeMessage_ErrorHasTheStatusOfAGRPCApplication(t *testing.T) {
	for answer, want := range answersOfApps {
		if strings.Contains(answer, "\xff") {
			continue // gRPC replaces this byte
		}
		c := grpcApp(t, &topicApp{message: answer})
		_, err := c.TakeMessage(within(t), &appchannel.TopicMessage{Path: "/orders",
			Proto: func() *runtime.TopicEventRequest { return &runtime.TopicEventRequest{} }})
		if want = "OnTopicEvent answered Aborted" + want; !fault.Is(err, fault.Internal) || fault.Text(err) != want {
			t.Errorf("%q: the error is %q, not %q", answer, fault.Text(err), want)
		}
	}
}

func TestTakeMessage_404IsNotTheAnswerDrop(t *testing.T) {
	c := httpApp(t, http.NotFound)
	got, err := c.TakeMessage(within(t), &appchannel.TopicMessage{Path: "/orders"})
	if got != appchannel.TopicNotFound || err != nil {
		t.Errorf("the answer is %v, %v", got, err)
	}
}

// TestSubscriptions_NoneWithoutEndpoint checks that an application that does not implement GET at all has no
// subscriptions, like one without the path.
func TestSubscriptions_NoneWithoutEndpoint(t *testing.T) {
	for _, status := range []int{404, 405, 501} {
		c := httpApp(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if list, _, err := c.Subscriptions(within(t), "app"); list != nil || err != nil {
			t.Errorf("%d: %q, %v", status, list, err)
		}
	}
	for _, status := range []int{403, 500, 503} {
		c := httpApp(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if list, _, err := c.Subscriptions(within(t), "app"); !fault.Is(err, fault.Internal) {
			t.Errorf("%d: %q, %v", status, list, err)
		}
	}
}
