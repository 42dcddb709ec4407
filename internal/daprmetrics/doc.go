// Package daprmetrics exports the metrics of Dapr's sidecar, with Dapr's names, labels, buckets and units, so that
// dashboards and alerts made for Dapr work.
//
// It owns only these metrics. The packages that serve requests do not import it. Each of them reports to a small
// interface of its own, which is nil if these metrics are disabled.
package daprmetrics
