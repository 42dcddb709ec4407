// Package daprmetrics exports the metrics of Dapr's sidecar, with Dapr's names, labels, buckets and units, so that
// dashboards and alerts made for Dapr work.
//
// It owns only these metrics. The packages that serve requests report to it through small interfaces that they
// define. These are nil if Dapr's names are disabled.
package daprmetrics
