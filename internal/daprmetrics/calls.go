package daprmetrics

import (
	"cmp"
	"time"
)

// streamLabel returns the value of the label type: "streaming" or "unary".
func streamLabel(streaming bool) string {
	if streaming {
		return "streaming"
	}
	return "unary"
}

// Sent records a call between two applications. source is the id of the caller, and target is the id of the called
// application. streaming is true for a streaming gRPC call.
func (m *Metrics) Sent(source, target string, streaming bool) {
	m.inc("dapr_runtime_service_invocation_req_sent_total", source, target, streamLabel(streaming))
}

// Answered records the answer to a call between two applications, and how long the call took. source is the id of the
// caller, and target is the id of the called application. The duration of a streaming call is not recorded.
func (m *Metrics) Answered(source, target, status string, streaming bool, took time.Duration) {
	m.inc("dapr_runtime_service_invocation_res_recv_total", source, target, status, streamLabel(streaming))
	if !streaming {
		m.latency("dapr_runtime_service_invocation_res_recv_latency_ms", took, source, target, status)
	}
}

// Received records a call from another node to an application on this node. The parameter target is the id of the
// called application, and source is the id of the caller.
func (m *Metrics) Received(target, source string) {
	m.inc("dapr_runtime_service_invocation_req_recv_total", target, source)
}

// Replied records that an application on this node has answered a call from another node. The parameter target is the
// id of the called application, and source is the id of the caller.
func (m *Metrics) Replied(target, source, status string) {
	m.inc("dapr_runtime_service_invocation_res_sent_total", target, source, status)
}

// Decided records whether access control allowed a call. specific is true if a policy for the caller decided, and false
// if the default action decided.
func (m *Metrics) Decided(caller, domain, namespace string, specific, allowed bool) {
	name := "dapr_runtime_acl_global_policy_action_blocked_total"
	switch {
	case specific && allowed:
		name = "dapr_runtime_acl_app_policy_action_allowed_total"
	case specific:
		name = "dapr_runtime_acl_app_policy_action_blocked_total"
	case allowed:
		name = "dapr_runtime_acl_global_policy_action_allowed_total"
	}
	m.inc(name, caller, domain, namespace)
}

// circuitStates returns the states of a circuit breaker, as Dapr names them.
func circuitStates() []string { return []string{"closed", "half-open", "open", "unknown"} }

// PolicyApplied records that a resiliency policy applies to a call from source to target. document is the name of the
// Resiliency resource. policy is timeout, retry or circuitbreaker. state is the state of the circuit breaker, and
// empty for other policies.
func (m *Metrics) PolicyApplied(source, document, policy, target, state string) {
	labels := m.policyLabels(source, document, policy, target, state)
	m.inc(policyCount, labels...)
	m.circuit(labels)
}

// circuit sets the gauges of a circuit breaker: 1 for its current state, and 0 for each other state. The last of the
// labels is the current state, and circuit overwrites it. For other policies, the last label is empty, and circuit does
// nothing.
func (m *Metrics) circuit(labels []string) {
	state := labels[len(labels)-1]
	gauge := m.now.Load().circuits
	if state == "" || gauge == nil {
		return
	}
	for _, s := range circuitStates() {
		labels[len(labels)-1] = s
		value := 0.0
		if s == state {
			value = 1
		}
		gauge.WithLabelValues(labels...).Set(value)
	}
}

// PolicyActivated records that a resiliency policy acted after a failure, or that a circuit breaker changed its
// state. An empty source means the first application of the node.
func (m *Metrics) PolicyActivated(source, document, policy, target, state string) {
	labels := m.policyLabels(cmp.Or(source, m.options().App), document, policy, target, state)
	m.inc(policyActivated, labels...)
	m.circuit(labels)
}

func (m *Metrics) policyLabels(source, document, policy, target, state string) []string {
	return []string{source, document, policy, m.options().Namespace, "outbound", "app_" + target, state}
}
