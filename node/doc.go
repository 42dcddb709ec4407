// Package node is the composition root: it turns a Config into a running node.
//
// It owns the Config, the order in which subsystems are started and closed, and the servers of the APIs. Each
// subsystem is a separate package. The packages below node/ are subsystems that only a running node needs. The
// command fills a Config from flags, settings files and the environment.
//
// Goroutines: Node.loop starts goroutines, and Close ends them. Subsystems have goroutines of their own.
package node
