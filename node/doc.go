// Package node turns a Config into a running node. It is the composition root of the program.
//
// It owns the Config, the order in which subsystems are started and closed, and the servers of the APIs. Each subsystem
// is a separate package. The packages below node/ are the subsystems that are used only by a running node. The
// command-line program fills a Config from flags, settings files and the environment.
//
// Goroutines: Node.loop starts goroutines, and Close ends them. Subsystems also have their own goroutines.
package node
