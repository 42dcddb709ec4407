package daprmetrics

// kind is the type of a metric.
type kind uint8

const (
	count   kind = iota // a counter
	latency             // a histogram of milliseconds
	size                // a histogram of bytes
)

// spec describes one metric.
type spec struct {
	name, help string
	kind       kind
	labels     []string
}

// Names of metrics that are recorded in more than one place, or that are not in specs.
const (
	circuitState    = "dapr_resiliency_cb_state"
	policyCount     = "dapr_resiliency_count"
	policyActivated = "dapr_resiliency_activations_total"
	policyLoaded    = "dapr_resiliency_loaded"
	errorCodes      = "dapr_error_code_total"
)

func resiliencyLabels() []string {
	return []string{"app_id", "name", "policy", "namespace", "flow_direction", "target", "status"}
}

// specs returns all counters and histograms.
func specs() []spec {
	http := []string{"app_id", "method", "path", "status"}
	op := []string{"app_id", "component", "namespace", "operation", "success"}
	in := []string{"app_id", "component", "namespace", "success"}
	job := []string{"app_id", "namespace", "operation"}
	flow := []string{"app_id", "namespace", "operation", "status"}
	activity := []string{"app_id", "namespace", "activity_name", "status"}
	egress := []string{"app_id", "component", "namespace", "success", "topic"}
	ingress := []string{"app_id", "component", "namespace", "process_status", "topic", "status"}
	server := []string{"app_id", "grpc_server_method", "grpc_server_status"}
	client := []string{"app_id", "grpc_client_method", "grpc_client_status"}
	rule := []string{"app_id", "trustDomain", "namespace"}
	return []spec{
		{"dapr_http_server_request_count", "HTTP requests of the API.", count, http},
		{"dapr_http_server_response_count", "HTTP answers of the API.", count, http},
		{"dapr_http_server_latency", "Time of an HTTP request of the API, in ms.", latency, http},
		{"dapr_http_server_request_bytes", "Size of request bodies.", size, http[:1]},
		{"dapr_http_server_response_bytes", "Size of answer bodies.", size, http[:1]},
		{"dapr_http_client_completed_count", "HTTP requests to the application.", count, http},
		{"dapr_http_client_roundtrip_latency", "Time until the application answered, in ms.", latency, http},
		{"dapr_http_client_sent_bytes", "Size of request bodies.", size, http},
		{"dapr_http_client_received_bytes", "Size of the application's answers.", size, http[:1]},
		{"dapr_http_healthprobes_completed_count", "Health probes of the application.", count,
			[]string{"app_id", "status"}},
		{"dapr_http_healthprobes_roundtrip_latency", "Time of a health probe, in ms.", latency,
			[]string{"app_id", "status"}},

		{errorCodes, "Errors of the API by their code.", count, []string{"app_id", "error_code", "category"}},

		{"dapr_grpc_io_server_completed_rpcs", "gRPC calls of the API.", count, server},
		{"dapr_grpc_io_server_server_latency", "Time of a gRPC call of the API, in ms.", latency, server},
		{"dapr_grpc_io_server_received_bytes_per_rpc", "Size of requests.", size, server[:2]},
		{"dapr_grpc_io_server_sent_bytes_per_rpc", "Size of answers.", size, server[:2]},
		{"dapr_grpc_io_client_completed_rpcs", "gRPC calls of the application.", count, client},
		{"dapr_grpc_io_client_roundtrip_latency", "Time until the application answered, in ms.", latency, client},
		{"dapr_grpc_io_client_sent_bytes_per_rpc", "Size of requests.", size, client[:2]},
		{"dapr_grpc_io_client_received_bytes_per_rpc", "Size of answers.", size, client[:2]},
		{"dapr_grpc_io_healthprobes_completed_count", "Health probes of the application.", count,
			[]string{"app_id", "grpc_client_status"}},
		{"dapr_grpc_io_healthprobes_roundtrip_latency", "Time of a health probe, in ms.", latency,
			[]string{"app_id", "grpc_client_status"}},

		{"dapr_component_state_count", "Operations of a state store.", count, op},
		{"dapr_component_state_latencies", "Time of an operation, in ms.", latency, op},
		{"dapr_component_secret_count", "Operations of a secret store.", count, op},
		{"dapr_component_secret_latencies", "Time of an operation, in ms.", latency, op},
		{"dapr_component_output_binding_count", "Operations of an output binding.", count, op},
		{"dapr_component_output_binding_latencies", "Time of an operation, in ms.", latency, op},
		{"dapr_component_input_binding_count", "Events of an input binding.", count, in},
		{"dapr_component_input_binding_latencies", "Time that the application took, in ms.", latency, in},
		{"dapr_component_job_success_count", "Ticks of jobs that the application handled.", count, job},
		{"dapr_component_job_failure_count", "Ticks of jobs that the application did not handle.", count, job},
		{"dapr_component_job_latencies", "Time that the application took, in ms.", latency, append(job, "success")},

		{"dapr_component_pubsub_egress_count", "Messages that were published.", count, egress},
		{"dapr_component_pubsub_egress_latencies", "Time of a publish, in ms.", latency, egress},
		{"dapr_component_pubsub_egress_bulk_count", "Bulk publishes.", count, egress},
		{"dapr_component_pubsub_egress_bulk_latencies", "Time of a bulk publish, in ms.", latency, egress},
		{"dapr_component_pubsub_ingress_count", "Deliveries of messages to the application.", count, ingress},
		{"dapr_component_pubsub_ingress_latencies", "Time of a delivery, in ms.", latency, ingress},
		{"dapr_component_pubsub_ingress_bulk_count", "Deliveries of batches to the application.", count, ingress[:5]},
		{"dapr_component_pubsub_ingress_bulk_event_count", "Messages of these batches.", count, ingress[:5]},
		{"dapr_component_pubsub_ingress_bulk_latencies", "Time of the delivery of a batch, in ms.", latency,
			ingress[:5]},

		{"dapr_runtime_workflow_operation_count", "Requests about workflows.", count, flow},
		{"dapr_runtime_workflow_operation_latency", "Time of a request about workflows, in ms.", latency, flow},
		{"dapr_runtime_workflow_activity_execution_count", "Activities that a worker has executed.", count, activity},
		{"dapr_runtime_workflow_activity_execution_latency", "Time that the worker took, in ms.", latency, activity},

		{"dapr_runtime_component_loaded", "Components that were opened.", count, []string{"app_id"}},
		{"dapr_runtime_component_init_total", "Components that were opened, by type.", count,
			[]string{"app_id", "component"}},
		{"dapr_runtime_component_init_fail_total", "Components that could not be opened.", count,
			[]string{"app_id", "component", "reason", "componentName"}},
		{"dapr_runtime_mtls_init_total", "1 if traffic between nodes is authenticated.", count, []string{"app_id"}},
		{"dapr_runtime_mtls_workload_cert_rotated_total", "Certificates of this node that were renewed.", count,
			[]string{"app_id"}},
		{"dapr_runtime_mtls_workload_cert_rotated_fail_total", "Certificates that could not be renewed.", count,
			[]string{"app_id", "reason"}},

		{"dapr_runtime_service_invocation_req_sent_total", "Calls of applications.", count,
			[]string{"app_id", "dst_app_id", "type"}},
		{"dapr_runtime_service_invocation_res_recv_total", "Answers of called applications.", count,
			[]string{"app_id", "src_app_id", "status", "type"}},
		{"dapr_runtime_service_invocation_res_recv_latency_ms", "Time until the answer of an application, in ms.",
			latency, []string{"app_id", "src_app_id", "status"}},
		{"dapr_runtime_service_invocation_req_recv_total", "Calls by applications of other nodes.", count,
			[]string{"app_id", "src_app_id"}},
		{"dapr_runtime_service_invocation_res_sent_total", "Answers to applications of other nodes.", count,
			[]string{"app_id", "dst_app_id", "status"}},

		{"dapr_runtime_acl_app_policy_action_allowed_total", "Calls that a policy allowed.", count, rule},
		{"dapr_runtime_acl_app_policy_action_blocked_total", "Calls that a policy refused.", count, rule},
		{"dapr_runtime_acl_global_policy_action_allowed_total", "Calls that the default action allows.", count, rule},
		{"dapr_runtime_acl_global_policy_action_blocked_total", "Calls that the default action refused.", count, rule},

		{policyLoaded, "Resiliency resources that were loaded.", count, []string{"app_id", "name", "namespace"}},
		{policyCount, "Calls to which a policy applied.", count, resiliencyLabels()},
		{policyActivated, "Times that a policy acted: a retry, a timeout, a change of a circuit breaker.", count,
			resiliencyLabels()},
	}
}
