// Package admin serves the admin API of a node over HTTP. Operators use it to see and change the cluster, for example
// its status, leaders, backups, servers, locks, topics and workflows.
//
// The package owns the paths of this API, its audit log, and the Unix socket in the data directory on which a node
// serves it. Only the operating-system user that runs the node can open this socket. The API of applications is in
// package api/http.
package admin
