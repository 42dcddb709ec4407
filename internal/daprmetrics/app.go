package daprmetrics

import (
	"strconv"
	"time"
)

// App records what one application of the node does.
type App struct {
	metrics *Metrics
	id      string
}

// ServedHTTP records a request of the HTTP API. Status 0 is a request without an answer.
func (a *App) ServedHTTP(verb, path string, status int, received, sent int64, took time.Duration) {
	m := a.metrics
	labels := []string{a.id, m.verb(verb), m.path(path), strconv.Itoa(status)}
	m.inc("dapr_http_server_request_count", labels...)
	m.inc("dapr_http_server_response_count", labels...)
	m.latency("dapr_http_server_latency", took, labels...)
	m.size("dapr_http_server_request_bytes", received, a.id)
	m.size("dapr_http_server_response_bytes", sent, a.id)
}

// Called records an HTTP request to the application. A size below 0 means unknown and is recorded as 0.
func (a *App) Called(verb, path string, status int, sent, received int64, took time.Duration) {
	m := a.metrics
	labels := []string{a.id, m.verb(verb), m.path(path), strconv.Itoa(status)}
	m.inc("dapr_http_client_completed_count", labels...)
	m.latency("dapr_http_client_roundtrip_latency", took, labels...)
	m.size("dapr_http_client_sent_bytes", sent, a.id, labels[1], labels[2], "")
	m.size("dapr_http_client_received_bytes", received, a.id)
}

// Probed records a health probe of an HTTP application.
func (a *App) Probed(status int, took time.Duration) {
	text := strconv.Itoa(status)
	a.metrics.inc("dapr_http_healthprobes_completed_count", a.id, text)
	a.metrics.latency("dapr_http_healthprobes_roundtrip_latency", took, a.id, text)
}

// StateOperation records an operation of a state store. ok is true if the operation succeeded.
func (a *App) StateOperation(store, operation string, ok bool, took time.Duration) {
	a.operation("dapr_component_state_count", "dapr_component_state_latencies", took, store,
		a.metrics.options().Namespace, operation, strconv.FormatBool(ok))
}

// SecretOperation records an operation of a secret store. ok is true if the operation succeeded.
func (a *App) SecretOperation(store, operation string, ok bool, took time.Duration) {
	a.operation("dapr_component_secret_count", "dapr_component_secret_latencies", took, store,
		a.metrics.options().Namespace, operation, strconv.FormatBool(ok))
}

// BindingOperation records an operation of an output binding. ok is true if the operation succeeded.
func (a *App) BindingOperation(binding, operation string, ok bool, took time.Duration) {
	a.operation("dapr_component_output_binding_count", "dapr_component_output_binding_latencies", took, binding,
		a.metrics.options().Namespace, operation, strconv.FormatBool(ok))
}

// BindingEvent records an event of an input binding that was handed to the application. ok is true if the application
// handled it.
func (a *App) BindingEvent(binding string, ok bool, took time.Duration) {
	a.operation("dapr_component_input_binding_count", "dapr_component_input_binding_latencies", took, binding,
		a.metrics.options().Namespace, strconv.FormatBool(ok))
}

// JobDelivered records that a tick of a job was delivered to the application. ok is true if the application handled
// the tick.
func (a *App) JobDelivered(ok bool, took time.Duration) {
	const operation = "job_trigger_op"
	counter := "dapr_component_job_success_count"
	if !ok {
		counter = "dapr_component_job_failure_count"
	}
	a.metrics.inc(counter, a.id, a.metrics.options().Namespace, operation)
	a.metrics.latency("dapr_component_job_latencies", took, a.id, a.metrics.options().Namespace, operation,
		strconv.FormatBool(ok))
}

// Published records an attempt to publish one message, or several messages if bulk is true. ok is true if all were
// stored.
func (a *App) Published(component, topic string, bulk, ok bool, took time.Duration) {
	counter, histogram := "dapr_component_pubsub_egress_count", "dapr_component_pubsub_egress_latencies"
	if bulk {
		counter, histogram = "dapr_component_pubsub_egress_bulk_count", "dapr_component_pubsub_egress_bulk_latencies"
	}
	a.operation(counter, histogram, took, component, a.metrics.options().Namespace, strconv.FormatBool(ok),
		a.metrics.topics.label(topic))
}

// Delivered records the delivery of a message to the application. status is the application's answer: success, retry
// or drop.
func (a *App) Delivered(component, topic, status string, took time.Duration) {
	a.operation("dapr_component_pubsub_ingress_count", "dapr_component_pubsub_ingress_latencies", took, component,
		a.metrics.options().Namespace, status, a.metrics.topics.label(topic), status)
}

// DeliveredBulk records the delivery of a batch of messages. The map has the number of messages with each status. As in
// Dapr, the label for the status is empty in the metrics that count batches.
func (a *App) DeliveredBulk(component, topic string, messages map[string]int, took time.Duration) {
	namespace, topic := a.metrics.options().Namespace, a.metrics.topics.label(topic)
	a.operation("dapr_component_pubsub_ingress_bulk_count", "dapr_component_pubsub_ingress_bulk_latencies", took,
		component, namespace, "", topic)
	for status, n := range messages {
		for range n {
			a.metrics.inc("dapr_component_pubsub_ingress_bulk_event_count", a.id, component, namespace, status, topic)
		}
	}
}

// WorkflowOperation records an operation on a workflow, such as create_workflow. ok is true if it succeeded.
func (a *App) WorkflowOperation(operation string, ok bool, took time.Duration) {
	a.operation("dapr_runtime_workflow_operation_count", "dapr_runtime_workflow_operation_latency", took,
		a.metrics.options().Namespace, operation, flowStatus(ok))
}

// ActivityExecuted records an activity of a workflow that a worker has executed. ok is true if the activity did not
// fail.
func (a *App) ActivityExecuted(name string, ok bool, took time.Duration) {
	a.operation("dapr_runtime_workflow_activity_execution_count", "dapr_runtime_workflow_activity_execution_latency",
		took, a.metrics.options().Namespace, a.metrics.activities.label(name), flowStatus(ok))
}

func flowStatus(ok bool) string {
	if ok {
		return "success"
	}
	return "failed"
}

func (a *App) operation(counter, histogram string, took time.Duration, labels ...string) {
	labels = append([]string{a.id}, labels...)
	a.metrics.inc(counter, labels...)
	a.metrics.latency(histogram, took, labels...)
}

// ComponentOpened records that a component was opened.
func (a *App) ComponentOpened(typ string) {
	a.metrics.inc("dapr_runtime_component_loaded", a.id)
	a.metrics.inc("dapr_runtime_component_init_total", a.id, typ)
}

// ComponentFailed records that a component could not be opened.
func (a *App) ComponentFailed(typ, name string) {
	a.metrics.inc("dapr_runtime_component_init_fail_total", a.id, typ, "init", name)
}

// PoliciesLoaded records that a Resiliency resource was loaded.
func (a *App) PoliciesLoaded(document string) {
	a.metrics.inc(policyLoaded, a.id, document, a.metrics.options().Namespace)
}

// Secured records that the node has a certificate for traffic between nodes.
func (a *App) Secured() { a.metrics.inc("dapr_runtime_mtls_init_total", a.id) }

// Renewed records an attempt to renew the certificate of the node. ok is true if it succeeded.
func (a *App) Renewed(ok bool) {
	if ok {
		a.metrics.inc("dapr_runtime_mtls_workload_cert_rotated_total", a.id)
		return
	}
	a.metrics.inc("dapr_runtime_mtls_workload_cert_rotated_fail_total", a.id, "sign")
}
