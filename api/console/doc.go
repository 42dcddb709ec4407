// Package console serves the web console. Its pages show the cluster, its applications and their state.
//
// The package owns the pages, the browser sessions, and the figures of all nodes in the last few minutes. Pages are
// rendered on the server. A small script updates open pages over server-sent events. There is one goroutine for each
// open page, and one for each running comparison of replicas. While a page is open, one more goroutine polls the nodes.
package console
