// Package daprmetrics exports the metrics of Dapr's sidecar, with Dapr's names, labels, buckets and units, so that
// dashboards and alerts made for Dapr work.
//
// It owns only these metrics. The packages that serve requests report to it through small interfaces that they
// define. If Dapr's names are disabled, the values of these interfaces are nil.
package daprmetrics
