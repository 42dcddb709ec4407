// Package console serves the web console: pages for people that show the cluster, its applications and their state.
//
// It owns the sessions of browsers, the pages, and the views of the last minutes. Pages are rendered on the server. A
// small script keeps open pages up to date over server-sent events. The package has one goroutine for each open page,
// one that requests the views of the nodes while a page is open, and one for each running comparison of replicas.
package console
