package daprmetrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// counter returns a counter of the present series.
func counter(m *Metrics, name string) *prometheus.CounterVec { return m.now.Load().counters[name] }

func TestTemplate_RemovesKeysAndIDs(t *testing.T) {
	for path, want := range map[string]string{
		"/v1.0/state/orders":                    "/v1.0/state/orders",
		"/v1.0/state/orders/a/b/c/d/e":          "/v1.0/state/orders",
		"/v1.0/secrets/vault/db":                "/v1.0/secrets/vault",
		"/v1.0/actors/Cart/7/state/total":       "/v1.0/actors/Cart/{id}/state",
		"/actors/Cart/7/method/add":             "actors/Cart/{id}/method/add",
		"/v1.0/invoke/shop/method/orders/7":     "/v1.0/invoke/shop/method/orders/7",
		"/v1.0/healthz":                         "/v1.0/healthz",
		"/":                                     "/",
		"":                                      "",
		"/orders/7/items/8/parts/9/screws/10/x": "/orders/7/items/8/parts/9/screws/10/x",
	} {
		if got := template(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestPaths_AreBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := New(&Options{App: "shop", Paths: true}, reg)
	if err != nil {
		t.Fatal(err)
	}
	app := m.App("shop")
	for i := range maxValues + 50 {
		app.ServedHTTP("GET", fmt.Sprintf("/p/%d", i), 404, 0, 0, time.Millisecond)
	}
	app.ServedHTTP("GET", "/p/7", 404, 0, 0, time.Millisecond)
	if n := testutil.CollectAndCount(counter(m, "dapr_http_server_request_count")); n != maxValues+1 {
		t.Errorf("%d series", n)
	}
	count := func(path string) float64 {
		return testutil.ToFloat64(counter(m, "dapr_http_server_request_count").WithLabelValues("shop", "GET", path,
			"404"))
	}
	if count("/p/7") != 2 || count(other) != 50 {
		t.Errorf("known path %v, other %v", count("/p/7"), count(other))
	}
}

func TestRenewed_CountsCertificates(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := New(&Options{App: "shop"}, reg)
	if err != nil {
		t.Fatal(err)
	}
	m.App("shop").Renewed(true)
	m.App("shop").Renewed(false)
	want := `
# HELP dapr_runtime_mtls_workload_cert_rotated_fail_total Certificates that could not be renewed.
# TYPE dapr_runtime_mtls_workload_cert_rotated_fail_total counter
dapr_runtime_mtls_workload_cert_rotated_fail_total{app_id="shop",reason="sign"} 1
# HELP dapr_runtime_mtls_workload_cert_rotated_total Certificates of this node that were renewed.
# TYPE dapr_runtime_mtls_workload_cert_rotated_total counter
dapr_runtime_mtls_workload_cert_rotated_total{app_id="shop"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "dapr_runtime_mtls_workload_cert_rotated_total",
		"dapr_runtime_mtls_workload_cert_rotated_fail_total"); err != nil {
		t.Error(err)
	}
}

func TestGRPCStats_MethodThatIsNotUTF8(t *testing.T) {
	m, err := New(&Options{App: "shop"}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []stats.Handler{m.App("shop").GRPCServer(), m.App("shop").GRPCClient()} {
		ctx := h.TagRPC(t.Context(), &stats.RPCTagInfo{FullMethodName: "/shop.Orders/\xff\xfe"})
		h.HandleRPC(ctx, &stats.End{}) // Prometheus panics for a label that is not UTF-8
	}
	for _, name := range []string{"dapr_grpc_io_server_completed_rpcs", "dapr_grpc_io_client_completed_rpcs"} {
		if n := testutil.ToFloat64(counter(m, name).WithLabelValues("shop", "/shop.Orders/?", "OK")); n != 1 {
			t.Errorf("%s: %v", name, n)
		}
	}
}

func TestFailed_CountsCodesOfBothAPIs(t *testing.T) {
	for _, record := range []bool{true, false} {
		m, err := New(&Options{App: "shop", ErrorCodes: record}, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		app := m.App("shop")
		app.Failed("ERR_ACTOR_STACK_DEPTH")
		for method, info := range map[string]*errdetails.ErrorInfo{
			daprMethods + "SaveState":   {Reason: "ERR_STATE_SAVE"},
			daprMethods + "DeleteState": {Reason: "no code"},
			daprMethods + "GetState": {Reason: "DAPR_STATE_NOT_FOUND",
				Metadata: map[string]string{"errorCode": "ERR_STATE_STORE_NOT_FOUND"}},
			"/orders.v1.Orders/Get":       {Reason: "ERR_STATE_GET"}, // the error of a proxied application
			daprMethods + "ScheduleJob":   {Reason: "DAPR_SCHEDULER_JOB_NAME"},
			daprMethods + "InvokeActor2":  nil,
			daprMethods + "InvokeService": {Reason: "Internal Server Error"},
		} {
			handler := app.GRPCServer()
			ctx := handler.TagRPC(t.Context(), &stats.RPCTagInfo{FullMethodName: method})
			st := status.New(codes.Internal, "ERR_LOCK: this text is not the code")
			if info != nil {
				var err error
				if st, err = st.WithDetails(info); err != nil {
					t.Fatal(err)
				}
			}
			handler.HandleRPC(ctx, &stats.End{Error: st.Err()})
		}
		got := map[string]float64{}
		for _, c := range []string{"ERR_ACTOR_STACK_DEPTH", "ERR_STATE_SAVE", "ERR_STATE_STORE_NOT_FOUND",
			"DAPR_SCHEDULER_JOB_NAME"} {
			got[c] = testutil.ToFloat64(counter(m, errorCodes).WithLabelValues("shop", c, category(c)))
		}
		want := 0.0
		if record {
			want = 1
		}
		if got["ERR_ACTOR_STACK_DEPTH"] != want || got["ERR_STATE_SAVE"] != want ||
			got["DAPR_SCHEDULER_JOB_NAME"] != want || got["ERR_STATE_STORE_NOT_FOUND"] != want ||
			testutil.CollectAndCount(counter(m, errorCodes)) != 4 {
			t.Errorf("record %v: %v", record, got)
		}
	}
}

func TestChange_BeginsSeriesAnew(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := New(nil, reg)
	if err != nil {
		t.Fatal(err)
	}
	app := m.App("shop")
	names := func() (n int) {
		t.Helper()
		app.ServedHTTP("GET", "/v1.0/state/orders/a", 200, 0, 0, time.Millisecond)
		m.PolicyApplied("shop", "r", "circuitbreaker", "web", "closed")
		n, err := testutil.GatherAndCount(reg, "dapr_http_server_request_count", "dapr_http_server_latency",
			circuitState)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := names(); n != 0 {
		t.Errorf("%d series although nothing is exported", n)
	}
	for _, c := range []struct {
		options *Options
		want    string // the label path
	}{
		{&Options{App: "shop", Paths: true, Buckets: []float64{1, 2}}, "/v1.0/state/orders"},
		{&Options{App: "shop", Buckets: []float64{5}}, ""},
	} {
		if err := m.Change(c.options); err != nil {
			t.Fatal(err)
		}
		if n := names(); n != 2+len(circuitStates()) {
			t.Errorf("%d series", n)
		}
		count := counter(m, "dapr_http_server_request_count")
		if n := testutil.ToFloat64(count.WithLabelValues("shop", "GET", c.want, "200")); n != 1 {
			t.Errorf("path %q has %v requests", c.want, n)
		}
	}
	if err := m.Change(nil); err != nil || names() != 0 {
		t.Errorf("series remain: %v", err)
	}
}
