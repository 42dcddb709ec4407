package remoteinvoke_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/dapr/go-sdk/service/common"
	sdk "github.com/dapr/go-sdk/service/grpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/internal/appchannel"
)

// grpcApp starts an application that uses Dapr's Go SDK, and returns its address.
func grpcApp(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := sdk.NewServiceWithListener(l)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.AddServiceInvocationHandler("echo",
		func(_ context.Context, in *common.InvocationEvent) (*common.Content, error) {
			return &common.Content{Data: []byte(in.Verb + " " + in.QueryString + " " + in.ContentType + " " +
				string(in.Data)), ContentType: "text/plain"}, nil
		}))
	must(s.AddServiceInvocationHandler("fail", func(context.Context, *common.InvocationEvent) (*common.Content, error) {
		s := status.New(codes.NotFound, "no such order").Proto()
		info, err := anypb.New(&errdetails.ErrorInfo{Reason: "GONE", Domain: "shop"})
		if err != nil {
			return nil, err
		}
		s.Details = append(s.Details, info, &anypb.Any{TypeUrl: "type.example/Mine", Value: []byte{1, 2}})
		return nil, status.ErrorProto(s)
	}))
	must(s.AddHealthCheckHandler("", func(context.Context) error { return nil }))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Start()
	}()
	t.Cleanup(func() {
		_ = s.Stop()
		<-done
	})
	return l.Addr().String()
}

func TestGRPC_AppIsCallableOverHTTP(t *testing.T) {
	w := newWorld(t)
	b := w.start("b", "orders", grpcApp(t), func(o *appchannel.Options) {
		o.Protocol, o.Health.Enabled, o.MaxMessage = appchannel.GRPC, true, 1000
	})
	a := w.start("a", "shop", "", nil)
	eventually(t, "the health check passes", func() bool { ok, _ := b.channel.Healthy(); return ok })
	for _, from := range []*node{a, b} {
		answer, err := client(t).Post(from.url("/v1.0/invoke/orders/method/echo?a=1&b=2"), "application/json",
			strings.NewReader(`{"n":1}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, answer); answer.StatusCode != http.StatusOK ||
			got != `POST a=1&b=2 application/json {"n":1}` || answer.Header.Get("Content-Type") != "text/plain" {
			t.Errorf("%d %q %v", answer.StatusCode, got, answer.Header)
		}
		answer, err = client(t).Get(from.url("/v1.0/invoke/orders/method/fail"))
		if err != nil {
			t.Fatal(err)
		}
		var e struct {
			ErrorCode, Message, Status string
			Code                       int
			Details                    []map[string]any
		}
		if err := json.Unmarshal([]byte(body(t, answer)), &e); err != nil ||
			answer.StatusCode != http.StatusInternalServerError ||
			e.ErrorCode != "ERR_DIRECT_INVOKE" || e.Code != int(codes.NotFound) || e.Status != "NotFound" ||
			!strings.Contains(e.Message, "no such order") {
			t.Errorf("%d %+v %v", answer.StatusCode, e, err)
		}
		want := []map[string]any{
			{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "GONE", "domain": "shop"},
			{"@type": "type.example/Mine", "value": "AQI="},
		}
		if diff := cmp.Diff(want, e.Details); diff != "" {
			t.Error(diff)
		}
		answer, err = client(t).Post(from.url("/v1.0/invoke/orders/method/echo"), "text/plain",
			strings.NewReader(strings.Repeat("x", 1001)))
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, answer); answer.StatusCode != http.StatusBadRequest ||
			!strings.Contains(got, "longer than 1000 bytes") {
			t.Errorf("%d %s", answer.StatusCode, got)
		}
	}
}

func TestGRPC_MissingAppIsUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	w := newWorld(t)
	w.start("b", "orders", addr, func(o *appchannel.Options) { o.Protocol = appchannel.GRPC })
	a := w.start("a", "shop", "", nil)
	answer, err := client(t).Get(a.url("/v1.0/invoke/orders/method/echo"))
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, answer); answer.StatusCode != http.StatusInternalServerError ||
		!strings.Contains(got, `"reason":"unreachable"`) {
		t.Errorf("%d %s", answer.StatusCode, got)
	}
}
