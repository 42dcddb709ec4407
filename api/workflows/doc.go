// Package workflows serves the workflows of one application. It starts, reads and changes instances, and connects
// workers with the engine.
//
// It owns the limits of requests, the public error codes, and the rule that decides which instances an application may
// use. It does not depend on how an engine stores instances. It has no goroutines.
package workflows
