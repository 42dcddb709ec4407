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

// Called records an HTTP request to the application. Sizes below 0 are unknown.
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

// JobDelivered records a tick of a job that was delivered to the application. ok is true if the application handled it.
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

// Renewed records whether the certificate of the node was renewed. If ok is false, the renewal failed.
func (a *App) Renewed(ok bool) {
	if ok {
		a.metrics.inc("dapr_runtime_mtls_workload_cert_rotated_total", a.id)
		return
	}
	a.metrics.inc("dapr_runtime_mtls_workload_cert_rotated_fail_total", a.id, "sign")
}
