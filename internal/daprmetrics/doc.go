// Package daprmetrics exports the metrics of Dapr's sidecar, with Dapr's names, labels, buckets and units, so that
// dashboards and alerts made for Dapr work.
//
// It owns only these metrics. The packages that serve requests do not import it. Each of them defines a small interface
// to which it reports. If the metrics with Dapr's names are disabled, the value of this interface is nil.
package daprmetrics
