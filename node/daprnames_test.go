package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/dapr/durabletask-go/workflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/internal/daprmetrics"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
)

// daprSeries are the metrics, with their labels, that Dapr's dashboards and documentation name, for the building
// blocks that Quorate has. A name that ends in milliseconds or bytes is a histogram.
func daprSeries() map[string]string {
	const (
		http       = "app_id,method,path,status"
		operation  = "app_id,component,namespace,operation,success"
		resiliency = "app_id,flow_direction,name,namespace,policy,status,target"
		rule       = "app_id,namespace,trustDomain"
		publish    = "app_id,component,namespace,success,topic"
		batch      = "app_id,component,namespace,process_status,topic"
		delivery   = "app_id,component,namespace,process_status,status,topic"
	)
	return map[string]string{
		"dapr_http_server_request_count":           http,
		"dapr_http_server_response_count":          http,
		"dapr_http_server_latency":                 http + ",ms",
		"dapr_http_server_request_bytes":           "app_id,bytes",
		"dapr_http_server_response_bytes":          "app_id,bytes",
		"dapr_http_client_completed_count":         http,
		"dapr_http_client_roundtrip_latency":       http + ",ms",
		"dapr_http_client_sent_bytes":              http + ",bytes",
		"dapr_http_client_received_bytes":          "app_id,bytes",
		"dapr_http_healthprobes_completed_count":   "app_id,status",
		"dapr_http_healthprobes_roundtrip_latency": "app_id,status,ms",

		"dapr_grpc_io_server_completed_rpcs":          "app_id,grpc_server_method,grpc_server_status",
		"dapr_grpc_io_server_server_latency":          "app_id,grpc_server_method,grpc_server_status,ms",
		"dapr_grpc_io_server_received_bytes_per_rpc":  "app_id,grpc_server_method,bytes",
		"dapr_grpc_io_server_sent_bytes_per_rpc":      "app_id,grpc_server_method,bytes",
		"dapr_grpc_io_client_completed_rpcs":          "app_id,grpc_client_method,grpc_client_status",
		"dapr_grpc_io_client_roundtrip_latency":       "app_id,grpc_client_method,grpc_client_status,ms",
		"dapr_grpc_io_client_sent_bytes_per_rpc":      "app_id,grpc_client_method,bytes",
		"dapr_grpc_io_client_received_bytes_per_rpc":  "app_id,grpc_client_method,bytes",
		"dapr_grpc_io_healthprobes_completed_count":   "app_id,grpc_client_status",
		"dapr_grpc_io_healthprobes_roundtrip_latency": "app_id,grpc_client_status,ms",

		"dapr_component_state_count":              operation,
		"dapr_component_state_latencies":          operation + ",ms",
		"dapr_component_secret_count":             operation,
		"dapr_component_secret_latencies":         operation + ",ms",
		"dapr_component_output_binding_count":     operation,
		"dapr_component_output_binding_latencies": operation + ",ms",
		"dapr_component_input_binding_count":      "app_id,component,namespace,success",
		"dapr_component_input_binding_latencies":  "app_id,component,namespace,success,ms",
		"dapr_component_job_success_count":        "app_id,namespace,operation",
		"dapr_component_job_failure_count":        "app_id,namespace,operation",
		"dapr_component_job_latencies":            "app_id,namespace,operation,success,ms",

		"dapr_component_pubsub_egress_count":             publish,
		"dapr_component_pubsub_egress_latencies":         publish + ",ms",
		"dapr_component_pubsub_egress_bulk_count":        publish,
		"dapr_component_pubsub_egress_bulk_latencies":    publish + ",ms",
		"dapr_component_pubsub_ingress_count":            delivery,
		"dapr_component_pubsub_ingress_latencies":        delivery + ",ms",
		"dapr_component_pubsub_ingress_bulk_count":       batch,
		"dapr_component_pubsub_ingress_bulk_event_count": batch,
		"dapr_component_pubsub_ingress_bulk_latencies":   batch + ",ms",

		"dapr_runtime_workflow_operation_count":            "app_id,namespace,operation,status",
		"dapr_runtime_workflow_operation_latency":          "app_id,namespace,operation,status,ms",
		"dapr_runtime_workflow_activity_execution_count":   "activity_name,app_id,namespace,status",
		"dapr_runtime_workflow_activity_execution_latency": "activity_name,app_id,namespace,status,ms",

		"dapr_runtime_component_loaded":          "app_id",
		"dapr_runtime_component_init_total":      "app_id,component",
		"dapr_runtime_component_init_fail_total": "app_id,component,componentName,reason",
		"dapr_runtime_mtls_init_total":           "app_id",

		"dapr_runtime_service_invocation_req_sent_total":      "app_id,dst_app_id,type",
		"dapr_runtime_service_invocation_res_recv_total":      "app_id,src_app_id,status,type",
		"dapr_runtime_service_invocation_res_recv_latency_ms": "app_id,src_app_id,status,ms",
		"dapr_runtime_service_invocation_req_recv_total":      "app_id,src_app_id",
		"dapr_runtime_service_invocation_res_sent_total":      "app_id,dst_app_id,status",

		"dapr_runtime_acl_app_policy_action_allowed_total":    rule,
		"dapr_runtime_acl_app_policy_action_blocked_total":    rule,
		"dapr_runtime_acl_global_policy_action_allowed_total": rule,
		"dapr_runtime_acl_global_policy_action_blocked_total": rule,

		"dapr_resiliency_loaded":            "app_id,name,namespace",
		"dapr_resiliency_count":             resiliency,
		"dapr_resiliency_activations_total": resiliency,
		"dapr_resiliency_cb_state":          resiliency,
	}
}

const daprNamesOn = "  metrics: {daprNames: true}\n"

// healthyApp is a gRPC application that answers every call.
type healthyApp struct {
	runtimev1.UnimplementedAppCallbackServer
	runtimev1.UnimplementedAppCallbackHealthCheckServer
}

func (healthyApp) OnInvoke(context.Context, *commonv1.InvokeRequest) (*commonv1.InvokeResponse, error) {
	return &commonv1.InvokeResponse{}, nil
}

func (healthyApp) HealthCheck(context.Context, *emptypb.Empty) (*runtimev1.HealthCheckResponse, error) {
	return &runtimev1.HealthCheckResponse{}, nil
}

// scrape returns the metrics page of a node.
func scrape(t *testing.T, n *node.Node) string {
	t.Helper()
	code, page := askAt(t, n.Addresses().Metrics, "GET", "/metrics", "", "")
	if code != 200 {
		t.Fatalf("metrics: %d", code)
	}
	return page
}

// shownLabels returns the labels, in order, of the first series of each name on a metrics page.
func shownLabels(page string) map[string]string {
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(dapr_\w+?)(_bucket)?\{([^}]*)\}`).FindAllStringSubmatch(page, -1) {
		var labels []string
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[3], -1) {
			if l[1] != "le" {
				labels = append(labels, l[1])
			}
		}
		slices.Sort(labels)
		out[m[1]+m[2]] = strings.Join(labels, ",")
	}
	return out
}

// TestDaprNames_AreWhatDaprsDashboardsRead runs an HTTP application and a gRPC application on two nodes, and uses
// every building block. It then checks that all metrics of Dapr are present with their labels and buckets.
func TestDaprNames_AreWhatDaprsDashboardsRead(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/dapr/subscribe":
			w.WriteHeader(http.StatusNotFound)
			return
		case "/batches":
			w.WriteHeader(http.StatusNotFound) // all messages are dropped
			return
		}
		if strings.HasPrefix(r.URL.Path, "/fail") || r.URL.Path == "/job/fail" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, "done")
	}))
	t.Cleanup(app.Close)
	token := trust.NewToken()
	shop := caller(t, "n1", "shop", "corp", "", token)
	shop.App.Port = app.Listener.Addr().(*net.TCPAddr).Port
	shop.App.Health = node.AppHealth{Enabled: true, Interval: time.Second}
	shop.Components.Paths = resources(t, map[string]string{
		"s.yaml": store("statestore", "state.raft", ""),
		"e.yaml": document("Component", "env", "  type: secretstores.local.env\n  version: v1\n"),
		"f.yaml": document("Component", "file", "  type: secretstores.local.file\n  version: v1\n"+
			"  ignoreErrors: true\n  metadata: [{name: secretsFile, value: /nowhere/secrets.json}]\n"),
		"b.yaml": document("Component", "out", "  type: bindings.http\n  version: v1\n  metadata: [{name: url, value: "+
			app.URL+"}]\n"),
		"p.yaml": document("Component", "events", "  type: pubsub.raft\n  version: v1\n"),
		"o.yaml": document("Subscription", "orders", "  pubsubname: events\n  topic: orders\n  route: /orders\n"),
		"m.yaml": document("Subscription", "many", "  pubsubname: events\n  topic: many\n  route: /batches\n"+
			"  bulkSubscribe: {enabled: true, maxMessagesCount: 2, maxAwaitDurationMs: 1}\n"),
		"i.yaml": document("Component", "tick", "  type: bindings.cron\n  version: v1\n"+
			"  metadata: [{name: schedule, value: \"@every 1s\"}]\n"),
		"c.yaml": document("Configuration", "c", daprNamesOn+`  accessControl:
    defaultAction: deny
    trustDomain: corp
    policies:
    - {appId: web, namespace: default, trustDomain: corp, defaultAction: allow,
       operations: [{name: /secret, httpVerb: ["*"], action: deny}]}
`),
		"r.yaml": document("Resiliency", "rules", `  policies:
    timeouts: {long: 30s}
    retries: {once: {policy: constant, duration: 1ms, maxRetries: 1}}
    circuitBreakers: {early: {timeout: 60s, trip: consecutiveFailures > 1}}
  targets: {apps: {shop: {timeout: long, retry: once, circuitBreaker: early}}}
`),
	})
	a := open(t, shop)
	ready(t, a)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	grpcApp := grpc.NewServer()
	runtimev1.RegisterAppCallbackServer(grpcApp, healthyApp{})
	runtimev1.RegisterAppCallbackHealthCheckServer(grpcApp, healthyApp{})
	go func() { _ = grpcApp.Serve(l) }()
	t.Cleanup(grpcApp.Stop)
	web := caller(t, "n2", "web", "corp", a.Addresses().Gossip, token)
	web.App.Port, web.App.Protocol = l.Addr().(*net.TCPAddr).Port, node.ProtocolGRPC
	web.App.Health = node.AppHealth{Enabled: true, Interval: time.Second}
	web.Components.Paths = resources(t, map[string]string{"c.yaml": document("Configuration", "c", daprNamesOn+
		"  accessControl: {defaultAction: allow, trustDomain: corp}\n")})
	b := open(t, web)
	ready(t, b)

	for _, r := range [][3]string{
		{"POST", "/v1.0/state/statestore", `[{"key":"k","value":1}]`}, {"GET", "/v1.0/state/statestore/k", ""},
		{"GET", "/v1.0/secrets/env/PATH", ""}, {"POST", "/v1.0/bindings/out", `{"operation":"get"}`},
		{"GET", "/v1.0/invoke/shop/method/x", ""}, {"GET", "/v1.0/invoke/shop/method/fail", ""},
		{"GET", "/v1.0/invoke/shop/method/fail", ""},
		{"POST", "/v1.0/publish/events/orders", "1"},
		{"POST", "/v1.0/publish/bulk/events/many", `[{"entryId":"1","event":"x","contentType":"text/plain"}]`},
		{"POST", "/v1.0/jobs/done", `{"dueTime":"0s"}`},
		{"POST", "/v1.0/jobs/fail", `{"dueTime":"0s","failurePolicy":{"drop":{}}}`},
	} {
		if code, text, _ := ask(t, a, r[0], r[1], r[2]); code >= 400 && !strings.HasSuffix(r[1], "/fail") {
			t.Fatalf("%s: %d %s", r[1], code, text)
		}
	}
	answers(t, b, "GET", "/v1.0/invoke/shop/method/x", "", 200, "done")
	answers(t, b, "GET", "/v1.0/invoke/shop/method/secret", "", 403, "")
	answers(t, b, "GET", "/v1.0/invoke/web/method/x", "", 200, "")
	conn, err := grpc.NewClient(a.Addresses().GRPC[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := runtimev1.NewDaprClient(conn).GetState(t.Context(),
		&runtimev1.GetStateRequest{StoreName: "statestore", Key: "k"}); err != nil {
		t.Fatal(err)
	}

	flows := workflow.NewClient(conn)
	if err := flows.StartWorker(t.Context(), workflowsOf(t, new(atomic.Int64))); err != nil {
		t.Fatal(err)
	}
	id, err := flows.ScheduleWorkflow(t.Context(), "chain")
	if err == nil {
		_, err = flows.WaitForWorkflowCompletion(t.Context(), id)
	}
	if err == nil {
		err = flows.PurgeWorkflowState(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}

	// a caller without a policy: the default action of shop refuses it
	other := open(t, caller(t, "n3", "other", "corp", a.Addresses().Gossip, token))
	ready(t, other)
	answers(t, other, "GET", "/v1.0/invoke/shop/method/x", "", 403, "")

	poll(t, func() error { // probes and events take a moment
		page := scrape(t, a) + scrape(t, b)
		shown := shownLabels(page)
		for name, want := range daprSeries() {
			labels, unit := want, ""
			for _, u := range []string{",ms", ",bytes"} {
				if cut, ok := strings.CutSuffix(labels, u); ok {
					labels, unit = cut, u
				}
			}
			shownName, last := name, ""
			switch unit {
			case ",ms":
				buckets := daprmetrics.DefaultBuckets()
				shownName, last = name+"_bucket", fmt.Sprintf(`le="%d"`, int(buckets[0]))
			case ",bytes":
				shownName, last = name+"_bucket", `le="1024"`
			}
			if got, ok := shown[shownName]; !ok || got != labels {
				return fmt.Errorf("%s has the labels %q, want %q", shownName, got, labels)
			}
			if !regexp.MustCompile(shownName + `\{[^}]*` + last).MatchString(page) {
				return fmt.Errorf("%s has no bucket %s", shownName, last)
			}
		}
		for name := range shown {
			name = strings.TrimSuffix(name, "_bucket")
			for _, suffix := range []string{"_sum", "_count"} {
				if _, ok := daprSeries()[name]; !ok {
					name = strings.TrimSuffix(name, suffix)
				}
			}
			if _, ok := daprSeries()[name]; !ok {
				return fmt.Errorf("%s is not a metric of Dapr", name)
			}
		}
		return nil
	})
	for _, series := range []string{
		`dapr_http_server_request_count{app_id="shop",method="GET",path="/v1.0/state/statestore",status="200"} 1`,
		`dapr_component_state_count{app_id="shop",component="statestore",namespace="",operation="set",` +
			`success="true"} 1`,
		`dapr_runtime_component_init_fail_total{app_id="shop",component="secretstores.local.file",` +
			`componentName="file",reason="init"} 1`,
		`dapr_component_pubsub_egress_count{app_id="shop",component="events",namespace="",success="true",` +
			`topic="orders"} 1`,
		`dapr_component_pubsub_egress_bulk_count{app_id="shop",component="events",namespace="",success="true",` +
			`topic="many"} 1`,
		`dapr_component_pubsub_ingress_count{app_id="shop",component="events",namespace="",` +
			`process_status="success",status="success",topic="orders"} 1`,
		`dapr_component_pubsub_ingress_bulk_count{app_id="shop",component="events",namespace="",` +
			`process_status="",topic="many"} 1`,
		`dapr_component_pubsub_ingress_bulk_event_count{app_id="shop",component="events",namespace="",` +
			`process_status="drop",topic="many"} 1`,
		`dapr_runtime_workflow_operation_count{app_id="shop",namespace="",operation="create_workflow",` +
			`status="success"} 1`,
		`dapr_runtime_workflow_activity_execution_count{activity_name="double",app_id="shop",namespace="",` +
			`status="success"} 5`,
		`dapr_grpc_io_server_completed_rpcs{app_id="shop",` +
			`grpc_server_method="/dapr.proto.runtime.v1.Dapr/GetState",grpc_server_status="OK"} 1`,
		`dapr_resiliency_cb_state{app_id="shop",flow_direction="outbound",name="rules",namespace="",` +
			`policy="circuitbreaker",status="open",target="app_shop"} 1`,
	} {
		if !strings.Contains(scrape(t, a), series) {
			t.Errorf("missing: %s", series)
		}
	}
}

func TestDaprNames_AreOffByDefault(t *testing.T) {
	n, _, _ := running(t, map[string]string{"c.yaml": document("Configuration", "c",
		"  metrics: {enabled: true}\n")}, nil)
	_, _ = save(t, n, "k", "v")
	if page := scrape(t, n); strings.Contains(page, "dapr_") || !strings.Contains(page, "quorate_http_requests_total") {
		t.Error("metrics with Dapr's names are exported")
	}
}

// With quorate daprd, the metrics have Dapr's names unless the Configuration disables the names.
func TestDaprNames_AreOnWithDaprsDefaults(t *testing.T) {
	for name, c := range map[string]struct {
		metrics string
		want    bool
	}{"no section": {"  tracing: {samplingRate: \"0\"}\n", true}, "a section": {"  metrics: {enabled: true}\n", true},
		"off": {"  metrics: {daprNames: false}\n", false}} {
		t.Run(name, func(t *testing.T) {
			n, _, _ := running(t, map[string]string{"c.yaml": document("Configuration", "c", c.metrics)},
				func(c *node.Config) { c.Dapr = true })
			_, _ = save(t, n, "k", "v")
			if got := strings.Contains(scrape(t, n), "dapr_"); got != c.want {
				t.Errorf("metrics with Dapr's names: %t, want %t", got, c.want)
			}
		})
	}
}

func TestDaprNames_ErrorCodes(t *testing.T) {
	n, _, _ := running(t, map[string]string{"s.yaml": store("orders", "state.raft", ""),
		"c.yaml": document("Configuration", "c", "  metrics: {daprNames: true, recordErrorCodes: true}\n")}, nil)
	answers(t, n, "POST", "/v1.0/state/orders", "{}", 400, "ERR_MALFORMED_REQUEST")
	answers(t, n, "GET", "/v1.0/state/other/k", "", 400, "ERR_STATE_STORE_NOT_FOUND")
	answers(t, n, "GET", "/v1.0/state/other/k", "", 400, "ERR_STATE_STORE_NOT_FOUND")
	page := scrape(t, n)
	for _, series := range []string{
		`dapr_error_code_total{app_id="shop",category="common",error_code="ERR_MALFORMED_REQUEST"} 1`,
		`dapr_error_code_total{app_id="shop",category="state",error_code="ERR_STATE_STORE_NOT_FOUND"} 2`,
	} {
		if !strings.Contains(page, series) {
			t.Errorf("missing: %s", series)
		}
	}
}

func TestDaprNames_PathMatching(t *testing.T) {
	n, _, _ := running(t, map[string]string{"s.yaml": store("orders", "state.raft", ""),
		"c.yaml": document("Configuration", "c", "  metrics: {daprNames: true, http: {increasedCardinality: false, "+
			"pathMatching: [\"/v1.0/state/orders/{key}\"]}}\n")}, nil)
	for _, key := range []string{"a", "b"} {
		answers(t, n, "GET", "/v1.0/state/orders/"+key, "", 204, "")
	}
	answers(t, n, "GET", "/v1.0/metadata", "", 200, "")
	page := scrape(t, n)
	for _, series := range []string{
		`dapr_http_server_request_count{app_id="shop",method="GET",path="/v1.0/state/orders/{key}",status="204"} 2`,
		`dapr_http_server_request_count{app_id="shop",method="GET",path="",status="200"} 1`,
	} {
		if !strings.Contains(page, series) {
			t.Errorf("missing: %s in %q", series, regexp.MustCompile(`(?m)^dapr_http_server_request_count.*$`).
				FindAllString(page, -1))
		}
	}
}

func TestDaprNames_SettingsOfTheConfigurationApply(t *testing.T) {
	n, _, _ := running(t, map[string]string{"c.yaml": document("Configuration", "c", "  metrics: {daprNames: true, "+
		"latencyDistributionBuckets: [7, 70], http: {increasedCardinality: false, excludeVerbs: true}}\n")}, nil)
	_, _ = save(t, n, "k", "v")
	page := scrape(t, n)
	if !strings.Contains(page, `dapr_http_server_request_count{app_id="shop",method="",path="",status="204"}`) ||
		!strings.Contains(page, `le="70"`) || strings.Contains(page, `le="650"`) {
		t.Error(regexp.MustCompile(`(?m)^dapr_http_server.*$`).FindAllString(page, -1))
	}
}
