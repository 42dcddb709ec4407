// Package console serves the web console. Its pages show the cluster, its applications and their state.
//
// It owns the browser sessions, the pages, and the node views of the last few minutes. Pages are rendered on the
// server. A small script updates open pages over server-sent events. The package has one goroutine for each open page,
// one that polls the nodes while a page is open, and one for each running comparison of replicas.
package console
