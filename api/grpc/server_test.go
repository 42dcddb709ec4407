package grpc_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	apigrpc "github.com/quorate/quorate/api/grpc"
)

func states(keys ...string) []*commonv1.StateItem {
	out := make([]*commonv1.StateItem, len(keys))
	for i, key := range keys {
		out[i] = &commonv1.StateItem{Key: key, Value: []byte(`1`)}
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, want codes.Code) *status.Status {
	t.Helper()
	st, ok := status.FromError(err)
	if !ok || st.Code() != want {
		t.Fatalf("%v, want the code %v", err, want)
	}
	return st
}

// infoOf returns the ErrorInfo in the details of an error, or nil.
func infoOf(st *status.Status) *errdetails.ErrorInfo {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

func TestErrors_HaveDaprStatusCodes(t *testing.T) {
	c := newFixture(t).client(t)
	ctx := t.Context()
	save := func(store string, items ...*commonv1.StateItem) error {
		_, err := c.SaveState(ctx, &runtimev1.SaveStateRequest{StoreName: store, States: items})
		return err
	}
	must(t, save("orders", states("taken")...))
	wrongTag := &commonv1.StateItem{Key: "taken", Value: []byte("2"), Etag: &commonv1.Etag{Value: "none"}}
	operate := func(store, operation string, item *commonv1.StateItem) error {
		_, err := c.ExecuteStateTransaction(ctx, &runtimev1.ExecuteStateTransactionRequest{StoreName: store,
			Operations: []*runtimev1.TransactionalStateOperation{{OperationType: operation, Request: item}}})
		return err
	}
	transact := func(store string, item *commonv1.StateItem) error { return operate(store, "upsert", item) }
	get := func(store, key string) error {
		_, err := c.GetState(ctx, &runtimev1.GetStateRequest{StoreName: store, Key: key})
		return err
	}
	actor := func(name, value string) error {
		_, err := c.InvokeActor(ctx, &runtimev1.InvokeActorRequest{ActorType: "Counter", ActorId: "a", Method: "add",
			Metadata: map[string]string{name: value}})
		return err
	}
	for _, row := range []struct {
		about string
		err   error
		want  codes.Code
	}{
		{"metadata that can be a header", actor("X-Name", "\u00e9\t"), codes.Internal}, // no node hosts the type
		{"metadata whose name is no header", actor("a b", "1"), codes.InvalidArgument},
		{"metadata without a name", actor("", "1"), codes.InvalidArgument},
		{"metadata whose value is no header", actor("x", "a\nb"), codes.InvalidArgument},
		{"an ETag that does not match", save("orders", wrongTag), codes.Aborted},
		{"the same in a transaction", transact("orders", wrongTag), codes.Internal},
		{"a store that is not there", save("absent", states("a")...), codes.InvalidArgument},
		{"an empty key", save("orders", states("")...), codes.InvalidArgument},
		{"an unknown concurrency", save("orders",
			&commonv1.StateItem{Key: "a", Options: &commonv1.StateOptions{Concurrency: 9}}), codes.InvalidArgument},
		{"an unknown consistency", save("orders",
			&commonv1.StateItem{Key: "a", Options: &commonv1.StateOptions{Consistency: 9}}), codes.InvalidArgument},
		{"an unknown operation", operate("orders", "increment", states("a")[0]), codes.Unimplemented},
		{"a store without transactions", transact("plain", states("a")[0]), codes.Unimplemented},
		{"surely not done", save("faulty", states("unavailable")...), codes.Unavailable},
		{"not done in time", save("faulty", states("timeout")...), codes.DeadlineExceeded},
		{"may have been done", save("faulty", states("indeterminate")...), codes.Unknown},
		{"a transaction that may have been done", transact("faulty", states("indeterminate")[0]), codes.Internal},
		{"too large", save("faulty", states("too_large")...), codes.InvalidArgument},
		{"denied", save("faulty", states("denied")...), codes.PermissionDenied},
		{"broken", get("faulty", "corrupt"), codes.Internal},
		{"a panic", get("faulty", "panic"), codes.Internal},
	} {
		if got := status.Code(row.err); got != row.want {
			t.Errorf("%s: %v, want the code %v", row.about, row.err, row.want)
		}
	}
}

func TestState_WithoutStoresIsFailedPrecondition(t *testing.T) {
	f := newFixture(t)
	f.Stores.List = nil
	_, err := f.client(t).GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "a"})
	wantCode(t, err, codes.FailedPrecondition)
}

func TestErrors_HaveDetails(t *testing.T) {
	c := newFixture(t).client(t)
	_, err := c.SaveState(t.Context(), &runtimev1.SaveStateRequest{StoreName: "orders", States: []*commonv1.StateItem{
		{Key: "a", Value: []byte("1"), Etag: &commonv1.Etag{Value: "x"}}}})
	st := wantCode(t, err, codes.Aborted)
	if !strings.HasPrefix(st.Message(), "failed saving state in state store orders: possible etag mismatch") {
		t.Errorf("message %q", st.Message())
	}
	_, err = c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "absent", Key: "a"})
	if missing := infoOf(status.Convert(err)); missing.GetReason() != "DAPR_STATE_NOT_FOUND" ||
		missing.GetDomain() != "dapr.io" || missing.GetMetadata()["errorCode"] != api.CodeStoreNotFound {
		t.Errorf("an unknown store has the details %v", missing)
	}
	info := infoOf(st)
	var resource *errdetails.ResourceInfo
	for _, d := range st.Details() {
		if d, ok := d.(*errdetails.ResourceInfo); ok {
			resource = d
		}
	}
	if info.GetReason() != api.CodeStateSave || info.GetMetadata()["reason"] != api.ReasonConflict ||
		info.GetMetadata()["key"] != "a" || resource.GetResourceName() != "orders" {
		t.Errorf("details %v %v", info, resource)
	}
}

func TestPanic_RevealsNoValues(t *testing.T) {
	f := newFixture(t)
	_, err := f.client(t).GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "faulty", Key: "panic"})
	wantCode(t, err, codes.Internal)
	if strings.Contains(err.Error()+f.Log.String(), "secret value") {
		t.Errorf("the value of the panic is revealed: %v\n%s", err, f.Log)
	}
	if !strings.Contains(f.Log.String(), "GetState") {
		t.Errorf("the log does not name the method: %s", f.Log)
	}
}

func TestState_EmptyBytesAreAValue(t *testing.T) {
	c := newFixture(t).client(t)
	_, err := c.SaveState(t.Context(), &runtimev1.SaveStateRequest{StoreName: "orders",
		States: []*commonv1.StateItem{{Key: "empty"}}})
	must(t, err)
	got, err := c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "empty"})
	must(t, err)
	if len(got.GetData()) != 0 || got.GetEtag() == "" {
		t.Errorf("%v", got)
	}
	absent, err := c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "orders", Key: "absent"})
	must(t, err)
	if absent.GetEtag() != "" || absent.GetData() != nil {
		t.Errorf("an absent key: %v", absent)
	}
}

func TestDeleteBulkState_IsAtomicIfStoreIsTransactional(t *testing.T) {
	for _, store := range []string{"orders", "plain"} {
		t.Run(store, func(t *testing.T) {
			c := newFixture(t).client(t)
			save := &runtimev1.SaveStateRequest{StoreName: store, States: states("a", "b", "c")}
			_, err := c.SaveState(t.Context(), save)
			must(t, err)
			bad := states("a", "b")
			bad[1].Etag = &commonv1.Etag{Value: "another"}
			_, err = c.DeleteBulkState(t.Context(), &runtimev1.DeleteBulkStateRequest{StoreName: store, States: bad})
			wantCode(t, err, codes.Aborted)
			left := func() (keys []string) {
				out, err := c.GetBulkState(t.Context(),
					&runtimev1.GetBulkStateRequest{StoreName: store, Keys: []string{"a", "b", "c"}})
				must(t, err)
				for _, it := range out.GetItems() {
					if it.GetEtag() != "" {
						keys = append(keys, it.GetKey())
					}
				}
				return keys
			}
			want := []string{"a", "b", "c"}
			if store == "plain" {
				want = want[1:]
			}
			if got := left(); !slices.Equal(got, want) {
				t.Errorf("left after a conflict: %v, want %v", got, want)
			}
			_, err = c.DeleteBulkState(t.Context(),
				&runtimev1.DeleteBulkStateRequest{StoreName: store, States: states("a", "c", "absent")})
			must(t, err)
			if got := left(); !slices.Equal(got, []string{"b"}) {
				t.Errorf("left: %v", got)
			}
		})
	}
}

func TestToken_RequiredExceptForHealth(t *testing.T) {
	f := newFixture(t)
	f.config.Tokens = apitest.Tokens("old", "new")
	conn := f.serve(t)
	c := runtimev1.NewDaprClient(conn)
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "wrong": codes.Unauthenticated,
		"old": codes.OK, "new": codes.OK} {
		ctx := t.Context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "dapr-api-token", token)
		}
		_, err := c.GetMetadata(ctx, &runtimev1.GetMetadataRequest{})
		wantCode(t, err, want)
		_, err = c.SaveState(ctx, &runtimev1.SaveStateRequest{StoreName: "orders", States: states("a")})
		wantCode(t, err, want)
	}
	_, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	must(t, err)
	_, err = stream.Recv()
	wantCode(t, err, codes.Unauthenticated)
}

// Calls of unknown services go to the application in dapr-app-id. Without a token, no other spelling of a health
// method may reach an application.
func TestToken_OnlyMethodsOfTheHealthServiceNeedNone(t *testing.T) {
	f := newFixture(t)
	f.config.Tokens = apitest.Tokens("right")
	conn := f.serve(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "dapr-app-id", "orders")
	for _, method := range []string{
		"/grpc.health.v1.Health/Foo", "/grpc.health.v1.Health/check", "/grpc.health.v1.Health/",
		"/grpc.health.v1.Health/Check/", "/grpc.health.v1.Health/Check/../../delete",
		"/grpc.health.v1.Health/x/delete", "/grpc.health.v1.Health/../delete", "/grpc.health.v1.Health/%43heck",
		"/grpc.health.v1.Health/Check?x", "/grpc.health.v1.Health/Check#x",
		"//grpc.health.v1.Health/Check", "/grpc.health.v1.Health//Check", "/grpc.health.v1.health/Check",
		"/GRPC.health.v1.Health/Check",
	} {
		if err := conn.Invoke(ctx, method, &healthv1.HealthCheckRequest{},
			&healthv1.HealthCheckResponse{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", method, err)
		}
	}
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	must(t, err)
}

func TestHealth_ServingAfterStartup(t *testing.T) {
	f := newFixture(t)
	f.Health.Start([]api.Reason{{Name: "store orders", Text: "not open"}}, nil)
	health := healthv1.NewHealthClient(f.serve(t))
	for _, service := range []string{"", "dapr.proto.runtime.v1.Dapr"} {
		got, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		must(t, err)
		if got.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("%q: %v before the start is complete", service, got.GetStatus())
		}
	}
	_, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "other"})
	wantCode(t, err, codes.NotFound)
	watch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{healthv1.HealthCheckResponse_NOT_SERVING,
		healthv1.HealthCheckResponse_SERVING} {
		got, err := watch.Recv()
		must(t, err)
		if got.GetStatus() != want {
			t.Errorf("watched %v, want %v", got.GetStatus(), want)
		}
		f.Health.Start(nil, nil)
	}
}

// Each method of the Dapr service is either served and named in docs/api.md, or it fails with Unimplemented.
func TestMethods_ServedOrUnimplemented(t *testing.T) {
	served := []string{
		"GetState", "GetBulkState", "SaveState", "DeleteState", "DeleteBulkState", "ExecuteStateTransaction",
		"GetActorState", "ExecuteActorStateTransaction", "InvokeActor",
		"RegisterActorReminder", "UnregisterActorReminder", "GetActorReminder", "ListActorReminders",
		"UnregisterActorRemindersByType", "RegisterActorTimer", "UnregisterActorTimer",
		"SubscribeActorEventsAlpha1",
		"PublishEvent", "BulkPublishEvent", "BulkPublishEventAlpha1", "SubscribeTopicEventsAlpha1",
		"GetSecret", "GetBulkSecret", "InvokeService", "InvokeBinding", "GetMetadata", "SetMetadata", "Shutdown",
		"TryLockAlpha1", "UnlockAlpha1",
		"GetConfiguration", "SubscribeConfiguration", "UnsubscribeConfiguration",
		"GetConfigurationAlpha1", "SubscribeConfigurationAlpha1", "UnsubscribeConfigurationAlpha1",
		"ScheduleJob", "ScheduleJobAlpha1", "GetJob", "GetJobAlpha1", "DeleteJob", "DeleteJobAlpha1", "ListJobs",
		"ListJobsAlpha1", "DeleteJobsByPrefix", "DeleteJobsByPrefixAlpha1",
		"StartWorkflowAlpha1", "GetWorkflowAlpha1", "PurgeWorkflowAlpha1", "TerminateWorkflowAlpha1",
		"StartWorkflowBeta1", "GetWorkflowBeta1", "PurgeWorkflowBeta1", "TerminateWorkflowBeta1",
		"PauseWorkflowAlpha1", "ResumeWorkflowAlpha1", "RaiseEventWorkflowAlpha1",
		"PauseWorkflowBeta1", "ResumeWorkflowBeta1", "RaiseEventWorkflowBeta1",
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "api.md"))
	must(t, err)
	_, page, _ = bytes.Cut(page, []byte("\n## gRPC\n"))
	conn := newFixture(t).serve(t)
	said := func(name string, err error) {
		t.Helper()
		// InvokeService is served, but this fixture has no application to call.
		offered := status.Code(err) != codes.Unimplemented || name == "InvokeService"
		switch {
		case offered != slices.Contains(served, name):
			t.Errorf("%s: %v", name, err)
		case offered && !bytes.Contains(page, []byte("`"+name+"`")):
			t.Errorf("docs/api.md does not name %s", name)
		case !offered && !strings.Contains(err.Error(), "Quorate does not serve "+name+" of the building block "):
			t.Errorf("%s: %v", name, err)
		}
	}
	prefix := "/" + runtimev1.Dapr_ServiceDesc.ServiceName + "/"
	for _, m := range runtimev1.Dapr_ServiceDesc.Methods {
		said(m.MethodName, conn.Invoke(t.Context(), prefix+m.MethodName, &emptypb.Empty{}, &emptypb.Empty{}))
	}
	for _, m := range runtimev1.Dapr_ServiceDesc.Streams {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
			prefix+m.StreamName)
		must(t, err)
		_ = stream.SendMsg(&emptypb.Empty{}) // RecvMsg returns the error
		_ = stream.CloseSend()
		said(m.StreamName, stream.RecvMsg(&emptypb.Empty{}))
	}
}

func TestMetadata_DescribesRuntimeAndKeepsValues(t *testing.T) {
	c := newFixture(t).client(t)
	_, err := c.SetMetadata(t.Context(), &runtimev1.SetMetadataRequest{Key: "team", Value: "blue"})
	must(t, err)
	got, err := c.GetMetadata(t.Context(), &runtimev1.GetMetadataRequest{})
	must(t, err)
	if got.GetId() != "shop" || got.GetExtendedMetadata()["team"] != "blue" ||
		got.GetExtendedMetadata()["daprRuntimeVersion"] != "1.2.3" ||
		got.GetRegisteredComponents()[0].GetName() != "orders" || got.GetAppConnectionProperties().GetPort() != 8080 ||
		got.GetActorRuntime().GetRuntimeStatus() != runtimev1.ActorRuntime_DISABLED ||
		got.GetHttpEndpoints()[0].GetName() != "partner" || got.GetWorkflows() == nil ||
		got.GetAppConnectionProperties().GetHealth().GetHealthProbeTimeout() != "500ms" {
		t.Errorf("%v", got)
	}
	want := []*runtimev1.PubsubSubscription{
		{PubsubName: "pubsub", Topic: "orders", Metadata: map[string]string{"rawPayload": "true"},
			DeadLetterTopic: "failed", Type: runtimev1.PubsubSubscriptionType_DECLARATIVE,
			Rules: &runtimev1.PubsubSubscriptionRules{Rules: []*runtimev1.PubsubSubscriptionRule{
				{Match: `event.type == "gold"`, Path: "/gold"}, {Path: "/orders"}}}},
		{PubsubName: "pubsub", Topic: "bare", Type: runtimev1.PubsubSubscriptionType_STREAMING,
			Rules: &runtimev1.PubsubSubscriptionRules{}},
	}
	if !slices.EqualFunc(got.GetSubscriptions(), want, func(a, b *runtimev1.PubsubSubscription) bool {
		return proto.Equal(a, b)
	}) {
		t.Errorf("the subscriptions are %v", got.GetSubscriptions())
	}
	_, err = c.SetMetadata(t.Context(), &runtimev1.SetMetadataRequest{})
	wantCode(t, err, codes.InvalidArgument)
}

func TestShutdown_AnswersAndTriggersShutdown(t *testing.T) {
	f := newFixture(t)
	c := f.client(t)
	_, err := c.Shutdown(metadata.AppendToOutgoingContext(t.Context(), "dapr-force-shutdown", "true"),
		&runtimev1.ShutdownRequest{})
	must(t, err)
	if force := <-f.Stopped; !force {
		t.Error("not forced")
	}
}

func TestMessage_OverLimitIsRefused(t *testing.T) {
	f := newFixture(t)
	f.config.MaxBodySize = 1000
	big := states("a")
	big[0].Value = make([]byte, 2000)
	_, err := f.client(t).SaveState(t.Context(), &runtimev1.SaveStateRequest{StoreName: "orders", States: big})
	wantCode(t, err, codes.ResourceExhausted)
}

func TestMetrics_CountByMethodAndCode(t *testing.T) {
	f := newFixture(t)
	c := f.client(t)
	_, _ = c.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "absent", Key: "a"})
	want := `# HELP quorate_grpc_requests_total gRPC calls by method and code.
# TYPE quorate_grpc_requests_total counter
quorate_grpc_requests_total{app="shop",code="InvalidArgument",method="Dapr/GetState"} 1
`
	if err := testutil.GatherAndCompare(f.Metrics, strings.NewReader(want), "quorate_grpc_requests_total"); err != nil {
		t.Error(err)
	}
}

// Close must not wait for health watches, which last as long as their clients stay connected.
func TestClose_WaitsForCallsAndEndsWatches(t *testing.T) {
	f := newFixture(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	server, err := apigrpc.New(f.config)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server.Serve(l)
	conn := dial(t, l.Addr().String())
	watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	must(t, err)
	_, err = watch.Recv()
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, server.Close(ctx))
	must(t, server.Close(ctx))
	_, err = watch.Recv()
	wantCode(t, err, codes.Unavailable)
	must(t, conn.Close())
}

func TestClose_ConnsWithoutCallDoNotDelayIt(t *testing.T) {
	t.Parallel()
	for name, opens := range map[string]bool{"silent": false, "open, and its end not confirmed": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			server, err := apigrpc.New(f.config)
			must(t, err)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			server.Serve(l)
			client := dial(t, l.Addr().String())
			quiet, err := net.Dial("tcp", l.Addr().String())
			must(t, err)
			defer quiet.Close()
			if opens {
				w := knock(t, client)
				w.settings()
			}
			// The server accepts this call after the quiet connection, so the answer proves that it has accepted both.
			_, err = healthv1.NewHealthClient(client).Check(t.Context(), &healthv1.HealthCheckRequest{})
			must(t, err)
			must(t, client.Close())
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			start := time.Now()
			must(t, server.Close(ctx))
			// grpc-go alone would wait for five or ten seconds.
			if took := time.Since(start); !testing.Short() && took > 4*time.Second {
				t.Errorf("Close took %v", took)
			}
		})
	}
}

func TestClose_WithoutTimeCutsNoCallIfThereIsNone(t *testing.T) {
	f := newFixture(t)
	server, err := apigrpc.New(f.config)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server.Serve(l)
	knock(t, dial(t, l.Addr().String())).settings()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, server.Close(ctx))
}

func TestHeaders_ReportFreshness(t *testing.T) {
	c := newFixture(t).client(t)
	var header metadata.MD
	_, err := c.SaveState(t.Context(), &runtimev1.SaveStateRequest{StoreName: "orders", States: states("a")},
		grpc.Header(&header))
	must(t, err)
	if got := header.Get("quorate-consistency"); !slices.Equal(got, []string{"linearizable"}) {
		t.Errorf("level %v", got)
	}
}
