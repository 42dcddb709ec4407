package node_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	sdk "github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/node"
)

// readers returns three nodes with a shared store. The application a is on the first node, and the application b on
// the other two. The method read of b reads the key k at the node of b, with eventual consistency.
func readers(t *testing.T) []*node.Node {
	t.Helper()
	shared := resources(t, map[string]string{"s.yaml": store("shared", "state.raft",
		`{name: keyPrefix, value: both}`)})
	clients, at := make([]atomic.Pointer[sdk.Client], 3), 0
	nodes, _ := threeWith(t, func(c *node.Config) {
		own := &clients[at]
		c.App.ID, c.App.Protocol, c.Components.Paths = []string{"a", "b", "b"}[at], node.ProtocolGRPC, shared
		c.App.Port = grpcApp(t, func(s common.Service) error {
			return s.AddServiceInvocationHandler("read",
				func(ctx context.Context, _ *common.InvocationEvent) (*common.Content, error) {
					item, err := (*own.Load()).GetStateWithConsistency(ctx, "shared", "k", nil,
						sdk.StateConsistencyEventual)
					if err != nil {
						return nil, err
					}
					return &common.Content{Data: item.Value, ContentType: "application/json"}, nil
				})
		})
		at++
	})
	for i, n := range nodes {
		c := dialSDK(t, n)
		clients[i].Store(&c)
	}
	poll(t, func() error {
		_, err := (*clients[0].Load()).InvokeMethod(t.Context(), "b", "read", "get")
		return err
	})
	return nodes
}

// The writes are strong, because an eventual write is lost when the leader changes, which happens on a busy machine.
// The reads are eventual, so that only the session lets them see the writes.
func TestGRPCSession_CalleeReadsWritesOfCaller(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	nodes := readers(t)
	a := dialSDK(t, nodes[0])
	for i := range 50 {
		want := strconv.Itoa(i)
		if err := a.SaveState(t.Context(), "shared", "k", []byte(want), nil,
			sdk.WithConsistency(sdk.StateConsistencyStrong)); err != nil {
			t.Fatal(err)
		}
		got, err := a.InvokeMethod(t.Context(), "b", "read", "get")
		if err != nil || string(got) != want {
			t.Fatalf("round %d: b reads %q, %v", i, got, err)
		}
	}
}

// A client reads its writes at every other node with the session token of a write or of a call. Answers state their
// consistency.
func TestGRPCSession_TokenIsMetadata(t *testing.T) {
	t.Parallel()
	nodes := readers(t)
	var clients []runtimev1.DaprClient
	for _, n := range nodes {
		clients = append(clients, runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0])))
	}
	token := func(md metadata.MD) string {
		t.Helper()
		if got := md.Get("quorate-session"); len(got) == 1 && got[0] != "" {
			return got[0]
		}
		t.Fatalf("no session in %v", md)
		return ""
	}
	sees := func(session, want string) {
		t.Helper()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "quorate-session", session)
		for i, c := range clients {
			var header metadata.MD
			got, err := c.GetState(ctx, &runtimev1.GetStateRequest{StoreName: "shared", Key: "k",
				Consistency: commonv1.StateOptions_CONSISTENCY_EVENTUAL}, grpc.Header(&header))
			if err != nil || string(got.GetData()) != want {
				t.Fatalf("node %d: %q, %v, want %s; the header is %v", i, got.GetData(), err, want, header)
			}
			if level := fmt.Sprint(header.Get("quorate-consistency")); level != "[session]" &&
				level != "[linearizable]" {
				t.Errorf("node %d: the level is %s", i, level)
			}
		}
	}
	for i := range 20 {
		var header metadata.MD
		want := strconv.Itoa(i)
		_, err := clients[i%3].SaveState(t.Context(),
			&runtimev1.SaveStateRequest{StoreName: "shared", States: []*commonv1.StateItem{
				{Key: "k", Value: []byte(want), Options: &commonv1.StateOptions{
					Consistency: commonv1.StateOptions_CONSISTENCY_STRONG}}}}, grpc.Header(&header))
		if err != nil {
			t.Fatal(err)
		}
		written := token(header)
		sees(written, want)
		answer, err := clients[0].InvokeService(metadata.AppendToOutgoingContext(t.Context(), "quorate-session",
			written), &runtimev1.InvokeServiceRequest{
			Id: "b", Message: &commonv1.InvokeRequest{Method: "read", Data: &anypb.Any{},
				HttpExtension: &commonv1.HTTPExtension{Verb: commonv1.HTTPExtension_GET}}}, grpc.Header(&header))
		if err != nil || string(answer.GetData().GetValue()) != want {
			t.Fatalf("b reads %q, %v, want %s", answer.GetData().GetValue(), err, want)
		}
		sees(token(header), want)
	}
	var header metadata.MD
	if _, err := clients[1].GetState(t.Context(),
		&runtimev1.GetStateRequest{StoreName: "shared", Key: "k",
			Consistency: commonv1.StateOptions_CONSISTENCY_STRONG}, grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if level := fmt.Sprint(header.Get("quorate-consistency")); level != "[linearizable]" {
		t.Errorf("a strong read has the level %s", level)
	}
}
